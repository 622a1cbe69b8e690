"""Training from Python: the trainer with its environments, its policy and its files."""

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
from puffer_mlx.config.fit import typed
from puffer_mlx.config.notes import missing_steps, unread
from puffer_mlx.config.schema import NO_TRACKER
from puffer_mlx.config.schema.policy import OWN
from puffer_mlx.display.notebook import watch
from puffer_mlx.errors import UserError
from puffer_mlx.evaluation import ladder
from puffer_mlx.evaluation.episode_videos import EpisodeVideos, refuse_undrawable
from puffer_mlx.evaluation.evaluator import (
    Evaluator,
    refuse_agents,
    target_message,
    target_reached,
)
from puffer_mlx.export import Format, Report, export, formats
from puffer_mlx.library.policy import Policy, Prediction, checkpoint_of, policy_factory
from puffer_mlx.library.settings import (
    Schedule,
    changed,
    collected,
    configured,
    source_of,
    with_environment,
    with_objects,
    without_objects,
)
from puffer_mlx.policy.actor_critic import parts_of
from puffer_mlx.policy.policy import Policy as Architecture
from puffer_mlx.ppo import optimizers
from puffer_mlx.system import output
from puffer_mlx.system.devices import building, refuse_forked, select_device
from puffer_mlx.tracking.tracked_run import refuse_missing, tracker_names
from puffer_mlx.training.epoch_logs import Logs
from puffer_mlx.training.run import Run, make_environments
from puffer_mlx.vec.base import Environments, VecEnv

