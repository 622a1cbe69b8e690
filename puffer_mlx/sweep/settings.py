"""Settings of section [sweep], and the ranges that a sweep searches by default."""

import math
from dataclasses import dataclass, fields

from puffer_mlx.config import Config
from puffer_mlx.config.key import Key, key
from puffer_mlx.config.schema import OPTIMIZERS

PROTEIN = "Protein"
BUILT_IN_METHODS = (PROTEIN, "ParetoGenetic", "Random")  # implemented in this package
OPTUNA_METHODS = ("TPE", "GP", "NSGAII")  # implemented by Optuna
METHODS = (*BUILT_IN_METHODS, *OPTUNA_METHODS)
LINEAR = "linear"
PERCENTILE = "percentile"
MAXIMIZE = "maximize"
MINIMIZE = "minimize"
MEAN = "mean"
MEDIAN = "median"
WORST = "worst"
NO_TARGET = "none"  # value of target_score without a target
TOP_RUNS = 3  # number of the best runs that are trained again with held-out seeds
DEFAULT_HELD_OUT_SEEDS = 8  # default number of held-out seeds
SHORT_RUN_SECONDS = 60.0  # runs at most this long get held-out seeds by default
HELD_OUT_OFFSET = 1000  # offset of the held-out seeds, above all seeds of the search


@dataclass(frozen=True)
class SweepSettings:
    """Settings of ``[sweep]``, with PufferLib's defaults. Keys with a help text are in ``--help``.

    Attributes:
        seeds: Maximum number of runs per suggestion, with different ``base.seed`` and ``vec.seed``.
            Only promising suggestions get more than one.
        confirm: Number of held-out seeds, from ``base.seed + HELD_OUT_OFFSET`` on. The best
            ``TOP_RUNS`` suggestions are trained again with them, and only these results decide
            which is best.
        early_stop_quantile: A run is stopped if its score is below this quantile of other runs'
            scores at the same cost. 0 stops none. Unused by Protein.
        prune_pareto: Ignore expensive points of the Pareto front that gain little.
        num_random_samples: Number of initial points from a Sobol sequence.
        num_keep_top_obs: Number of the best observations that are also tried with shorter runs.
        suggestions_per_pareto: Number of candidates per point of the Pareto front.
        gp_training_iter: Optimizer steps of a Gaussian process fit.
        gp_max_obs: Maximum number of observations in a fit.
        exploration: Number of standard deviations added to a candidate's expected score in the
            optimistic one of Protein's three ratings.
    """

    method: str = key(PROTEIN, f"method that suggests runs: {', '.join(METHODS)}")
    metric: str = key("env/score", "name of a run's score in its log")
    metric_distribution: str = key(  # percentile: scores from 0 to 1 are compared by their logits
        LINEAR, "", choices=(LINEAR, PERCENTILE), aliases={"logit": PERCENTILE}
    )
    goal: str = key(MAXIMIZE, "maximize or minimize the score", choices=(MAXIMIZE, MINIMIZE))
    target_score: float | str = key(
        NO_TARGET,
        "sufficient score: the cheapest run that reaches it is the best; none: no limit",
        special_values=(NO_TARGET,),
    )
    seeds: int = key(
        1,
        "maximum runs per suggestion, with different seeds; only promising ones get several",
        minimum=1,
        maximum=HELD_OUT_OFFSET,
    )
    seeds_score: str = key(
        MEAN,
        "how the scores of several seeds are combined: mean, median or worst",
        choices=(MEAN, MEDIAN, WORST),
    )
    confirm: int = key(
        -1,
        f"held-out seeds that retrain the best {TOP_RUNS} suggestions at the end; -1:"
        f" {DEFAULT_HELD_OUT_SEEDS} if these runs took up to {SHORT_RUN_SECONDS:g} seconds, else 0",
        minimum=-1,
        maximum=1000,
    )
    max_runs: int = key(1200, "number of runs to finish", minimum=1)
    max_suggestion_cost: float = key(
        3600.0, "largest expected training time of a suggested run, in seconds", above=0
    )
    downsample: int = key(5, "number of recorded points of a run's curve", minimum=1)
    early_stop_quantile: float = key(
        0.3,
        "quantile of other runs' scores below which a run stops early; unused by Protein",
        minimum=0,
        maximum=0.99,
    )
    gpus: int = key(0, "GPUs to use; 0: all", minimum=0)
    sweep_only: str = key(
        "", "comma-separated words: search only keys whose name contains one of them"
    )
    prune_pareto: bool = key(True, "")
    num_random_samples: int = key(10, "", minimum=0)
    num_keep_top_obs: int = key(5, "", minimum=0)
    suggestions_per_pareto: int = key(256, "", minimum=1)
    gp_training_iter: int = key(50, "", minimum=1)
    gp_max_obs: int = key(750, "", minimum=10)
    exploration: float = key(0.5, "", minimum=0, maximum=100)

    @property
    def searched_words(self) -> tuple[str, ...]:
        """Words of the setting ``sweep_only``, which select searched keys; empty for all."""
        return tuple(word.strip() for word in self.sweep_only.split(",") if word.strip())

    @property
    def stop_quantile(self) -> float:
        """Quantile of other runs' scores below which a run is stopped early; 0 with Protein.

        Protein chooses the lengths of runs from their curves. Stopping them early saved no cost for
        a given score (docs/decisions/0024-protein.md).
        """
        return 0.0 if self.method == PROTEIN else self.early_stop_quantile

    @property
    def sign(self) -> int:
        """Factor that makes higher scores better: 1 to maximize, -1 to minimize."""
        return -1 if self.goal == MINIMIZE else 1

    @property
    def target(self) -> float:
        """Sufficient score, beyond which the search sees no gain; infinity without a target.

        It is ``target_score`` times the sign.
        """
        return math.inf if isinstance(self.target_score, str) else self.sign * self.target_score

    def objective(self, score: float) -> float:
        """Convert a score to what the sweep maximizes: score times sign, at most the target."""
        return min(self.sign * float(score), self.target)


