"""Train from Python programs: the class ``Trainer`` and the function ``train``."""

import os
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import mlx.core as mx
import numpy as np
from mlx import nn

from puffer_mlx import checkpoint, vec
from puffer_mlx.checkpoint import score_of
from puffer_mlx.checkpoint.folder import lock_run
from puffer_mlx.config import Base, Config, trust, write_ini
from puffer_mlx.config.compatibility import closest
from puffer_mlx.config.finding import VERSION, gymnasium_id
from puffer_mlx.config.fit import is_explicit
from puffer_mlx.config.notes import keys_without_effect, missing_steps_text
from puffer_mlx.config.schema import NO_TRACKER
from puffer_mlx.config.schema.policy import CUSTOM_MODULE
from puffer_mlx.display.notebook import watch
from puffer_mlx.errors import UserError
from puffer_mlx.evaluation import ladder
from puffer_mlx.evaluation.episode_videos import EpisodeVideos, check_drawable
from puffer_mlx.evaluation.evaluator import (
    Evaluator,
    check_eval_agents,
    target_message,
    target_reached,
)
from puffer_mlx.export import ExportFormat, ExportReport, export, formats
from puffer_mlx.library.policy import Policy, Prediction, checkpoint_of, policy_factory
from puffer_mlx.library.settings import (
    Schedule,
    build_config,
    collect_settings,
    environment_source,
    with_environment,
    with_objects,
    with_settings,
    without_objects,
)
from puffer_mlx.policy.actor_critic import torch_section
from puffer_mlx.policy.policy import Policy as Architecture
from puffer_mlx.ppo import optimizers
from puffer_mlx.system import output
from puffer_mlx.system.devices import building, refuse_forked, select_device
from puffer_mlx.tracking.tracked_run import check_trackers_installed, tracker_names
from puffer_mlx.training.epoch_logs import Logs
from puffer_mlx.training.run import Run, make_separate_environments
from puffer_mlx.vec.base import Environments, VecEnv

DIRECTORY = "base.checkpoint_dir"
FILE_SETTINGS = (  # for files that are written only if ``checkpoint_dir`` is set
    *("base.checkpoint_interval", "base.checkpoint_keep"),
    "base.eval_video_interval",
)
MODULE_SETTINGS = ("policy.reset_on_terminal", "policy.log_std_init")  # also used by modules


