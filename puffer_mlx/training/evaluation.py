"""How good a run's last weights are, told after training as PufferLib tells it.

Where the run is evaluated while it trains (``while_training.py``), that tells of its last weights,
too. Else:

puffer4: the run's own environments go on without training (``Trainer.evaluate``).
puffer5: new environments, seeded as those that were trained on; recurrent states are zero at first
and carried from rollout to rollout; actions are drawn. Rollouts of ``train.horizon`` steps, until
``base.eval_episodes`` episodes have ended, none for 0. Upstream goes on without end where episodes
have none, and exits where environments report no ``perf``. Here it ends when not one episode has
ended in as many steps as training took, and what environments report is what there is.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace

import mlx.core as mx

from puffer_mlx.checkpoint.environment_statistics import share
from puffer_mlx.config import Config
from puffer_mlx.config.fit import fit_buffers
from puffer_mlx.config.validation import multiples
from puffer_mlx.errors import UserError
from puffer_mlx.ppo.update import compile_update
from puffer_mlx.profiling.phases import Profiler
from puffer_mlx.rollout.whole_episodes import MAX_STEPS
from puffer_mlx.training.collector import Collector
from puffer_mlx.training.epoch_logs import Logs, environment_logs, merge_means
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.vec.base import VecEnv


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
    made = replace(config, base=base, vec=vec, train=train, origins={}, notes=[])
    fit_buffers(made)
    return made


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
    run, timer = compile_update(trainer.policy), Profiler(False).rollout
    placement = replace(trainer.placement, overlap=False)
    collector = Collector(config, vec, trainer.policy, run, placement, timer)
    _, key = mx.random.split(mx.random.key(config.base.seed))  # as at the beginning of training
    total: Logs = {}
    idle = 0  # steps since an episode ended
    while total.get("env/n", 0) < config.base.eval_episodes and not trainer.stop:
        key = collector.begin(trainer.weights, key)
        found = environment_logs(collector.take().logs)
        total = merge_means(total, found)
        idle = 0 if found else idle + vec.num_agents * config.train.horizon
        yield {"agent_steps": trainer.global_step, **total}
        if idle >= _patience(trainer.config):
            return