KEYS: dict[str, Key] = {field.name: field.metadata["key"] for field in fields(SweepSettings)}

# Ranges searched by PufferLib's default.ini (4.0 and 5.0): distribution, min, max, scale.
Range = tuple[str, float, float, str]

SHARED_RANGES: dict[str, Range] = {
    "train.total_timesteps": ("log_normal", 3e7, 1e11, "time"),
    "policy.hidden_size": ("uniform_pow2", 32, 1024, "auto"),
    "policy.num_layers": ("uniform", 1, 8, "auto"),
    "train.gamma": ("logit_normal", 0.8, 0.9999, "auto"),
    "train.gae_lambda": ("logit_normal", 0.2, 0.995, "auto"),
    "train.replay_ratio": ("uniform", 0.25, 4, "auto"),
    "train.vf_clip_coef": ("uniform", 0.01, 5, "auto"),
    "train.beta1": ("logit_normal", 0.5, 0.999, "auto"),
}
RANGES_4 = SHARED_RANGES | {
    "vec.num_buffers": ("uniform", 1, 8, "auto"),
    "train.horizon": ("uniform_pow2", 8, 1024, "auto"),
    "train.learning_rate": ("log_normal", 1e-5, 0.1, "0.5"),
    "train.ent_coef": ("log_normal", 1e-5, 0.2, "auto"),
    "train.vtrace_rho_clip": ("uniform", 0.1, 5, "auto"),
    "train.vtrace_c_clip": ("uniform", 0.1, 5, "auto"),
    "train.clip_coef": ("uniform", 0.01, 1, "auto"),
    "train.vf_coef": ("uniform", 0.1, 5, "auto"),
    "train.max_grad_norm": ("uniform", 0.1, 5, "auto"),
    "train.beta2": ("logit_normal", 0.9, 0.99999, "auto"),
    "train.eps": ("log_normal", 1e-14, 1e-4, "auto"),
    "train.prio_alpha": ("uniform", 0, 1, "auto"),
    "train.prio_beta0": ("uniform", 0, 1, "auto"),
}
RANGES_5 = SHARED_RANGES | {
    "vec.total_agents": ("uniform_pow2", 256, 16384, "auto"),
    "train.horizon": ("uniform_pow2", 32, 512, "auto"),
    "train.minibatch_size": ("uniform_pow2", 4096, 65536, "auto"),
    "train.learning_rate": ("log_normal", 1e-4, 1.0, "0.5"),
    "train.ent_coef": ("log_normal", 1e-5, 0.1, "auto"),
    "train.clip_coef": ("uniform", 0.1, 0.9, "auto"),
    "train.vf_coef": ("uniform", 0.1, 4, "auto"),
    "train.max_grad_norm": ("uniform", 0.1, 1.5, "auto"),
}