class Trainer:
    """Train a policy in an environment, by iterating over epochs.

    ::

        for logs in trainer:
            if logs.get("env/score_100", 0) > 475:
                trainer.stop = True

    The trainer creates its environments. It closes them at the end of a ``with`` block, in
    ``close``, or when it is garbage-collected. It sets MLX's default device to ``base.device``.

    With ``checkpoint_dir`` it writes the run's folder as the command line does: checkpoints, the
    link ``best``, the log, videos, and the evaluation after the last epoch.

    Args:
        config: Settings by name (docs/library.md), or a complete ``Config``, which is copied. None
            uses only the environment's files.
        env: Name as on the command line, ``gymnasium.Env`` class, function that creates one, or an
            object if one environment is enough (``total_agents=1``). Vectorized environments from
            ``vec.make`` are closed by the caller. None for the environment in ``config``.
        policy: Actor and critic as an ``mlx.nn.Module`` (``policy/actor_critic.py``), which is
            copied. None for the configured policy.
        weights: Initial weights; None for random ones from ``seed``, or the module's.
        resumed: Contents of the checkpoint to resume. Use ``Trainer.load``, which passes them.
        env_kwargs: Arguments of the environment, the same as ``{"env": env_kwargs}``.
        settings: More settings, which override ``config``: ``learning_rate=1e-3``.
            ``learning_rate``, ``ent_coef``, ``clip_coef``, ``vf_coef`` and ``vf_clip_coef`` may be
            functions of the fraction of finished epochs, from 0 to below 1. ``loss``, ``advantage``
            and ``optimizer`` may be custom objects (docs/custom_policy.md).

    Attributes:
        history: Records of the epochs trained by this object, a few kilobytes each. Clear the list
            to free their memory.
        epoch: Number of trained epochs.
        global_step: Environment steps trained on so far, summed over agents.
        stop: Set to True to end the iteration after the current epoch.
        config: Complete configuration.
        vec: Environments.
        policy: Encoder, network and decoder, without weights.
        weights: Weights of the policy; can be set.

    All other attributes of ``training.trainer.Trainer`` are available, too.

    Raises:
        UserError: A setting, the environment or the policy is invalid.
    """

    config: Config
    vec: VecEnv
    policy: Architecture
    epoch: int
    global_step: int
    stop: bool
    weights: Any
    error: UserError | None
    schedules: dict[str, Schedule]
    train_state: Any

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and hasattr(self._run.trainer, name):
            return getattr(self._run.trainer, name)
        raise self._no_attribute(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or name == "history":
            super().__setattr__(name, value)
        elif hasattr(self._run.trainer, name):
            setattr(self._run.trainer, name, value)
        else:
            raise self._no_attribute(name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._run.trainer)})

    def _no_attribute(self, name: str) -> AttributeError:
        """Return the AttributeError for an unknown attribute of a trainer, with a similar name."""
        message = f"puffer_mlx.Trainer has no attribute {name!r}"
        public = [] if name.startswith("_") else [each for each in dir(self) if each[0] != "_"]
        near = closest(name, public)
        return AttributeError(f"{message}. Did you mean {near!r}?" if near else message)

    def __init__(
        self,
        config: Config | Mapping[str, Any] | None = None,
        env: Any = None,
        policy: nn.Module | Architecture | None = None,
        weights: Any = None,
        resumed: checkpoint.Checkpoint | None = None,
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        refuse_forked()
        if config is not None and not isinstance(config, Config | Mapping):
            message = f"config is {config!r}, expected settings by name or a Config"
            raise UserError(message, _call_hint(config, env))
        settings |= {f"env.{name}": value for name, value in (env_kwargs or {}).items()}
        is_complete = isinstance(config, Config)
        has_vec_env = is_complete and hasattr(env, "spec") and hasattr(env, "send")
        values = {} if is_complete else config or {}
        objects, (values, settings) = without_objects(values, settings)
        source = _with_module_settings(config if is_complete else values, settings, policy)
        environment = None if has_vec_env else env
        run_config = build_config(source, environment, settings, find_family=vec.look_up_family)
        run_config = with_objects(run_config, objects.by_name)
        for name, schedule_key in (
            ("learning_rate", "lr_schedule"),
            ("ent_coef", "anneal_ent_coef"),
        ):
            if name in objects.schedules and is_explicit(run_config, f"train.{schedule_key}"):
                message = f"{schedule_key} is set, but {name} is a function"
                raise UserError(message, "one of the two")
        vec.settle_family(run_config)
        check_trackers_installed(run_config)
        writes_files = is_explicit(run_config, DIRECTORY)
        if resumed is not None and (writes_files or tracker_names(run_config)):
            trust.refuse_untrusted_log_dir(run_config)
        select_device(run_config.base.device)
        environments = env if has_vec_env else None
        run = Run.open(
            run_config,
            environments,
            policy,
            weights=weights,
            resumed=resumed,
            schedules=objects.schedules,
            check_environments=_check_evaluations if writes_files else lambda *_: None,
        )
        self._run = run
        weakref.finalize(
            self, _close_in_process, os.getpid(), run
        )  # if the caller doesn't close it
        self._writes_files = writes_files
        self._saved_epoch = run.trainer.epoch
        self._videos = None
        if writes_files:
            if resumed:
                run.files.enter_context(lock_run(run.path(resumed.folder.parent)))
            run.write()
            self._evaluator = Evaluator(run.trainer, heartbeat=run.log.touch)
            self._videos = EpisodeVideos(run.trainer, run.folder, _warn)
        else:
            run.track()
            self._evaluator = Evaluator(run.trainer)
        self.history: list[Logs] = []
        _warn_of_unused(self.config, self.vec, resumed is not None, writes_files)
        self._device = mx.default_device()
        self._player: Policy | None = None

    @classmethod
    def load(
        cls,
        path: str | Path,
        env: Any = None,
        policy: nn.Module | None = None,
        *,
        allow_code: bool = False,
        **settings: Any,
    ) -> Self:
        """Load a run and resume it exactly where it was saved.

        With C environments, whose state is saved, the results are those of an uninterrupted run, to
        the bit on a CPU. Gymnasium environments start new episodes.

        Args:
            path: Folder passed to ``save``, folder of a run or a checkpoint, or ``latest`` (of
                ``env``, if passed).
            env: Environment of the run, needed if it isn't found by its name (for example a class
                in a notebook), or to trust its code.
            policy: Module, if the policy is an ``mlx.nn.Module``; its weights aren't used.
            allow_code: Run the code that the checkpoint names, even if it is untrusted on this
                machine.
            settings: Settings to change, for example ``total_timesteps``.

        Returns:
            The trainer; its next ``step`` trains the epoch after the saved one.

        Raises:
            UserError: There is nothing to resume, or the run has another environment or policy.
        """
        name = None if env is None else environment_source(env).name
        folder = checkpoint.find_any_checkpoint(str(path), env=name, required_file=checkpoint.STATE)
        newest = checkpoint.find_any_checkpoint(str(path), env=name)
        if newest != folder:
            _warn(f"{newest} is newer, but has only weights: resuming from {folder}")
        path = folder / checkpoint.CONFIG
        config = replace(build_config(None, str(path), {}), allow_code=allow_code)
        objects, (settings,) = without_objects(settings)
        config = with_objects(with_settings(config, collect_settings(settings)), objects.by_name)
        config = with_environment(config, env)
        if not any(is_explicit(config, name) for name in ("base.track", "base.wandb")):
            config.base.track = NO_TRACKER
            config.base.wandb = False  # don't continue the saved run's tracking
        saved = checkpoint.load(folder, trust.allowed_names(config), policy_factory(policy))
        schedules: dict[str, Any] = {**objects.schedules}
        trainer = cls(config, None, saved.policy, resumed=saved, **schedules)
        trainer._stop_if_reached(score_of(folder))
        return trainer

    def save(self, path: str | Path) -> Path:
        """Save a checkpoint with the weights and everything needed to resume the run.

        Args:
            path: Folder of a run. Each ``save`` adds a checkpoint named by its step. ``load``,
                ``Policy.load`` and the command line use the newest one.

        Returns:
            The checkpoint's folder.

        Raises:
            UserError: The checkpoint can't be written.
        """
        refuse_forked()
        folder = Path(path)
        write_ini(self.config, folder / checkpoint.CONFIG)
        return checkpoint.save(folder, self._run.trainer, self._evaluator.score)

    def export(
        self, path: str | Path, to: str | None = None, *, dialect: str | None = None, **options: Any
    ) -> ExportReport:
        """Write the current policy to a file for another program, as ``puffer-mlx export`` does.

        The file is read back, and its policy is compared with this one on observations of the last
        rollout, before the file gets its final name.

        Args:
            path: File to write; an existing one is replaced.
            to: Format ``onnx``, ``torch``, ``bin`` or ``safetensors``; None for the suffix's
                format.
            dialect: Weight layout in the file; None for the policy's, if the format supports it.
            options: Options of the format; for ``bin``: ``alignment``, ``whole`` and ``lossy``.

        Returns:
            Report with ``path``, ``difference``, ``notes`` and others.

        Raises:
            UserError: The format can't contain the policy, a package is missing, or the file can't
                be written.
        """
        refuse_forked()
        if self.config.torch.decoder == CUSTOM_MODULE:
            raise UserError(
                "the policy is a custom mlx.nn.Module, which no format supports",
                "save() keeps its weights; docs/custom_policy.md names policies to export",
            )
        format_ = ExportFormat(to or formats.format_for_suffix(Path(path)).name, dialect, **options)
        current = checkpoint_of(self)._replace(step=self.epoch * self.config.batch_size)
        statistics = {  # rounded to float32, so that the export equals that of a saved checkpoint
            name: np.array(np.asarray(array, np.float32), np.float64)
            for name, array in current.statistics.items()
        }
        recorded = mx.array(np.array(self.recorded)) if self.epoch else None
        with mx.stream(mx.cpu):  # exact comparison, and fast enough
            return export(current._replace(statistics=statistics), format_, Path(path), recorded)

    def __iter__(self) -> Iterator[Logs]:
        """Train until ``total_timesteps`` or until ``stop`` is set; yield each epoch's metrics."""
        while self._run.trainer.has_next_epoch():
            yield self.step()
        if self._writes_files:
            self._save_epoch()
            self._evaluate_at_the_end()

    def step(self) -> Logs:
        """Train one epoch: a rollout and its minibatches.

        Every ``eval_interval`` steps it evaluates the policy (``evaluation/evaluator.py``), and it
        sets ``stop`` when the score reaches ``stop_at_score``.

        Returns:
            The epoch's metrics, such as ``agent_steps``, ``SPS``, ``env/score``, ``loss/total``.
        """
        refuse_forked()
        mx.set_default_device(self._device)
        evaluator = self._evaluator
        trackers = self._run.trackers
        logs = self._run.trainer.step()
        logs |= evaluator.after_epoch()
        video = None
        if self._writes_files and self._videos:
            logs |= self._videos.after_epoch()
            video = self._videos.newest
            self._run.log.write(logs)
            self._run.checkpoints.observe(logs)
        if target_reached(self.config, evaluator.score):
            self.stop = True
        trackers.done = self.epoch == self.config.epochs
        for line in trackers.log(logs, video):
            output.print_important(line)
        if self._writes_files and (
            checkpoint.is_checkpoint_due(self.config, self.epoch - 1)
            or self._run.checkpoints.improved
        ):
            self._save_epoch()
        self.history.append(logs)
        return logs

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
        *,
        action_masks: Any = None,
    ) -> Prediction:
        """Choose actions for observations with the current weights, as ``Policy.predict`` does.

        Returns:
            The action and the recurrent state.
        """
        with building:  # a lock: of simultaneous threads, one at a time uses the random key
            policy = Policy(self)
            if self._player is not None:
                policy.copy_state_from(self._player)
            self._player = policy
            return policy.predict(
                observation, state, episode_start, deterministic, action_masks=action_masks
            )

    def close(self) -> None:
        """Close the environments that the trainer created, and finish the trackers.

        With ``checkpoint_dir``, the last epoch is saved first. A second call has no effect.
        """
        self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._writes_files:
                self._save_epoch()
        finally:
            self._writes_files = False
            self._run.__exit__(kind, error, trace)

    def _save_epoch(self) -> None:
        """Write a checkpoint of the trainer's last epoch to the run's folder, if none exists."""
        if self._saved_epoch != self.epoch:
            self._run.save(self._evaluator.score)
            self._saved_epoch = self.epoch

    def _evaluate_at_the_end(self) -> None:
        """Evaluate the final weights of a complete run, and log the result.

        The evaluation is the command line's: the ladder or episodes, as configured.
        """
        run = self._run
        if not run.trackers.done or self.error:
            return
        if ladder.plays_ladder(self.config):
            played = ladder.play_configured_ladder(
                run.trainer, make_separate_environments, run.log.touch
            )
            record = ladder.ladder_logs(played, run.trainer)
        else:
            evaluated = [*self._evaluator.after_training()]
            record = evaluated[-1] if evaluated else {}
        if record:
            run.log.write(record)
            run.trackers.set_evaluation_scores(record)

    def _print_end(self) -> None:
        """Print why training ended before ``total_timesteps`` steps, if it did."""
        config = self.config
        score = self._evaluator.score
        if target_reached(config, score):
            print(f'{target_message(config, score)}; stop_at_score="none" continues')
        elif missing := missing_steps_text(config, self.epoch):
            print(f"steps {self.epoch * config.batch_size:,}{missing}")

    def __repr__(self) -> str:
        """Return a one-line description of the trainer: environment, trained and total steps."""
        config = self.config
        total = config.epochs * config.batch_size
        return f"<Trainer of {config.env_name}: {self.global_step:,} of {total:,} steps>"

    def _stop_if_reached(self, score: float | None) -> None:
        """Stop a resumed run's training if its score already reached ``base.stop_at_score``."""
        if target_reached(self.config, score):
            self.stop = True
            message = target_message(self.config, score)
            _warn(f'{message}: the run has ended; stop_at_score="none" continues it')


