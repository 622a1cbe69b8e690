"""Train one run in a terminal: the command ``train`` after parsing."""

import argparse
import contextlib
import signal
from pathlib import Path

from puffer_mlx import checkpoint
from puffer_mlx.checkpoint.environment_statistics import (
    preprocessing_changes,
    with_saved_preprocessing,
)
from puffer_mlx.cli.options import print_origins
from puffer_mlx.cli.stopping import RunEnding, StopRequests, follow_first_rank
from puffer_mlx.cli.train_output import (
    best_note,
    dashboard_of,
    file_paths,
    inspect_environments,
    next_steps,
    rate_note,
    reached_note,
    refuse_fewer_steps,
    resumed_notes,
    score_lines,
    steps_line,
    training_notes,
)
from puffer_mlx.config import Config, take_notes, unused_keys_note
from puffer_mlx.config.notes import keys_without_effect, trainer_note
from puffer_mlx.display.dashboard import Dashboard
from puffer_mlx.distributed import joining, launching
from puffer_mlx.distributed.shards import partition
from puffer_mlx.distributed.single_process import SingleProcess
from puffer_mlx.errors import UserError
from puffer_mlx.evaluation import ladder
from puffer_mlx.evaluation.episode_videos import EpisodeVideos
from puffer_mlx.evaluation.evaluator import Evaluator, incomplete_note, target_reached
from puffer_mlx.ppo import optimizers
from puffer_mlx.profiling import metal_capture
from puffer_mlx.profiling.timeline import Timeline
from puffer_mlx.system import output, program, signals, verbosity
from puffer_mlx.system.devices import kernels_note, select_device
from puffer_mlx.system.files import relative
from puffer_mlx.tracking.scores import EVALUATION_PREFIX
from puffer_mlx.tracking.tracked_run import check_trackers_installed
from puffer_mlx.training.run import EVALUATED_SCORE, Run, make_separate_environments
from puffer_mlx.training.trainer import Trainer

Resumed = checkpoint.Checkpoint | None


class ProfileFiles:
    """Context manager that writes profiling files of a run: its timeline and a capture of GPU work.

    Enter it before the first epoch, and call ``end_epoch`` after each one.

    Args:
        trainer: Trainer to record.
        options: Parsed options with the names of the files.

    Raises:
        UserError: If Metal can't capture, or, on entry, the timeline's file isn't writable.
    """

    def __init__(self, trainer: Trainer, options: argparse.Namespace) -> None:
        self.trainer = trainer
        self.trace_path = options.trace
        self.trace_epochs = options.profile_epochs
        self.capture = None
        if options.gpu_capture:
            capture_epochs = options.gpu_capture_epochs or 1
            self.capture = metal_capture.MetalCapture(options.gpu_capture, capture_epochs)

    def __enter__(self) -> None:
        if self.trace_path:
            # Not the first two epochs of this process, which compile kernels.
            timeline = Timeline(self.trace_path, self.trainer.epoch + 2, self.trace_epochs)
            self.trainer.profiler.timeline = timeline
        if self.capture:
            self.capture.begin_epoch(self.trainer.epoch)

    def end_epoch(self) -> None:
        """Tell the GPU capture that an epoch has ended, and begin another capture if requested."""
        if self.capture and not self.capture.end_epoch():
            self.capture.begin_epoch(self.trainer.epoch)

    def __exit__(self, *_: object) -> None:
        self.trainer.profiler.close()
        if self.capture:
            self.capture.close()
        capture_path = self.capture.path if self.capture else None
        for path in (self.trace_path, capture_path):
            if path and path.exists():
                print(f"wrote {relative(path)}")


