"""Evaluation of a run's weights, while it trains (``base.eval_interval``) or after it.

While it trains: after an epoch that reaches a multiple of so many steps, and after the last one,
whole episodes are played (``playing/episodes.py``) in environments of their own, which are
made anew each time: the same ones with the same seeds, which no training environment has. So two
evaluations differ by the policy alone, and what one finds depends on the weights and on nothing
that came before: a run that goes on finds what it would have found. Training goes on as if there
had been none: it shares neither environments nor random keys with them, and with ``train.overlap``
nothing is under way.

After it, of runs without such evaluations, as PufferLib does:

puffer4: the run's own environments go on without training (``Trainer.evaluate``).
puffer5: new environments, seeded as those that were trained on; recurrent states are zero at first
and carried from rollout to rollout; actions are drawn. Rollouts of ``train.horizon`` steps, until
``base.eval_episodes`` episodes have ended, none for 0. Upstream goes on without end where episodes
have none, and exits where environments report no ``perf``. Here it ends when not one episode has
ended in as many steps as training took, and what environments report is what there is.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import mlx.core as mx

from puffer_mlx.checkpoint.environment_statistics import share
from puffer_mlx.config import Config
from puffer_mlx.config.fit import fit_buffers
from puffer_mlx.config.validation import multiples
from puffer_mlx.errors import UserError
from puffer_mlx.playing.episodes import (
    ENVIRONMENTS,
    MAX_STEPS,
    AgentStepper,
    Scores,
    environments_for,
    score,
)
from puffer_mlx.profiling.phases import Profiler
from puffer_mlx.rollout.act_functions import compile_act
from puffer_mlx.tracking.scores import EVALUATION
from puffer_mlx.training.collectors import make_collector
from puffer_mlx.training.epoch_logs import Logs, environment_logs, merge_means
from puffer_mlx.training.placement import Acting
from puffer_mlx.training.run import make_environments
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.vec.base import Environments, VecEnv

APART = 2**30  # from the training environments' seeds to those of evaluations


class Evaluator:
    """Evaluates a trainer's weights, while it trains and after that.

    Args:
        trainer: whose weights; evaluated between two of its steps.
        make: new environments of a configuration, which are closed here.
        alive: called often while an evaluation goes on, which tells nothing until its end.
    """

    def __init__(
        self,
        trainer: Trainer,
        make: Callable[[Config], Environments] = make_environments,
        alive: Callable[[], object] = lambda: None,
    ) -> None:
        self._trainer, self._make, self._alive = trainer, make, alive
        self._logs: Logs = {}
        self._evaluated = -1  # the epoch that they are of

    @property
    def score(self) -> float | None:
        """Of the trainer's weights as they are now, by ``[sweep] metric``.

        None if they haven't been evaluated, or no environment reports that number.
        """
        if self._evaluated != self._trainer.epoch:
            return None
        return self._logs.get(self._trainer.config.evaluation_metric)

    def after_epoch(self) -> Logs:
        """Evaluate if it is time to; what there is to add to the epoch's record.

        Raises:
            UserError: an environment failed; or ``base.stop_at_score`` is given, and episodes end
                without reporting the number that it is of.
        """
        trainer = self._trainer
        if not is_due(trainer.config, trainer.epoch):
            return {}
        began = time.perf_counter()
        logs = self._now()
        return {**logs, "perf/evaluation": time.perf_counter() - began}

    def after_training(self) -> Iterator[Logs]:
        """The last weights' evaluation: see ``evaluate``."""
        trainer = self._trainer
        if not trainer.config.base.eval_interval:
            for logs in evaluate(trainer, self._make):
                self._alive()
                yield logs
        elif not trainer.stop:
            logs = {f"env/{n.removeprefix(EVALUATION)}": x for n, x in self._now().items()}
            yield {"agent_steps": trainer.global_step, **logs}

    def _now(self) -> Logs:
        """The evaluation of the present weights, done once."""
        trainer, config = self._trainer, self._trainer.config
        if self._evaluated == trainer.epoch:
            return self._logs
        with contextlib.closing(self._make(settings(config, trainer.vec))) as environments:
            number, alive = config.base.eval_episodes, lambda *_: self._alive()
            stepper = stepper_of(trainer, environments)
            scores = score(stepper, number, max_steps=MAX_STEPS, progress=alive)
        self._logs, self._evaluated = logs_of(scores, config), trainer.epoch
        return self._logs


def stepper_of(trainer: Trainer, environments: Environments) -> AgentStepper:
    """A trainer's weights in an evaluation's environments, which get what training's know."""
    share(trainer.vec, environments)
    how = trainer.config.base.seed, trainer.config.base.eval_greedy
    return AgentStepper(trainer.policy, trainer.weights, environments, *how)


def is_due(config: Config, epoch: int) -> bool:
    """Whether there is an evaluation after so many epochs."""
    interval, steps = config.base.eval_interval, epoch * config.batch_size
    if not interval or not epoch:
        return False
    return epoch == config.epochs or steps // interval > (steps - config.batch_size) // interval


def reached(config: Config, score: float | None) -> bool:
    """Whether a run ends with an evaluation's score: ``base.stop_at_score``."""
    bound = config.base.stop_at_score
    if isinstance(bound, str) or score is None:
        return False
    return config.sign * (score - bound) >= 0


def reached_text(config: Config, score: float | None) -> str:
    """The fact that an evaluation's score has ``reached`` where the run ends."""
    name, bound = config.evaluation_metric, config.base.stop_at_score
    return f"{name} {score:.3f} has reached base.stop_at_score {bound:g}"