def train(
    env: Any,
    config: Config | Mapping[str, Any] | None = None,
    *,
    policy: nn.Module | None = None,
    progress: bool = False,
    callback: Callable[[Logs], str | bool | None] | None = None,
    resume: str | Path | None = None,
    **settings: Any,
) -> Trainer:
    """Train a policy in an environment until ``total_timesteps``. Returns the trainer.

    ::

        trainer = puffer_mlx.train("gym:CartPole-v1", total_timesteps=100_000)

    With ``checkpoint_dir="checkpoints"``, the run's files are written as by the command line:
    checkpoints, the link ``best``, the log with the evaluation after training. Otherwise only
    trackers (``track=["wandb"]``) and ``trainer.save(path)`` write files.

    Args:
        env: Name as on the command line, ``gymnasium.Env`` class, function that creates one, or an
            object if one environment is enough (``total_agents=1``).
        config: Settings by name, or a complete ``Config``; None uses only the environment's files.
        policy: Actor and critic as an ``mlx.nn.Module``; None for the configured policy.
        progress: Show the progress: a live figure in a notebook, a dashboard in a terminal.
        callback: Called with each epoch's metrics. Returning ``"stop"`` or False ends training.
        resume: Run to resume: ``latest``, a RUN_ID in ``checkpoint_dir``, or the folder of a run or
            of a checkpoint. The settings change its configuration.
        settings: More settings, by the short names of keys, and other arguments of ``Trainer``.

    Returns:
        The trainer after its last epoch, with ``predict``, ``save``, ``history``, ``weights`` and
        ``config``.

    Raises:
        UserError: An argument is invalid, or training produced NaN or infinite values.
    """
    if callback is not None and not callable(callback):
        message = f"callback is of type {type(callback).__name__}"
        raise UserError(message, "pass a function of an epoch's metrics")
    if resume is None:
        trainer = Trainer(config, env, policy, **settings)
    else:
        if isinstance(config, Config):
            raise UserError("resume and a complete Config are passed", "pass settings by name")
        changes = {**(config or {}), **settings}
        trainer = Trainer.load(_find_run(resume, env, changes), env, policy, **changes)
    try:
        with trainer._run.files:
            for logs in watch(trainer) if progress else trainer:
                if callback is not None and _ends_training(callback(logs)):
                    trainer.stop = True
            if trainer.error:
                raise trainer.error
            if progress:
                trainer._print_end()
        trainer._writes_files = False  # the files are closed
    except BaseException:
        trainer.close()
        raise
    return trainer