def start_run(
    argv: list[str],
    config: Config,
    options: argparse.Namespace,
    resumed: Resumed,
    lock: contextlib.ExitStack,
) -> int:
    """Start a new training run, or resume one. Returns the exit code.

    Args:
        argv: Command line.
        config: Configuration of the run.
        options: Parsed options of ``train``.
        resumed: Checkpoint to resume; None for a new run.
        lock: Releases the lock of the resumed run when it is closed.
    """
    if config.train.gpus > 1 and not launching.launched_externally():
        lock.close()  # the first rank takes the lock
        return start_local_ranks(config, argv)
    if resumed and options.load_model_path is not None:
        raise UserError("--resume and --load-model-path exclude each other", "use one of them")
    check_trackers_installed(config)
    verbosity.note(trainer_note(config), *take_notes(config))
    config.unused += [
        *optimizers.unused_optimizer_keys(config),
        *keys_without_effect(config, resumed is not None),
    ]
    verbosity.note(unused_keys_note(config), "" if resumed else rate_note(config))
    print_origins(config)
    select_device(config.base.device)
    ranks = joining.init_distributed(config, resumed.folder.name if resumed else "none")
    with ranks.report_end():
        return train_rank(argv, config, options, resumed, ranks)


def start_local_ranks(config: Config, argv: list[str]) -> int:
    """Start several processes (``train.gpus`` ranks) that train a run together on this machine.

    Returns the exit code.
    """
    partition(config, 0, config.train.gpus)  # report indivisible sizes once, not in each rank
    flags = {verbosity.QUIET: ["-q"], verbosity.VERBOSE: ["-v"]}.get(verbosity.level(), [])
    on_gpus = launching.uses_gpus(config.base.device)
    words = program.package_command("train", *argv, *flags)
    return launching.launch_ranks(config.train.gpus, words, on_gpus)


def train_rank(
    argv: list[str],
    config: Config,
    options: argparse.Namespace,
    resumed: Resumed,
    ranks: SingleProcess,
) -> int:
    """Train a run in this process, alone or as one of several ranks. Returns the exit code."""
    verbosity.note(kernels_note(), error=True)
    weights_path = resumed.folder / checkpoint.WEIGHTS if resumed else None
    if options.load_model_path is not None:
        weights_path = checkpoint.find_weights(options.load_model_path, config)
    config = with_training_preprocessing(config, weights_path)
    stop_requests = StopRequests()
    with (
        output.continue_if_lost(stop_requests.handle_lost_output),
        Run.open(
            config,
            weights=weights_path,
            resumed=resumed,
            ranks=ranks,
            check_environments=inspect_environments,
        ) as run,
    ):
        trainer, config = run.trainer, run.trainer.config
        refuse_fewer_steps(run)
        profile_files = ProfileFiles(trainer, options)
        verbosity.note(*resumed_notes(run, options.newest_checkpoint))
        stop_requests.trainer = trainer
        if stop_requests.stopped:  # by a closed pipe, before the trainer was made
            trainer.stop = True
        if ranks.rank:
            return follow_first_rank(trainer, stop_requests)
        run.write()
        verbosity.detail(file_paths(run))
        verbosity.note(*training_notes(run))
        evaluator = Evaluator(trainer, heartbeat=run.log.touch)
        ending = RunEnding(run, evaluator)
        ranks.set_rescue(ending.rescue)
        saved_score = run.state.values.get(EVALUATED_SCORE) if run.state else None
        if target_reached(config, saved_score):  # already before this resume
            verbosity.note(reached_note(config, saved_score))
            trainer.stop = True
        with (
            signals.stop_gracefully(stop_requests.stop, ending.rescue) as watch,
            ending,
            dashboard_of(run, options.stop_at) as dashboard,
            profile_files,
        ):
            train_epochs(run, evaluator, options.stop_at, ending, dashboard, profile_files)
            final_evaluation = finish_run(run, evaluator, ending, dashboard)
            state = dashboard.run
            uptime = state.logs.get("uptime", 0.0)
            scores = score_lines(run, state, final_evaluation)
            ending.result_lines = [steps_line(trainer, uptime), *scores]
            ending.next_lines = next_steps(run, argv) if ending.saved else []
        if stop_requests.status:
            return stop_requests.status
        # A run that another signal stopped has ended as requested; a closed terminal is a failure.
        return watch.status if watch.signum == signal.SIGHUP else 0


def with_training_preprocessing(config: Config, path: Path | None) -> Config:
    """Return a run's configuration with the preprocessing that its initial weights need.

    Preprocessing is that of observations and actions, such as normalization.

    Args:
        config: Configuration of the run.
        path: File of the initial weights; None for a new policy.
    """
    if path is None:
        return config
    changed = with_saved_preprocessing(config, path)
    verbosity.note(*preprocessing_changes(config, changed, path))
    return changed