def settings(config: Config, vec: VecEnv) -> Config:
    """The configuration of an evaluation's environments.

    Args:
        config: the run's.
        vec: its environments, which tell how many agents there are in each.
    """
    total, agents = config.vec.total_agents, config.base.eval_agents
    each, uneven = divmod(vec.num_agents, vec.num_environments)
    if agents < 1 and not uneven:
        most = min(vec.num_environments, ENVIRONMENTS)
        agents = each * environments_for(config.base.eval_episodes, most, each)
    seed = (config.vec.seed + APART) % (2 * APART)
    vec_settings = replace(
        config.vec, total_agents=max(agents, 0) or total, num_buffers=1, seed=seed
    )
    return replace(config, vec=vec_settings, origins={}, notes=[])


def logs_of(scores: Scores, config: Config) -> Logs:
    """An evaluation's part of a record: means, the score's deviation, how many episodes.

    Raises:
        UserError: see ``Evaluator.after_epoch``.
    """
    summary = scores.summary()
    judged = config.evaluation_metric.removeprefix(EVALUATION)
    if summary and judged not in summary and config.base.stop_at_score != "none":
        raise UserError(
            f"base.stop_at_score is of {judged}, which {config.env_name} doesn't report",
            f"[sweep] metric = one of {', '.join(summary)}",
        )
    logs = {f"{EVALUATION}{key}": spread.mean for key, spread in summary.items()}
    if judged in summary:
        logs[f"{EVALUATION}{judged}_std"] = summary[judged].std
    logs[f"{EVALUATION}n"] = float(scores.count)
    if scores.unfinished:
        logs[f"{EVALUATION}unfinished"] = float(scores.unfinished)
    return logs


# ---- after training, as PufferLib ----------------------------------------------------------------


def evaluate(trainer: Trainer, make: Callable[[Config], VecEnv]) -> Iterator[Logs]:
    """Roll out a trainer's weights, until it is told to stop or knows enough.

    Args:
        trainer: after its last epoch.
        make: new environments of a configuration, which are closed here.

    Yields:
        After each rollout ``agent_steps`` and the means since the evaluation began, ``env/*``.
        puffer5's steps stay those of training.
    """
    if not trainer.config.facts.evaluates_apart:
        yield from trainer.evaluate()
    elif trainer.config.base.eval_episodes and not trainer.stop:
        config = evaluated(trainer.config)
        with contextlib.closing(make(config)) as environments:
            share(trainer.vec, environments)
            yield from _rollouts(trainer, config, environments)


def evaluated(config: Config) -> Config:
    """The configuration of puffer5's evaluation: its agents, in as many groups as they fill."""
    agents = config.base.eval_agents
    base = replace(config.base, reset_state=False)
    vec = replace(config.vec, total_agents=config.vec.total_agents if agents < 1 else agents)
    train = replace(config.train, overlap=False)
    evaluated = replace(config, base=base, vec=vec, train=train, origins={}, notes=[])
    fit_buffers(evaluated)
    return evaluated


def refuse_agents(config: Config, vec: VecEnv) -> None:
    """Refuse a number of agents for the evaluation that no environments have.

    Args:
        config: of the run.
        vec: its environments.

    Raises:
        UserError: it would be found out after training.
    """
    agents, each = config.base.eval_agents, vec.num_agents // vec.num_environments
    obeyed = config.facts.evaluates_apart or config.base.eval_interval
    if obeyed and agents > 0 and agents % each:
        message = f"base.eval_agents {agents} is not a multiple of an environment's {each} agents"
        raise UserError(message, multiples(agents, each))


def short_note(trainer: Trainer, record: Logs) -> str | None:
    """The line about an evaluation having ended before as many episodes as were asked for.

    Of puffer4 alone, and ppo as it is without ``base.eval_interval``, there is none.

    Args:
        trainer: that was evaluated.
        record: the last one of ``evaluate``.
    """
    config, ended = trainer.config, record.get("env/n", 0)
    if unfinished := record.get("env/unfinished"):
        return (
            f"the evaluation ended after {MAX_STEPS:,} steps of every agent: {unfinished:,.0f}"
            " environments had not ended their episodes, so long ones are missing"
        )
    if config.base.eval_interval:
        return None
    enough = ended >= config.base.eval_episodes
    if not config.facts.evaluates_apart or enough or trainer.stop:
        return None
    return (
        f"the evaluation ended after {ended:,.0f} of {config.base.eval_episodes:,} episodes: no"
        f" episode ended in {_patience(config):,} steps, as many as training took"
    )


def _patience(config: Config) -> int:
    """Steps, summed over agents, in which at least one episode has to end: those of training."""
    return config.epochs * config.batch_size


def _rollouts(trainer: Trainer, config: Config, vec: VecEnv) -> Iterator[Logs]:
    run, timer = compile_act(trainer.policy), Profiler(False).rollout
    placement = replace(trainer.placement, overlap=False)
    collector = make_collector(Acting(config, vec, trainer.policy, run), placement, timer)
    _, key = mx.random.split(mx.random.key(config.base.seed))  # as at the beginning of training
    total: Logs = {}
    idle = 0  # steps since an episode ended
    while total.get("env/n", 0) < config.base.eval_episodes and not trainer.stop:
        key = collector.begin(trainer.weights, key)
        logs = environment_logs(collector.take().logs)
        total = merge_means(total, logs)
        idle = 0 if logs else idle + vec.num_agents * config.train.horizon
        yield {"agent_steps": trainer.global_step, **total}
        if idle >= _patience(trainer.config):
            return