def default_ranges(config: Config) -> dict[str, Range]:
    """Return the ranges that a sweep searches by default, by key.

    For C environments they are the ranges of the PufferLib release that the configuration follows.
    For Python environments they surround the configured values, and the length of runs is fixed.
    """
    return _used_by_trainer(
        config, _ranges_around_values(config) if config.python else _release_ranges(config)
    )


def optional_ranges(config: Config) -> dict[str, Range]:
    """Return the ranges that are searched only if ``sweep_only`` names their keys."""
    if not config.python:
        return {}
    steps = config.train.total_timesteps
    length: Range = ("log_normal", _rounded(steps / 10), float(steps), "time")
    searched = default_ranges(config)
    optional = _used_by_trainer(config, _release_ranges(config) | {"train.total_timesteps": length})
    return {name: each for name, each in optional.items() if name not in searched}


def _release_ranges(config: Config) -> dict[str, Range]:
    """Return the default ranges of the PufferLib release that a configuration follows."""
    return RANGES_5 if config.facts.release == "5.0" else RANGES_4


def _ranges_around_values(config: Config) -> dict[str, Range]:
    """Return ranges to search around the configured values, for Python environments."""
    train = config.train
    gamma_gap = min(max(1 - train.gamma, 1e-4), 0.1)
    lambda_gap = min(max(1 - train.gae_lambda, 1e-3), 0.25)
    entropy = (train.ent_coef / 100, train.ent_coef * 10) if train.ent_coef > 0 else (1e-5, 0.01)
    rate = train.learning_rate
    minibatch = train.minibatch_size
    ranges: dict[str, Range] = {
        "train.learning_rate": ("log_normal", rate / 10, rate * 10, "auto"),
        "train.gamma": ("logit_normal", 1 - 10 * gamma_gap, 1 - gamma_gap / 10, "auto"),
        "train.gae_lambda": ("logit_normal", 1 - 4 * lambda_gap, 1 - lambda_gap / 10, "auto"),
        "train.ent_coef": ("log_normal", *entropy, "auto"),
        "train.clip_coef": ("uniform", train.clip_coef / 4, train.clip_coef * 2, "auto"),
        "train.replay_ratio": ("uniform", train.replay_ratio / 4, train.replay_ratio * 2, "auto"),
        "train.minibatch_size": ("uniform_pow2", max(1, minibatch / 2), minibatch * 4, "auto"),
        "train.horizon": ("uniform_pow2", max(2, train.horizon / 4), train.horizon * 2, "auto"),
    }
    return {
        name: (distribution, _rounded(low), _rounded(high), scale)
        for name, (distribution, low, high, scale) in ranges.items()
    }


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def _used_by_trainer(config: Config, ranges: dict[str, Range]) -> dict[str, Range]:
    """Return the given ranges without those of keys that the configured trainer doesn't use."""
    from puffer_mlx.ppo import optimizers  # imports MLX

    used = {f"train.{key}" for key in optimizers.from_config(config).reads}
    unused = {
        f"train.{key}" for name in OPTIMIZERS for key in optimizers.find_optimizer(name).reads
    } - used
    unused |= {*config.facts.unused}
    if not config.train.vtrace:
        unused |= {"train.vtrace_rho_clip", "train.vtrace_c_clip"}
    return {name: each for name, each in ranges.items() if name not in unused}