def train_epochs(
    run: Run,
    evaluator: Evaluator,
    stop_at: int | None,
    ending: RunEnding,
    dashboard: Dashboard,
    profile_files: ProfileFiles,
) -> None:
    """Train a run until it ends or is stopped, and write its records, checkpoints and videos.

    Args:
        run: The run.
        evaluator: Evaluator of the run's weights.
        stop_at: Environment step after which the run stops; None for its last epoch.
        ending: Saves the checkpoints.
        dashboard: Shows the metrics and messages.
        profile_files: Timeline and GPU capture of the run.

    Raises:
        Exception: The trainer's error, after its last complete epoch is saved.
    """
    trainer, config, ranks = run.trainer, run.trainer.config, run.trainer.ranks
    videos = EpisodeVideos(trainer, run.folder, dashboard.message)
    first_epoch = trainer.epoch + 1
    for logs in trainer:
        profile_files.end_epoch()
        if trainer.epoch == first_epoch and trainer.error:
            dashboard.message(f"after the first epoch: {trainer.error}")
        with ranks.exempt_from_timeout():
            logs |= evaluator.after_epoch()
            logs |= videos.after_epoch()
        run.log.write(logs)
        run.checkpoints.observe(logs)
        if stop_at and trainer.global_step >= stop_at:
            trainer.stop = True
        if target_reached(config, evaluator.score):
            dashboard.message(reached_note(config, evaluator.score))
            trainer.stop = True
        for line in run.trackers.log(logs, videos.newest):
            dashboard.message(line)
        dashboard.update(logs, last=trainer.stop or trainer.epoch == config.epochs)
        improved = run.checkpoints.improved
        is_due = checkpoint.is_checkpoint_due(config, trainer.epoch - 1)  # counted from 0
        if ranks.any(is_due or improved):  # tells the other ranks to join: follow_first_rank
            with ranks.exempt_from_timeout():
                ending.save()
        if improved:
            dashboard.message(best_note(run, evaluator.score))
    with ranks.exempt_from_timeout():
        ending.save()  # no effect if the last epoch is saved already
    if trainer.error:
        raise trainer.error


def finish_run(
    run: Run, evaluator: Evaluator, ending: RunEnding, dashboard: Dashboard
) -> dict[str, float]:
    """Evaluate the final weights of a finished run, and send the result to the trackers.

    Returns:
        The evaluation's record; empty without an evaluation.
    """
    trainer, trackers = run.trainer, run.trackers
    trackers.done = trainer.epoch == trainer.config.epochs
    trackers.weights = ending.saved / checkpoint.WEIGHTS if ending.saved else None
    if not trackers.done:
        return {}
    if ladder.plays_ladder(trainer.config):
        record = play_final_games(run, dashboard)
    else:
        record = evaluate_final_weights(evaluator, trainer, dashboard)
    if record:
        run.log.write(record)
        trackers.set_evaluation_scores(record)
    return record


def evaluate_final_weights(
    evaluator: Evaluator, trainer: Trainer, dashboard: Dashboard
) -> dict[str, float]:
    """Evaluate a run's final weights by playing. Returns the metrics; {} without an evaluation."""
    record: dict[str, float] = {}
    for record in evaluator.after_training():
        if dashboard.live:
            scores = {
                name.replace("env/", EVALUATION_PREFIX): value
                for name, value in record.items()
                if "env/" in name
            }
            dashboard.update(scores)
    if record:
        text = ", ".join(
            f"{name.partition('/')[2]} {value:.3f}"
            for name, value in record.items()
            if "env/" in name
        )
        if text:
            dashboard.message(f"evaluation of the final weights: {text}")
        if note := incomplete_note(trainer, record):
            dashboard.message(note)
    return record


def play_final_games(run: Run, dashboard: Dashboard) -> dict[str, float]:
    """Play the games that evaluate a self-play run at its end. Returns their metrics."""
    results = ladder.play_configured_ladder(run.trainer, make_separate_environments, run.log.touch)
    for line in str(results).splitlines():
        dashboard.message(line)
    return ladder.ladder_logs(results, run.trainer)