DIRECTORY = "base.checkpoint_dir"
COMMANDS = (  # settings for files that are written only if ``checkpoint_dir`` is given
    *("base.checkpoint_interval", "base.checkpoint_keep"),
    "base.eval_video_interval",
)
OF_MODULES = ("policy.reset_on_terminal", "policy.log_std_init")  # used by modules


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
            for the environment's files.
        env: Name as on the command line, ``gymnasium.Env`` class, function that creates one, or an
            object if one environment is enough (``total_agents=1``). Vectorized environments from
            ``vec.make`` are closed by the caller. None for the environment that ``config`` names.
        policy: Actor and critic as an ``mlx.nn.Module`` (``policy/actor_critic.py``), which is
            copied. None for the configured policy.
        weights: Initial weights; None for random ones from ``seed``, or the module's.
        like: Checkpoint to resume, set by ``Trainer.load``.
        env_kwargs: Arguments of the environment, the same as ``{"env": env_kwargs}``.
        settings: Further settings, which override ``config``: ``learning_rate=1e-3``.
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
        UserError: If a setting, the environment or the policy is invalid; the message says why.
    """

    config: Config
    vec: VecEnv
    policy: Architecture
    epoch: int
    global_step: int
    stop: bool
    weights: Any
    fault: UserError | None
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
        """Return the error for an unknown attribute, with the nearest name."""
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
        like: checkpoint.Checkpoint | None = None,
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        refuse_forked()
        if config is not None and not isinstance(config, Config | Mapping):
            message = f"config is {config!r}, expected settings by name or a Config"
            raise UserError(message, _call_hint(config, env))
        settings |= {f"env.{name}": value for name, value in (env_kwargs or {}).items()}
        ready = isinstance(config, Config) and hasattr(env, "spec") and hasattr(env, "send")
        whole = isinstance(config, Config)
        objects, (source, settings) = without_objects({} if whole else config or {}, settings)
        source = _with_parts(config if whole else source, settings, policy)
        environment = None if ready else env
        chosen = configured(source, environment, settings, find_family=vec.look_up_family)
        chosen = with_objects(chosen, objects.named)
        for name, other in (("learning_rate", "lr_schedule"), ("ent_coef", "anneal_ent_coef")):
            if name in objects.schedules and typed(chosen, f"train.{other}"):
                raise UserError(f"{other} is given, and {name} is a function", "one of the two")
        vec.settle_family(chosen)
        refuse_missing(chosen)
        writes = typed(chosen, DIRECTORY)
        if like is not None and (writes or tracker_names(chosen)):
            trust.permit_log_dir(chosen)
        select_device(chosen.base.device)
        environments = env if ready else None
        run = Run.open(
            chosen,
            environments,
            policy,
            weights=weights,
            resumed=like,
            schedules=objects.schedules,
            look=_check_evaluations if writes else lambda *_: None,
        )
        self._run = run
        weakref.finalize(self, _close_in, os.getpid(), run)  # if the caller doesn't close it
        self._writes = writes
        self._saved_epoch = run.trainer.epoch
        self._videos = None
        if writes:
            if like:
                run.files.enter_context(lock_run(run.path(like.folder.parent)))
            run.write()
            self._evaluator = Evaluator(run.trainer, heartbeat=run.log.touch)
            self._videos = EpisodeVideos(run.trainer, run.folder, _warn)
        else:
            run.track()
            self._evaluator = Evaluator(run.trainer)
        self.history: list[Logs] = []
        _warn_of_unused(self.config, self.vec, like is not None, writes)
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
        """Resume a run exactly where it was saved.

        The result is the same to the bit on a CPU if the environments can be saved, as those in C
        can. Gymnasium environments start new episodes.

        Args:
            path: Folder given to ``save``, a folder of a run or a checkpoint, or ``latest`` (of
                ``env`` if it is given).
            env: Environment of the run, needed if its name isn't found (for example a class in a
                notebook), or to trust the code that it names.
            policy: Module of a policy that is one; its weights aren't used.
            allow_code: Run the code that the checkpoint names, even if it is untrusted on this
                machine.
            settings: Settings to change, for example ``total_timesteps``.

        Returns:
            The trainer, whose next step is the one after ``save``.

        Raises:
            UserError: If there is nothing to resume, or it is for another environment or policy.
        """
        name = None if env is None else source_of(env).name
        folder = checkpoint.find_any(str(path), env=name, holding=checkpoint.STATE)
        if (newest := checkpoint.find_any(str(path), env=name)) != folder:
            _warn(f"{newest} is newer, but has weights only: going on with {folder}")
        written = folder / checkpoint.CONFIG
        config = replace(configured(None, str(written), {}), allow_code=allow_code)
        objects, (settings,) = without_objects(settings)
        config = with_objects(changed(config, collected(settings)), objects.named)
        config = with_environment(config, env)
        if not any(typed(config, name) for name in ("base.track", "base.wandb")):
            config.base.track = NO_TRACKER
            config.base.wandb = False  # of the saved run
        saved = checkpoint.load(folder, trust.allowed_names(config), policy_factory(policy))
        schedules: dict[str, Any] = {**objects.schedules}
        trainer = cls(config, None, saved.policy, like=saved, **schedules)
        trainer._end_at(score_of(folder))
        return trainer

    def save(self, path: str | Path) -> Path:
        """Save the weights and everything needed to resume.

        Args:
            path: Folder of a run. Each ``save`` adds a checkpoint named by its step. ``load``,
                ``Policy.load`` and the command line use the newest one.

        Returns:
            The checkpoint's folder.

        Raises:
            UserError: If the checkpoint can't be written.
        """
        refuse_forked()
        folder = Path(path)
        write_ini(self.config, folder / checkpoint.CONFIG)
        return checkpoint.save(folder, self._run.trainer, self._evaluator.score)

    def export(
        self, path: str | Path, to: str | None = None, *, dialect: str | None = None, **options: Any
    ) -> Report:
        """Write the current policy to a file for another program, like ``puffer-mlx export``.

        The file is read back and compared on observations of the last rollout before it is
        published.

        Args:
            path: File to write; an existing one is replaced.
            to: Format ``onnx``, ``torch``, ``bin`` or ``safetensors``; None for the suffix's
                format.
            dialect: Weight layout in the file; None for the policy's own if the format supports it.
            options: Options of the format; for ``bin``: ``alignment``, ``whole`` and ``lossy``.

        Returns:
            Report with ``path``, ``difference``, ``notes`` and others.

        Raises:
            UserError: If the format can't hold the policy, a package is missing, or the file can't
                be written.
        """
        refuse_forked()
        if self.config.torch.decoder == OWN:
            raise UserError(
                "the policy is an mlx.nn.Module of your own, which no format holds",
                "save() keeps its weights; docs/custom_policy.md has parts that safetensors holds",
            )
        form = Format(to or formats.by_suffix(Path(path)).name, dialect, **options)
        current = checkpoint_of(self)._replace(step=self.epoch * self.config.batch_size)
        statistics = {  # as a file holds them
            name: np.array(np.asarray(array, np.float32), np.float64)
            for name, array in current.statistics.items()
        }
        recorded = mx.array(np.array(self.recorded)) if self.epoch else None
        with mx.stream(mx.cpu):  # exact comparison, and fast enough
            return export(current._replace(statistics=statistics), form, Path(path), recorded)

    def __iter__(self) -> Iterator[Logs]:
        """Train until the schedule ends or ``stop`` is set, yielding each epoch's record."""
        while self._run.trainer.has_next_epoch():
            yield self.step()
        if self._writes:
            self._save_epoch()
            self._evaluate_at_the_end()

    def step(self) -> Logs:
        """Train one epoch: a rollout and its minibatches.

        Evaluates the policy if ``eval_interval`` says so (``evaluation/evaluator.py``), and sets
        ``stop`` at ``stop_at_score``.

        Returns:
            The epoch's record, such as ``agent_steps``, ``SPS``, ``env/score`` and ``loss/total``.
        """
        refuse_forked()
        mx.set_default_device(self._device)
        evaluator = self._evaluator
        trackers = self._run.trackers
        logs = self._run.trainer.step()
        logs |= evaluator.after_epoch()
        video = None
        if self._writes and self._videos:
            logs |= self._videos.after_epoch()
            video = self._videos.newest
            self._run.log.write(logs)
            self._run.keeper.observe(logs)
        if target_reached(self.config, evaluator.score):
            self.stop = True
        trackers.done = self.epoch == self.config.epochs
        for line in trackers.log(logs, video):
            output.print_important(line)
        if self._writes and (
            checkpoint.is_due(self.config, self.epoch - 1) or self._run.keeper.improved
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
        """Choose actions with the newest weights. The arguments are those of ``Policy.predict``.

        Returns:
            The action and the recurrent state.
        """
        with building:  # a call from another thread continues with this one's random key
            now = Policy(self)
            if self._player is not None:
                now.copy_state_from(self._player)
            self._player = now
            return now.predict(
                observation, state, episode_start, deterministic, action_masks=action_masks
            )

    def close(self) -> None:
        """Close the environments created by the trainer, and finish the trackers.

        With ``checkpoint_dir`` the last epoch is saved first. A second call has no effect.
        """
        self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._writes:
                self._save_epoch()
        finally:
            self._writes = False
            self._run.__exit__(kind, error, trace)

    def _save_epoch(self) -> None:
        """Write a checkpoint of the last epoch to the run's folder, unless there is one."""
        if self._saved_epoch != self.epoch:
            self._run.save(self._evaluator.score)
            self._saved_epoch = self.epoch

    def _evaluate_at_the_end(self) -> None:
        """Evaluate the weights of a complete run, as the command line does, and log the result."""
        run = self._run
        if not run.trackers.done or self.fault:
            return
        if ladder.is_asked(self.config):
            played = ladder.play_configured(run.trainer, make_environments, run.log.touch)
            record = ladder.logs_of(played, run.trainer)
        else:
            evaluated = [*self._evaluator.after_training()]
            record = evaluated[-1] if evaluated else {}
        if record:
            run.log.write(record)
            run.trackers.evaluated(record)

    def _print_end(self) -> None:
        """Print why training ended before ``total_timesteps``."""
        config = self.config
        score = self._evaluator.score
        if target_reached(config, score):
            print(f'{target_message(config, score)}; stop_at_score="none" goes on')
        elif missing := missing_steps(config, self.epoch):
            print(f"steps {self.epoch * config.batch_size:,}{missing}")

    def __repr__(self) -> str:
        """Return a line with the environment and the steps."""
        config = self.config
        total = config.epochs * config.batch_size
        return f"<Trainer of {config.env_name}: {self.global_step:,} of {total:,} steps>"

    def _end_at(self, score: float | None) -> None:
        """Set ``stop`` if a saved score already reached ``base.stop_at_score``."""
        if target_reached(self.config, score):
            self.stop = True
            _warn(
                f'{target_message(self.config, score)}: it has ended; stop_at_score="none" goes on'
            )


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
    """Train a policy in an environment to the end.

    ::

        trainer = puffer_mlx.train("gym:CartPole-v1", total_timesteps=100_000)

    With ``checkpoint_dir="checkpoints"`` the run's folder is written as by the command line:
    checkpoints, the best one, the log, and the evaluation after training. Otherwise no file is
    written, except by trackers (``track=["wandb"]``) and ``trainer.save(path)``.

    Args:
        env: Name as on the command line, ``gymnasium.Env`` class, function that creates one, or an
            object if one environment is enough (``total_agents=1``).
        config: Settings by name, or a complete ``Config``; None for the environment's files.
        policy: Actor and critic as an ``mlx.nn.Module``; None for the configured policy.
        progress: Show the progress: a live figure in a notebook, a dashboard in a terminal.
        callback: Called with each epoch's record. ``"stop"`` or False ends training.
        resume: Run to resume: ``latest``, a RUN_ID in ``checkpoint_dir``, or the folder of a run or
            of a checkpoint. The settings change its configuration.
        settings: Further settings: keys of the configuration by their short names, and the
            arguments of ``Trainer``.

    Returns:
        The trainer after its last epoch, with ``predict``, ``save``, ``history``, ``weights`` and
        ``config``.

    Raises:
        UserError: If an argument is invalid, or training produced numbers that aren't finite; the
            message says why.
    """
    if callback is not None and not callable(callback):
        message = f"callback is of type {type(callback).__name__}"
        raise UserError(message, "here it is one function of an epoch's record")
    if resume is None:
        trainer = Trainer(config, env, policy, **settings)
    else:
        if isinstance(config, Config):
            raise UserError("resume and a whole Config are given", "settings by name")
        changes = {**(config or {}), **settings}
        trainer = Trainer.load(_find_run(resume, env, changes), env, policy, **changes)
    try:
        with trainer._run.files:
            for logs in watch(trainer) if progress else trainer:
                if callback is not None and _ends(callback(logs)):
                    trainer.stop = True
            if trainer.fault:
                raise trainer.fault
            if progress:
                trainer._print_end()
        trainer._writes = False  # the files are closed
    except BaseException:
        trainer.close()
        raise
    return trainer


def _find_run(resume: str | Path, env: Any, settings: Mapping[str, Any]) -> Path:
    """Return the newest checkpoint that can be resumed of a run that the user names."""
    _, (plain,) = without_objects(settings)
    folder = collected(plain).get(DIRECTORY, Base().checkpoint_dir)
    config = Config(source_of(env).name, base=Base(checkpoint_dir=str(folder)))
    return checkpoint.find(str(resume), config, checkpoint.STATE)


def _check_evaluations(config: Config, environments: Environments) -> None:
    """Check, before training, that the evaluations, videos and games of a run are possible."""
    refuse_agents(config, environments)
    refuse_undrawable(config, environments)
    ladder.prepare(config, environments.spec)


def _close_in(pid: int, run: Run) -> None:
    """Close a run, but not in a forked process, where it would close the parent's environments."""
    if os.getpid() == pid:
        run.close()


def _call_hint(config: Any, env: Any) -> str:
    """Return the call that was probably meant, for arguments in another library's order."""
    if isinstance(config, int | float) and not isinstance(config, bool):
        return f"by its name: total_timesteps={config:_}"
    name = env if isinstance(env, str) and str(config).endswith("Policy") else config
    if str(name).endswith("Policy"):
        return 'leave it out; network="MLP" or "LSTM", for example, chooses the network'
    if isinstance(name, str) and VERSION.search(name):
        name = gymnasium_id(name) or name
    return f"train({name!r}) or Trainer(env={name!r})"


def _ends(returned: Any) -> bool:
    """Return True if a callback's result ends training.

    False ends it and True continues, as in Stable-Baselines3.
    """
    if returned is None or isinstance(returned, bool | np.bool_):
        return returned is not None and not returned
    if not isinstance(returned, str) or returned != "stop":
        raise UserError(
            f"the callback returned {returned!r}", "None to go on, 'stop' or False to end"
        )
    return True


def _with_parts(config: Any, keywords: Mapping[str, Any], module: Any) -> Any:
    """Return the configuration, or settings, with those that describe a module policy.

    Raises:
        UserError: If other settings describe the policy, too.
    """
    if not isinstance(module, nn.Module):
        return config
    whole = isinstance(config, Config)
    mine = collected({} if whole else config, keywords)
    for name in mine:
        if name.partition(".")[0] in ("policy", "torch") and name not in OF_MODULES:
            raise UserError(f"{name} is given, and the policy is a module", "one of the two")
    parts = collected({"torch": vars(parts_of(module)), "policy.separate_value": False})
    return changed(config, parts) if whole else {**mine, **parts}


def _warn_of_unused(config: Config, environments: VecEnv, goes_on: bool, writes: bool) -> None:
    """Warn of settings from the user that have no effect."""
    lines = [*config.unused, *optimizers.unused_keys(config), *unread(config, goes_on)]
    lines += vec.unused_env_keys(config, environments)
    if not writes:
        lines += [f"{name} (without checkpoint_dir)" for name in COMMANDS]
    if not writes and not tracker_names(config):
        lines.append("base.log_dir (of trackers, and none is named)")
    if isinstance(config.base.profile, str):
        lines.append("base.profile (the command line writes that file)")
    for line in dict.fromkeys(lines):
        name = line.partition(" ")[0]
        if typed(config, name) or name in config.unused:
            _warn(f"{line} is unused here")


def _warn(line: str) -> None:
    """Issue a warning at the line that called the package."""
    caller = 1  # first frame outside the package
    while sys._getframe(caller).f_globals.get("__name__", "").startswith("puffer_mlx."):
        caller += 1
    warnings.warn(f"puffer_mlx: {line}", stacklevel=caller + 1)
