"""Evaluate a run's weights during training (``base.eval_interval``) or after it.

During training: after each epoch that reaches a multiple of the interval, and after the last one,
complete episodes are played (``evaluation/episodes.py``) in separate environments. Every evaluation
creates them again with the same seeds, which no training environment uses. The result therefore
depends only on the weights, also in resumed runs. Evaluations don't affect training: they use
separate environments and random keys, and with ``train.overlap`` no rollout is in progress.

Runs without these evaluations are evaluated after training, as PufferLib does. With puffer4, the
run's environments are stepped further without training (``Trainer.evaluate``). With puffer5, new
environments get the seeds of the training environments. Recurrent states start at zero and continue
from rollout to rollout, and actions are sampled. Rollouts of ``train.horizon`` steps are repeated
until ``base.eval_episodes`` episodes have ended (0: no evaluation). PufferLib never stops if no
episode ends, and exits if ``perf`` isn't reported. Here the evaluation stops if no episode ends in
as many steps as training took, and ``perf`` isn't needed.
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
    MAX_ENVIRONMENTS,
    MAX_STEPS,
    AgentStepper,
    Scores,
    environments_needed,
    score_episodes,
)
from puffer_mlx.profiling.phases import Profiler
from puffer_mlx.tracking.scores import EVALUATION_PREFIX
from puffer_mlx.training.collectors import make_collector
from puffer_mlx.training.epoch_logs import Logs, environment_logs, merge_means
from puffer_mlx.training.placement import Acting
from puffer_mlx.training.run import make_separate_environments
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.vec.base import Environments, VecEnv

SEED_OFFSET = 2**30  # offset between the seeds of training and of evaluation environments


class Evaluator:
    """Evaluate a trainer's weights during and after training.

    Args:
        trainer: Trainer of the run.
        make: Creates environments from a configuration. They are closed here.
        heartbeat: Called often during an evaluation, to show that the process is alive.
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
        self._evaluated_epoch = -1  # epoch of the logs

    @property
    def score(self) -> float | None:
        """Score of the trainer's current weights in their evaluation: the ``[sweep] metric``.

        It is None before these weights are evaluated, and if the metric isn't reported.
        """
        if self._evaluated_epoch != self._trainer.epoch:
            return None
        return self._logs.get(self._trainer.config.evaluation_metric)

    def after_epoch(self) -> Logs:
        """Evaluate the trainer's weights if an evaluation is due after this epoch.

        Returns:
            Entries for the epoch's record, empty without an evaluation.

        Raises:
            UserError: If an environment fails, or if ``base.stop_at_score`` is set and episodes
                don't report its metric.
        """
        trainer = self._trainer
        if not evaluation_is_due(trainer.config, trainer.epoch):
            return {}
        began = time.perf_counter()
        logs = self._evaluate_once()
        return {**logs, "perf/evaluation": time.perf_counter() - began}

    def after_training(self) -> Iterator[Logs]:
        """Evaluate the trainer's final weights after training. Yields records of the results."""
        trainer = self._trainer
        if not trainer.config.base.eval_interval:
            for logs in evaluate_after_training(trainer, self._make):
                self._heartbeat()
                yield logs
        elif not trainer.stop:
            logs = {
                f"env/{n.removeprefix(EVALUATION_PREFIX)}": x
                for n, x in self._evaluate_once().items()
            }
            yield {"agent_steps": trainer.global_step, **logs}

    def _evaluate_once(self) -> Logs:
        """Evaluate the trainer's current weights, at most once per epoch. Returns the metrics."""
        trainer = self._trainer
        config = trainer.config
        if self._evaluated_epoch == trainer.epoch:
            return self._logs
        with contextlib.closing(self._make(evaluation_config(config, trainer.vec))) as environments:
            scores = score_episodes(
                trained_stepper(trainer, environments),
                config.base.eval_episodes,
                max_steps=MAX_STEPS,
                progress=lambda *_: self._heartbeat(),
            )
        self._logs = evaluation_logs(scores, config)
        self._evaluated_epoch = trainer.epoch
        return self._logs


def trained_stepper(trainer: Trainer, environments: Environments) -> AgentStepper:
    """Return an ``AgentStepper`` that plays evaluation environments with a trainer's weights.

    The environments get the normalization statistics of the training environments.
    """
    copy_statistics(trainer.vec, environments)
    base = trainer.config.base
    return AgentStepper(trainer.policy, trainer.weights, environments, base.seed, base.eval_greedy)


def evaluation_is_due(config: Config, epoch: int) -> bool:
    """Return True if a run's weights must be evaluated after an epoch (``base.eval_interval``)."""
    interval = config.base.eval_interval
    steps = epoch * config.batch_size
    if not interval or not epoch:
        return False
    reaches_multiple = steps // interval > (steps - config.batch_size) // interval
    return epoch == config.epochs or reaches_multiple


def target_reached(config: Config, score: float | None) -> bool:
    """Return True if an evaluation's score reaches ``base.stop_at_score``, which ends the run."""
    target = config.base.stop_at_score
    if isinstance(target, str) or score is None:  # the text is "none"
        return False
    return config.sign * (score - target) >= 0


def target_message(config: Config, score: float | None) -> str:
    """Return a message that an evaluation's score has reached ``base.stop_at_score``."""
    name = config.evaluation_metric
    target = config.base.stop_at_score
    return f"{name} {score:.3f} has reached base.stop_at_score {target:g}"


