"""Evaluate a run's weights during training (``base.eval_interval``) or after it.

During training: after each epoch that reaches a multiple of the interval, and after the last one,
whole episodes are played (``evaluation/episodes.py``) in separate environments. Every evaluation
creates them again with the same seeds, which no training environment uses. The result therefore
depends on the weights only, also in resumed runs. Training is unaffected: it shares no environments
and no random keys with the evaluation, and with ``train.overlap`` no rollout is in progress.

After training, for runs without such evaluations, as PufferLib does:

puffer4: the run's own environments are stepped without training (``Trainer.evaluate``).
puffer5: new environments with the seeds of the training environments. Recurrent states start at
zero and are carried from rollout to rollout; actions are sampled. Rollouts of ``train.horizon``
steps are repeated until ``base.eval_episodes`` episodes have ended (0: no evaluation). Upstream
never stops without episode ends, and exits without ``perf``. Here the evaluation stops if no
episode ends in as many steps as training took, and ``perf`` isn't needed.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import mlx.core as mx

from puffer_mlx.checkpoint.environment_statistics import copy_statistics
from puffer_mlx.config import Config
from puffer_mlx.config.fit import fit_buffers
from puffer_mlx.config.validation import multiples
from puffer_mlx.errors import UserError
from puffer_mlx.evaluation.episodes import (
    ENVIRONMENTS,
    MAX_STEPS,
    AgentStepper,
    Scores,
    environments_for,
    score,
)
from puffer_mlx.profiling.phases import Profiler
from puffer_mlx.tracking.scores import EVALUATION
from puffer_mlx.training.collectors import make_collector
from puffer_mlx.training.epoch_logs import Logs, environment_logs, merge_means
from puffer_mlx.training.placement import Acting
from puffer_mlx.training.run import make_separate_environments
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.vec.base import Environments, VecEnv

APART = 2**30  # offset between the seeds of training and of evaluation environments


class Evaluator:
    """Evaluate a trainer's weights during and after training.

    Args:
        trainer: Trainer, called between two of its steps.
        make: Creates environments from a configuration. They are closed here.
        heartbeat: Heartbeat, called often during an evaluation.
    """

    def __init__(
        self,
        trainer: Trainer,
        make: Callable[[Config], Environments] = make_separate_environments,
        heartbeat: Callable[[], object] = lambda: None,
    ) -> None:
        self._trainer = trainer
        self._make = make
        self._heartbeat = heartbeat
        self._logs: Logs = {}
        self._evaluated = -1  # epoch of the logs

    @property
    def score(self) -> float | None:
        """Score of the current weights: the ``[sweep] metric``.

        None before the weights are evaluated, and for environments that don't report the metric.
        """
        if self._evaluated != self._trainer.epoch:
            return None
        return self._logs.get(self._trainer.config.evaluation_metric)

    def after_epoch(self) -> Logs:
        """Evaluate if due. Returns entries for the epoch's record.

        Raises:
            UserError: If an environment fails, or if ``base.stop_at_score`` is set and episodes
                don't report its metric.
        """
        trainer = self._trainer
        if not is_due(trainer.config, trainer.epoch):
            return {}
        began = time.perf_counter()
        logs = self._now()
        return {**logs, "perf/evaluation": time.perf_counter() - began}

    def after_training(self) -> Iterator[Logs]:
        """Yield the evaluation of the last weights; see ``evaluate``."""
        trainer = self._trainer
        if not trainer.config.base.eval_interval:
            for logs in evaluate(trainer, self._make):
                self._heartbeat()
                yield logs
        elif not trainer.stop:
            logs = {f"env/{n.removeprefix(EVALUATION)}": x for n, x in self._now().items()}
            yield {"agent_steps": trainer.global_step, **logs}

    def _now(self) -> Logs:
        """Return the evaluation of the current weights, computed once per epoch."""
        trainer = self._trainer
        config = self._trainer.config
        if self._evaluated == trainer.epoch:
            return self._logs
        with contextlib.closing(self._make(settings(config, trainer.vec))) as environments:
            scores = score(
                stepper_of(trainer, environments),
                config.base.eval_episodes,
                max_steps=MAX_STEPS,
                progress=lambda *_: self._heartbeat(),
            )
        self._logs = logs_of(scores, config)
        self._evaluated = trainer.epoch
        return self._logs


def stepper_of(trainer: Trainer, environments: Environments) -> AgentStepper:
    """Return a stepper of the trainer's weights in evaluation environments.

    The environments get the statistics of the training environments.
    """
    copy_statistics(trainer.vec, environments)
    how = trainer.config.base.seed, trainer.config.base.eval_greedy
    return AgentStepper(trainer.policy, trainer.weights, environments, *how)


def is_due(config: Config, epoch: int) -> bool:
    """Return True if an epoch ends with an evaluation."""
    interval = config.base.eval_interval
    steps = epoch * config.batch_size
    if not interval or not epoch:
        return False
    return epoch == config.epochs or steps // interval > (steps - config.batch_size) // interval


def target_reached(config: Config, score: float | None) -> bool:
    """Return True if a score reaches ``base.stop_at_score``, which ends the run."""
    bound = config.base.stop_at_score
    if isinstance(bound, str) or score is None:
        return False
    return config.sign * (score - bound) >= 0


def target_message(config: Config, score: float | None) -> str:
    """Return a message that the score has reached ``base.stop_at_score``."""
    name = config.evaluation_metric
    bound = config.base.stop_at_score
    return f"{name} {score:.3f} has reached base.stop_at_score {bound:g}"


def settings(config: Config, vec: VecEnv) -> Config:
    """Return the configuration of the evaluation environments.

    Args:
        config: Configuration of the run.
        vec: Training environments, used for the number of agents in each.
    """
    total = config.vec.total_agents
    agents = config.base.eval_agents
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
    """Return an evaluation's record: means, standard deviation of the score, number of episodes.

    Raises:
        UserError: If the metric of ``base.stop_at_score`` isn't reported.
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
    """Roll out a trainer's weights until the evaluation is complete or the trainer is stopped.

    Args:
        trainer: Trainer after its last epoch.
        make: Creates environments from a configuration. They are closed here.

    Yields:
        After each rollout: ``agent_steps`` and the means since the evaluation began, ``env/*``.
        With puffer5, ``agent_steps`` stays at its value after training.
    """
    if not trainer.config.facts.evaluates_apart:
        yield from trainer.evaluate()
    elif trainer.config.base.eval_episodes and not trainer.stop:
        config = evaluated(trainer.config)
        with contextlib.closing(make(config)) as environments:
            copy_statistics(trainer.vec, environments)
            yield from _rollouts(trainer, config, environments)


