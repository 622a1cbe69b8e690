"""Section [sweep]: what a sweep makes large or small, what it may cost, and how it chooses."""

import math
from dataclasses import dataclass

PROTEIN = "Protein"
OURS = (PROTEIN, "ParetoGenetic", "Random")  # of this room
OPTUNAS = ("TPE", "GP", "NSGAII")  # of the engine
METHODS = (*OURS, *OPTUNAS)
LINEAR, PERCENTILE = "linear", "percentile"
MAXIMIZE, MINIMIZE = "maximize", "minimize"
MEAN, MEDIAN, WORST = "mean", "median", "worst"


@dataclass(frozen=True)
class SweepSettings:
    """What ``[sweep]`` says; the defaults are PufferLib's.

    Args:
        method: one of ``METHODS``.
        metric: the number that is a run's score, by its name in a record: ``env/score``.
        metric_distribution: ``linear``, or ``percentile`` for a score between 0 and 1, whose logit
            is compared then (PufferLib 5.0 calls it ``logit``).
        goal: ``maximize`` or ``minimize``.
        target_score: a score that is enough: more counts for nothing, so that of the runs that
            reach it the cheapest is best; inf: none is.
        seeds: a suggestion is judged by so many runs, of ``base.seed``, ``base.seed + 1``, … (and
            ``vec.seed`` likewise); those after the first only while it is promising.
        seeds_score: their scores as one: ``mean``, ``median`` or ``worst``.
        max_suggestion_cost: a run that is expected to cost more isn't suggested; seconds.
        max_runs: runs of the sweep.
        downsample: of how many points of its curve a run tells.
        prune_pareto: leave out the front's expensive points that bring little.
        early_stop_quantile: a run whose score is below this quantile of what its cost bought in
            others is ended; 0: none is; -1: ``stop_quantile`` says.
        gpus: how many the runs share; 0 is all.
        sweep_only: only parameters whose names contain one of these words are swept; empty: all.
        num_random_samples: points of a Sobol sequence that are tried first.
        num_keep_top_obs: best observations of which cheaper forms are tried.
        suggestions_per_pareto: candidates around each centre.
        gp_training_iter: Adam's steps for each fit of a Gaussian process.
        gp_max_obs: observations that a Gaussian process is fitted to.
        exploration: how many standard deviations above the expected score a candidate's score may
            be; -1: 0, PufferLib's, where runs' lengths are searched, and 0.5 where all are equal.
    """

    method: str = PROTEIN
    metric: str = "env/score"
    metric_distribution: str = LINEAR
    goal: str = MAXIMIZE
    target_score: float = math.inf
    seeds: int = 1
    seeds_score: str = MEAN
    max_suggestion_cost: float = 3600.0
    max_runs: int = 1200
    downsample: int = 5
    prune_pareto: bool = True
    early_stop_quantile: float = -1.0
    gpus: int = 0
    sweep_only: tuple[str, ...] = ()
    num_random_samples: int = 10
    num_keep_top_obs: int = 5
    suggestions_per_pareto: int = 256
    gp_training_iter: int = 50
    gp_max_obs: int = 750
    exploration: float = -1.0

    @property
    def stop_quantile(self) -> float:
        """``early_stop_quantile``; unless it is given 0.3, PufferLib's, and with Protein 0.

        Protein chooses how long runs are, by what their curves taught it: ending them saved none of
        the cost of a score (docs/decisions/0024-protein.md).
        """
        if self.early_stop_quantile >= 0:
            return self.early_stop_quantile
        return 0.0 if self.method == PROTEIN else 0.3

    @property
    def spares_dear(self) -> bool:
        """Whether runs that cost more than the front's are ended like all others.

        Protein's are there to find out whether more cost buys more. Ended unless they are near the
        best, they kept its front from growing.
        """
        return self.method == PROTEIN

    @property
    def sign(self) -> int:
        """What a score is multiplied by so that more is better."""
        return -1 if self.goal == MINIMIZE else 1

    @property
    def enough(self) -> float:
        """``target_score`` with the sign."""
        return self.sign * self.target_score if math.isfinite(self.target_score) else math.inf

    def worth(self, score: float) -> float:
        """A score so that more is better, as far as more counts."""
        return min(self.sign * float(score), self.enough)