def _find_run(resume: str | Path, env: Any, settings: Mapping[str, Any]) -> Path:
    """Return the folder of the newest checkpoint of the run that a user names, to resume it.

    Args:
        resume: Run, as for ``train``.
        env: Environment of the run.
        settings: The user's settings, maybe with ``checkpoint_dir``.
    """
    _, (plain,) = without_objects(settings)
    folder = collect_settings(plain).get(DIRECTORY, Base().checkpoint_dir)
    config = Config(environment_source(env).name, base=Base(checkpoint_dir=str(folder)))
    return checkpoint.find_checkpoint(str(resume), config, checkpoint.STATE)


def _check_evaluations(config: Config, environments: Environments) -> None:
    """Raise a UserError if a run's evaluations, videos or games would be impossible later.

    Raises:
        UserError: One of them isn't possible.
    """
    check_eval_agents(config, environments)
    check_drawable(config, environments)
    ladder.check_ladder_config(config, environments.spec)


def _close_in_process(pid: int, run: Run) -> None:
    """Close a run and its environments, but only in the process that created it.

    A forked process must not close the environments of its parent.

    Args:
        pid: Process id of the creator.
        run: The run.
    """
    if os.getpid() == pid:
        run.close()


def _call_hint(config: Any, env: Any) -> str:
    """Return a hint with the call probably meant if arguments of ``train`` are in wrong order."""
    if isinstance(config, int | float) and not isinstance(config, bool):
        return f"by its name: total_timesteps={config:_}"
    # Stable-Baselines3's arguments are a policy's name and an environment.
    name = env if isinstance(env, str) and str(config).endswith("Policy") else config
    if str(name).endswith("Policy"):
        return 'leave it out; network="MLP" or "LSTM", for example, chooses the network'
    if isinstance(name, str) and VERSION.search(name):  # a Gymnasium ID, maybe without gym:
        name = gymnasium_id(name) or name
    return f"train({name!r}) or Trainer(env={name!r})"


