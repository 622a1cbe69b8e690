"""The one place where environments, a policy and a trainer become a run, and where it gets files.

    with Run.open(config) as run:
        for logs in run.trainer: ...

The command, programs, benchmarks and checks train by it. It leaves nothing behind unless ``write``
or ``track`` is called.
"""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from mlx import nn

from puffer_mlx import checkpoint, vec
from puffer_mlx.checkpoint.environment_statistics import restore_statistics
from puffer_mlx.checkpoint.folder import new_run
from puffer_mlx.checkpoint.weight_files import load_weights
from puffer_mlx.config import Config
from puffer_mlx.config.memory_needs import refuse_training
from puffer_mlx.machines import share
from puffer_mlx.machines.single_process import SINGLE_PROCESS, SingleProcess
from puffer_mlx.policy.actor_critic import actor_critic
from puffer_mlx.policy.policy import Policy
from puffer_mlx.ppo import optimizers
from puffer_mlx.system.devices import training_memory
from puffer_mlx.system.files import relative
from puffer_mlx.tracking.formats import further_log
from puffer_mlx.tracking.json_lines import JsonLines, log_path
from puffer_mlx.tracking.run_log import RunLog
from puffer_mlx.tracking.tracked_run import Trackers, last_step, tracker_names
from puffer_mlx.training import placement
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.vec.base import Environments


class Run(contextlib.ExitStack):
    """A run: made by ``open``, closed at the end of a ``with`` or by ``close``.

    Attributes:
        trainer: with its configuration, environments, policy and placement.
        resumed: the checkpoint that it goes on from; None if it begins.
        state: what was saved with that.
        exact: whether the environments go on from there, too.
        home: the working directory at the start; files are found and written from there.
        files: closes what is written and told; ``close`` does that before it closes environments.
        folder: where checkpoints are; ``write`` sets this and the following.
        keeper: writes the checkpoints.
        log: of the epochs.
        trackers: told of the epochs; ``track`` sets them, too.
    """

    trainer: Trainer
    resumed: checkpoint.Checkpoint | None
    state: checkpoint.State | None
    exact: bool = False
    home: Path
    files: contextlib.ExitStack
    folder: Path
    keeper: checkpoint.CheckpointManager
    log: JsonLines
    trackers: Trackers

    @classmethod
    def open(
        cls,
        config: Config,
        environments: Any = None,
        policy: Policy | nn.Module | None = None,
        *,
        weights: Any = None,
        resumed: checkpoint.Checkpoint | None = None,
        schedule: Callable[[float], float] | None = None,
        ranks: SingleProcess = SINGLE_PROCESS,
        look: Callable[[Config, Environments], object] = lambda *_: None,
    ) -> Self:
        """Put a run together, up to its first epoch or the next one.

        Args:
            config: a valid configuration.
            environments: the caller's, who closes them; None: those of the configuration.
            policy: its parts, or a module (``policy/actor_critic.py``); None: as configured.
            weights: initial ones, or their file; None: drawn from ``base.seed``.
            resumed: the checkpoint to go on from.
            schedule: see ``Trainer``.
            ranks: see ``Trainer``.
            look: is shown configuration and environments before the trainer is made.

        Raises:
            UserError: the configuration, the environments, the policy or a file isn't usable.
        """
        with contextlib.ExitStack() as stack:
            run = stack.enter_context(cls())
            run.home = Path.cwd()  # environments may change it
            if resumed:
                resumed = resumed._replace(folder=run.home / resumed.folder)
            if environments is None:
                kept = optimizers.state_size(optimizers.from_config(config))
                own = ranks.own(config)
                # Before environments are made: they may allocate as much.
                refuse_training(own, None, kept, training_memory())
                cores = placement.rollout_cores(config)
                environments = run.enter_context(share.make_environments(config, ranks, cores))
            look(config, environments)
            path = run.path(weights) if isinstance(weights, Path) else None
            run.resumed, run.state = resumed, None
            if resumed:
                path = run.path(resumed.folder) / checkpoint.WEIGHTS
                run.state = checkpoint.load_state(path.parent)
            if path:
                restore_statistics(environments, path)
            if resumed:
                config = checkpoint.encoder_as_trained(config, resumed.spec, environments.spec)
            if not isinstance(policy, Policy | None):
                policy = actor_critic(policy, environments.spec, config)
            first = None if path else weights
            run.trainer = trainer = Trainer(config, environments, policy, first, run.state, ranks)
            trainer.schedule = schedule
            if resumed and run.state:
                run.exact = trainer.restore(resumed.weights, run.state)
            elif path:
                trainer.weights = load_weights(path, trainer.weights)
            run.files = run.enter_context(contextlib.ExitStack())
            stack.pop_all()
            return run

    def path(self, path: Path) -> Path:
        """Return a path of ``home`` as it is reached now, relative if possible, for messages."""
        return Path(relative(self.home / path))

    def write(self) -> None:
        """Begin to write: the folder, held until the run is closed, the log and the trackers'.

        Raises:
            UserError: a file can't be written.
        """
        config, resumed, enter = self.trainer.config, self.resumed, self.files.enter_context
        self.folder = resumed.folder.parent if resumed else enter(new_run(config, self.home))
        kept = resumed.folder if resumed else None
        self.keeper = checkpoint.CheckpointManager(self.folder, config, kept)
        record = self._record(self.folder.name)
        logged = last_step(record.path) if resumed else None  # before that is cut off
        # Saved without a log, in a notebook say, it has no position.
        position = self.state.numbers.get("log_position", 0) if self.state else None
        self.log = JsonLines(record.path, position)
        enter(further_log(record))
        step = self.trainer.global_step if resumed else None
        self.trackers = enter(Trackers(record, tracker_names(config), step, logged))
        enter(contextlib.closing(self.log))

    def track(self) -> None:
        """Begin to tell trackers, and write no files; the run is named by its time, too."""
        record = self._record(str(time.time_ns() // 1_000_000))
        self.trackers = self.files.enter_context(Trackers(record, tracker_names(record.config)))

    def _record(self, name: str) -> RunLog:
        config = self.trainer.config
        path = self.home / log_path(config, name)
        return RunLog(config, name, path, self.trainer.placement.overlap)


def make_environments(config: Config) -> Environments:
    """Environments apart from training's, for an evaluation say."""
    return vec.make(config, placement.rollout_cores(config))