def evaluation_config(config: Config, vec: VecEnv) -> Config:
    """Return the configuration of the environments for evaluations during a run.

    Args:
        config: Configuration of the run.
        vec: Training environments. They determine the number of agents per environment.
    """
    total = config.vec.total_agents
    agents = config.base.eval_agents
    agents_each, remainder = divmod(vec.num_agents, vec.num_environments)
    if agents < 1 and not remainder:
        limit = min(vec.num_environments, MAX_ENVIRONMENTS)
        episodes = config.base.eval_episodes
        agents = agents_each * environments_needed(episodes, limit, agents_each)
    if agents < 1:
        agents = total
    seed = (config.vec.seed + SEED_OFFSET) % (2 * SEED_OFFSET)
    vec_settings = replace(config.vec, total_agents=agents, num_buffers=1, seed=seed)
    return replace(config, vec=vec_settings, origins={}, notes=[])


def evaluation_logs(scores: Scores, config: Config) -> Logs:
    """Return an evaluation's metrics by name: means, deviation of the score, number of episodes.

    Raises:
        UserError: If the metric of ``base.stop_at_score`` isn't reported.
    """
    summary = scores.summary()
    metric = config.evaluation_metric.removeprefix(EVALUATION_PREFIX)
    if summary and metric not in summary and config.base.stop_at_score != "none":
        raise UserError(
            f"base.stop_at_score needs {metric}, which {config.env_name} doesn't report",
            f"[sweep] metric = one of {', '.join(summary)}",
        )
    logs = {f"{EVALUATION_PREFIX}{key}": spread.mean for key, spread in summary.items()}
    if metric in summary:
        logs[f"{EVALUATION_PREFIX}{metric}_std"] = summary[metric].std
    logs[f"{EVALUATION_PREFIX}n"] = float(scores.count)
    if scores.unfinished:
        logs[f"{EVALUATION_PREFIX}unfinished"] = float(scores.unfinished)
    return logs


# ---- after training, as PufferLib ----------------------------------------------------------------


def evaluate_after_training(trainer: Trainer, make: Callable[[Config], VecEnv]) -> Iterator[Logs]:
    """Evaluate a trainer's final weights with rollouts, as PufferLib does after training.

    Rollouts are repeated until the evaluation is complete or the trainer is stopped.

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
        config = puffer5_evaluation_config(trainer.config)
        with contextlib.closing(make(config)) as environments:
            copy_statistics(trainer.vec, environments)
            yield from _evaluation_rollouts(trainer, config, environments)


def puffer5_evaluation_config(config: Config) -> Config:
    """Return the configuration for evaluating after training with the algorithm puffer5.

    The number of agents is ``base.eval_agents``.
    """
    agents = config.base.eval_agents
    base = replace(config.base, reset_state=False)
    vec = replace(config.vec, total_agents=config.vec.total_agents if agents < 1 else agents)
    train = replace(config.train, overlap=False)
    result = replace(config, base=base, vec=vec, train=train, origins={}, notes=[])
    fit_buffers(result)
    return result


def check_eval_agents(config: Config, vec: VecEnv) -> None:
    """Check before training that ``base.eval_agents`` is a number of complete environments.

    Args:
        config: Configuration of the run.
        vec: Environments of the run.

    Raises:
        UserError: If ``base.eval_agents`` isn't a multiple of the agents per environment.
    """
    agents = config.base.eval_agents
    each = vec.num_agents // vec.num_environments
    is_used = config.facts.evaluates_apart or config.base.eval_interval
    if is_used and agents > 0 and agents % each:
        message = f"base.eval_agents {agents} is not a multiple of an environment's {each} agents"
        raise UserError(message, multiples(agents, each))


def incomplete_note(trainer: Trainer, record: Logs) -> str | None:
    """Return a message if an evaluation after training ended too early; None if it is complete.

    It ends early if environments don't end their episodes.

    There is no message for puffer4, and for ppo without ``base.eval_interval``.

    Args:
        trainer: Evaluated trainer.
        record: Last record of ``evaluate_after_training``.
    """
    config = trainer.config
    episodes = record.get("env/n", 0)
    if unfinished := record.get("env/unfinished"):
        return (
            f"the evaluation ended after {MAX_STEPS:,} steps of every agent: {unfinished:,.0f}"
            " environments had unfinished episodes, so long episodes are missing"
        )
    if config.base.eval_interval:
        return None
    complete = episodes >= config.base.eval_episodes
    if not config.facts.evaluates_apart or complete or trainer.stop:
        return None
    return (
        f"the evaluation ended after {episodes:,.0f} of {config.base.eval_episodes:,} episodes: no"
        f" episode ended in {_max_steps_without_end(config):,} steps, as many as training took"
    )


def _max_steps_without_end(config: Config) -> int:
    """Return the number of steps after which an evaluation stops if no episode ends.

    The steps are summed over agents.
    """
    return config.epochs * config.batch_size


def _evaluation_rollouts(trainer: Trainer, config: Config, vec: VecEnv) -> Iterator[Logs]:
    """Play rollouts with a trainer's weights to evaluate them. Yields the means after each."""
    timer = Profiler(False).rollout
    placement = replace(trainer.placement, overlap=False)
    collector = make_collector(Acting(config, vec, trainer.policy), placement, timer)
    _, key = mx.random.split(mx.random.key(config.base.seed))  # as at the start of training
    total: Logs = {}
    steps_without_end = 0
    while total.get("env/n", 0) < config.base.eval_episodes and not trainer.stop:
        key = collector.begin(trainer.weights, key)
        logs = environment_logs(collector.take().logs)
        total = merge_means(total, logs)
        steps_without_end += vec.num_agents * config.train.horizon
        steps_without_end = 0 if logs else steps_without_end
        yield {"agent_steps": trainer.global_step, **total}
        if steps_without_end >= _max_steps_without_end(trainer.config):
            return