def evaluated(config: Config) -> Config:
    """Return the configuration of puffer5's evaluation, with its agents and groups."""
    agents = config.base.eval_agents
    base = replace(config.base, reset_state=False)
    vec = replace(config.vec, total_agents=config.vec.total_agents if agents < 1 else agents)
    train = replace(config.train, overlap=False)
    evaluated = replace(config, base=base, vec=vec, train=train, origins={}, notes=[])
    fit_buffers(evaluated)
    return evaluated


def refuse_agents(config: Config, vec: VecEnv) -> None:
    """Check that ``base.eval_agents`` fills whole environments.

    Args:
        config: Configuration of the run.
        vec: Environments of the run.

    Raises:
        UserError: If it doesn't. Without this check the run would fail only after training.
    """
    agents = config.base.eval_agents
    each = vec.num_agents // vec.num_environments
    obeyed = config.facts.evaluates_apart or config.base.eval_interval
    if obeyed and agents > 0 and agents % each:
        message = f"base.eval_agents {agents} is not a multiple of an environment's {each} agents"
        raise UserError(message, multiples(agents, each))


def short_note(trainer: Trainer, record: Logs) -> str | None:
    """Return a message if the evaluation stopped before the requested episodes, else None.

    puffer4, and ppo without ``base.eval_interval``, never get the message.

    Args:
        trainer: Evaluated trainer.
        record: Last record of ``evaluate``.
    """
    config = trainer.config
    ended = record.get("env/n", 0)
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
    """Return the steps, summed over agents, after which an episode must have ended."""
    return config.epochs * config.batch_size


def _rollouts(trainer: Trainer, config: Config, vec: VecEnv) -> Iterator[Logs]:
    timer = Profiler(False).rollout
    placement = replace(trainer.placement, overlap=False)
    collector = make_collector(Acting(config, vec, trainer.policy), placement, timer)
    _, key = mx.random.split(mx.random.key(config.base.seed))  # as at the start of training
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