def _ends_training(returned: Any) -> bool:
    """Return True if the value that a user's callback returned means that training ends.

    As in Stable-Baselines3, False ends it and True continues.

    Raises:
        UserError: The result isn't None, a boolean or ``"stop"``.
    """
    if returned is None or isinstance(returned, bool | np.bool_):
        return returned is not None and not returned
    if not isinstance(returned, str) or returned != "stop":
        raise UserError(
            f"the callback returned {returned!r}", "None to continue, 'stop' or False to end"
        )
    return True


def _with_module_settings(config: Any, keywords: Mapping[str, Any], module: Any) -> Any:
    """Add the settings that describe a policy module to a configuration or to settings.

    Args:
        config: Configuration, or settings by name.
        keywords: More settings by name, which are added unless ``config`` is a ``Config``.
        module: Policy; nothing is added if it isn't an ``mlx.nn.Module``.

    Raises:
        UserError: Settings by name describe the policy, too.
    """
    if not isinstance(module, nn.Module):
        return config
    is_complete = isinstance(config, Config)
    settings = collect_settings({} if is_complete else config, keywords)
    for name in settings:
        if name.partition(".")[0] in ("policy", "torch") and name not in MODULE_SETTINGS:
            raise UserError(f"{name} is set, but the policy is a module", "one of the two")
    module_settings = collect_settings(
        {"torch": vars(torch_section(module)), "policy.separate_value": False}
    )
    return (
        with_settings(config, module_settings) if is_complete else {**settings, **module_settings}
    )


