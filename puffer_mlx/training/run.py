"""Create a training run from a configuration: environments, policy, trainer, output files.

    with Run.open(config) as run:
        for logs in run.trainer: ...

The command line, the library, benchmarks and checks all train with a ``Run``. It writes files only
after ``write``, and uses trackers only after ``write`` or ``track``.
"""

import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from mlx import nn

from puffer_mlx import checkpoint, vec
from puffer_mlx.checkpoint.environment_statistics import current_statistics, restore_statistics
from puffer_mlx.checkpoint.folder import new_run
from puffer_mlx.checkpoint.weight_files import load_weights
from puffer_mlx.config import Config
from puffer_mlx.config.memory_needs import refuse_large_training
from puffer_mlx.distributed import shards
from puffer_mlx.distributed.single_process import SINGLE_PROCESS, SingleProcess
from puffer_mlx.policy.actor_critic import actor_critic
from puffer_mlx.policy.policy import Policy
from puffer_mlx.ppo import optimizers
from puffer_mlx.system.devices import training_memory
from puffer_mlx.system.files import relative
from puffer_mlx.tracking.json_lines import LogFile, log_path
from puffer_mlx.tracking.tracked_run import RunContext, Trackers, last_step_in_log, tracker_names
from puffer_mlx.training import placement
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.vec.base import Environments

EVALUATED_SCORE = "evaluated"  # name of the evaluation score in a checkpoint's state


class Run(contextlib.ExitStack):
    """A training run. Create it with ``open``; close it with ``with`` or ``close``.

    Attributes:
        trainer: Trainer of the run.
        resumed: Checkpoint from which the run is resumed, or None for a new run.
        state: Training state from that checkpoint.
        continues_episodes: True if a resumed run continues the episodes of the saved environments,
            False if they start new episodes.
        home: Working directory at the start, the base of relative paths.
        files: Open files and trackers, closed before the environments.

    Attributes that ``write`` sets:
        folder: Folder of the run's checkpoints.
        checkpoints: Manager of these checkpoints.
        log: Log file of the epochs.
        trackers: Trackers that receive the log records, also set by ``track``.
    """

    trainer: Trainer
    resumed: checkpoint.Checkpoint | None
    state: checkpoint.SavedState | None
    continues_episodes: bool = False
    home: Path
    files: contextlib.ExitStack
    folder: Path
    checkpoints: checkpoint.CheckpointManager
    log: LogFile
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
        schedules: Mapping[str, Callable[[float], float]] | None = None,
        ranks: SingleProcess = SINGLE_PROCESS,
        check_environments: Callable[[Config, Environments], object] = lambda *_: None,
    ) -> Self:
        """Create a new or resumed run that is ready for its next epoch.

        Args:
            config: A valid configuration.
            environments: Environments, which the caller closes. None creates them from ``config``.
            policy: A policy or a module (``policy/actor_critic.py``). None creates a new policy.
            weights: Initial weights or their file. None initializes them from ``base.seed``.
            resumed: Checkpoint to resume from.
            schedules: Custom schedules by key: see ``Trainer``.
            ranks: Processes that train together.
            check_environments: Called with configuration and environments before the trainer is
                created.

        Raises:
            UserError: If the configuration, the environments, the policy or a file can't be used.
        """
        # ``stack`` closes the run if an exception is raised before the run is complete.
        with contextlib.ExitStack() as stack:
            run = stack.enter_context(cls())
            run.home = Path.cwd()  # Environments may change the working directory.
            if resumed:
                resumed = resumed._replace(folder=run.home / resumed.folder)
            if environments is None:
                environments = run.enter_context(_make_shard(config, ranks))
            check_environments(config, environments)
            path = run.path(weights) if isinstance(weights, Path) else None
            run.resumed = resumed
            run.state = None
            if resumed:
                path = run.path(resumed.folder) / checkpoint.WEIGHTS
                run.state = checkpoint.load_state(path.parent)
            if path:
                restore_statistics(environments, path)
            if resumed:
                config = checkpoint.encoder_as_trained(config, resumed.spec, environments.spec)
            if not isinstance(policy, Policy | None):
                policy = actor_critic(policy, environments.spec, config)
            initial = None if path else weights
            trainer = Trainer(config, environments, policy, initial, run.state, ranks)
            run.trainer = trainer
            trainer.schedules = dict(schedules or {})
            if resumed and run.state:
                run.continues_episodes = trainer.restore(resumed.weights, run.state)
            elif path:
                trainer.weights = load_weights(path, trainer.weights)
            run.files = run.enter_context(contextlib.ExitStack())
            stack.pop_all()
            return run

    def path(self, path: Path) -> Path:
        """Return a path of the run, relative to the current folder if possible."""
        return Path(relative(self.home / path))

    def write(self) -> None:
        """Open the run's folder, log and trackers, until the run is closed.

        Raises:
            UserError: If a file can't be written.
        """
        config = self.trainer.config
        resumed = self.resumed
        enter = self.files.enter_context
        self.folder = resumed.folder.parent if resumed else enter(new_run(config, self.home))
        checkpoint_folder = resumed.folder if resumed else None
        self.checkpoints = checkpoint.CheckpointManager(self.folder, config, checkpoint_folder)
        run_log = self._run_log(self.folder.name)
        # Read the step before ``LogFile`` removes the records after the checkpoint.
        last_logged_step = last_step_in_log(run_log.path) if resumed else None
        # A checkpoint saved without a log (in a notebook) has no log position.
        position = self.state.values.get("log_position", 0) if self.state else None
        self.log = LogFile(run_log.path, position)
        step = self.trainer.global_step if resumed else None
        self.trackers = enter(Trackers(run_log, tracker_names(config), step, last_logged_step))
        enter(contextlib.closing(self.log))

    def save(self, score: float | None, resumable: bool = True) -> Path:
        """Write a checkpoint of the last complete epoch, after ``write``. Returns its folder.

        Args:
            score: Score of the weights in an evaluation. None without an evaluation.
            resumable: True to save the training state too, False to save only the weights.

        Raises:
            UserError: If the checkpoint can't be written.
        """
        trainer = self.trainer
        step = trainer.epoch * trainer.config.batch_size
        weights = trainer.weights
        state = trainer.state() if resumable else None
        if state:
            state.values["log_position"] = self.log.position
            if score is not None:
                state.values[EVALUATED_SCORE] = score
        statistics = current_statistics(trainer.vec)
        return self.checkpoints.save(
            step, trainer.vec.spec, trainer.policy, weights, state, statistics
        )

    def track(self) -> None:
        """Open trackers for a run that writes no files. The run's name is the current time."""
        run_log = self._run_log(str(time.time_ns() // 1_000_000))
        self.trackers = self.files.enter_context(Trackers(run_log, tracker_names(run_log.config)))

    def _run_log(self, name: str) -> RunContext:
        """Return the description of the run that its trackers read. ``name`` is the run's name."""
        config = self.trainer.config
        path = self.home / log_path(config, name)
        return RunContext(config, name, path, self.trainer.placement.overlap)


def _make_shard(config: Config, ranks: SingleProcess) -> Any:
    """Create this process's environments, after checking that training fits in memory."""
    state_size = optimizers.state_size(optimizers.from_config(config))
    local = ranks.local_config(config)
    refuse_large_training(local, state_copies=state_size, gpu_memory=training_memory())
    return shards.make_local_environments(config, ranks, placement.rollout_cores(config))


def make_separate_environments(config: Config) -> Environments:
    """Create environments of a configuration apart from training, for example to evaluate."""
    return vec.make(config, placement.rollout_cores(config))