def _warn_of_unused(
    config: Config, environments: VecEnv, is_resumed: bool, writes_files: bool
) -> None:
    """Warn about settings that the user made but that have no effect on this run.

    Args:
        config: Configuration of the run.
        environments: Environments of the run.
        is_resumed: True if the run was resumed.
        writes_files: True if the run has a folder with files.
    """
    lines = [
        *config.unused,
        *optimizers.unused_optimizer_keys(config),
        *keys_without_effect(config, is_resumed),
    ]
    lines += vec.unused_env_keys(config, environments)
    if not writes_files:
        lines += [f"{name} (without checkpoint_dir)" for name in FILE_SETTINGS]
    if not writes_files and not tracker_names(config):
        lines.append("base.log_dir (for trackers, but none is set)")
    if isinstance(config.base.profile, str):
        lines.append("base.profile (the command line writes that file)")
    for line in dict.fromkeys(lines):
        name = line.partition(" ")[0]
        if is_explicit(config, name) or name in config.unused:
            _warn(f"{line} is unused here")


def _warn(line: str) -> None:
    """Issue a Python warning that points to the line of the user's program, not of ours."""
    caller = 1  # first frame outside the package
    while sys._getframe(caller).f_globals.get("__name__", "").startswith("puffer_mlx."):
        caller += 1
    warnings.warn(f"puffer_mlx: {line}", stacklevel=caller + 1)
