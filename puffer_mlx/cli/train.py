"""Train a policy: puffer-mlx train breakout [options]; --help shows the usual ones."""

import argparse
import contextlib
import sys

from rich.console import Console

from puffer_mlx import checkpoint, vec
from puffer_mlx.cli.exit_codes import reported
from puffer_mlx.cli.list_environments import print_catalog
from puffer_mlx.cli.train_options import add_options, configured, find_resumed
from puffer_mlx.cli.train_output import rate_note
from puffer_mlx.cli.train_run import train
from puffer_mlx.cli.verbosity import detail_config
from puffer_mlx.config import Config, take_notes, unused_note
from puffer_mlx.config.command_line import build_parser
from puffer_mlx.config.trainer_choice import trainer_note, unread
from puffer_mlx.errors import UserError
from puffer_mlx.machines import starting
from puffer_mlx.machines.launched import rank_said, started
from puffer_mlx.machines.share import share
from puffer_mlx.ppo import optimizers
from puffer_mlx.system import program, voice
from puffer_mlx.system.version import version_text
<<<<<<< HEAD
from puffer_mlx.tracking.further_log import further_log
from puffer_mlx.tracking.json_lines import JsonLines, log_path
from puffer_mlx.tracking.run_log import RunLog
from puffer_mlx.tracking.scores import EVALUATION, SCORE
from puffer_mlx.tracking.tracked_run import Trackers, asked, last_step, refuse_missing
from puffer_mlx.training import after_self_play, evaluation, placement, while_training
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.training.while_training import Evaluator
from puffer_mlx.vec.base import Environments, TellsScores


def train(config: Config, options: argparse.Namespace, resumed: Checkpoint | None) -> int:
    """Train; the exit code.

    Args:
        config: what to do.
        options: this script's own.
        resumed: the checkpoint to go on from.
    """
    select_device(config.base.device)
    ranks = joining.join(config, resumed.folder.name if resumed else "none")
    with ranks.attended():
        return train_part(config, options, resumed, ranks)


def train_part(
    config: Config, options: argparse.Namespace, resumed: Checkpoint | None, ranks: Alone
) -> int:
    """Train as one of several ranks, or as the only one: see ``train``."""
    kept = optimizers.kept(optimizers.of(config))
    refuse_training(ranks.own(config), kept=kept)  # before environments, which may be as large
    if note := kernels_note():
        voice.note(note, error=True)
    path = resumed.folder / checkpoint.WEIGHTS if resumed else None
    if options.load_model_path is not None:
        path = checkpoint.find_weights(options.load_model_path, config)
    outside = StopRequests()
    config, made = make_environments(config, path, ranks)
    with made as environments, output.going_on(outside.lost), contextlib.ExitStack() as stack:
        introduce(config, environments)
        state = checkpoint.load_state(resumed.folder) if resumed else None
        if path:
            restore_statistics(environments, path)
        if resumed:
            config = checkpoint.encoder_as_trained(config, resumed.spec, environments.spec)
        trainer = Trainer(config, environments, like=state, ranks=ranks)
        record = trace_files(trainer, options)
        position = None
        if resumed and state:
            position = go_on(trainer, resumed, state)
        elif path:
            trainer.weights = load_weights(path, trainer.weights)
        outside.trainer = trainer
        if ranks.rank:
            return follow(trainer, outside, resumed)
        folder = resumed.folder.parent if resumed else stack.enter_context(new_run(config))
        keeper = checkpoint.CheckpointManager(folder, config, resumed.folder if resumed else None)
        logged = last_step(log_path(config, folder.name)) if resumed else None
        log = JsonLines(log_path(config, folder.name), position)
        voice.detail(
            f"checkpoints {folder}\nlog         {log.path}\ncompiled    {cache_directory()}"
        )
        run = RunLog(config, folder.name, log.path, trainer.placement.overlap)
        stack.enter_context(further_log(run))
        if log.note:
            voice.note(log.note)
        own_network = vec.has_own_network(config)
        if note := plainer_note(config.env_name, trainer.policy.encoder, own_network):
            voice.note(note)
        for line in placement.notes(config, trainer.placement):
            voice.note(line)
        if note := evaluation_note(config):
            voice.note(note)
        facts, total = summary(trainer, folder.name), config.epochs * config.batch_size
        if options.stop_at:
            total = min(total, -(-options.stop_at // config.batch_size) * config.batch_size)
        evaluator = Evaluator(trainer, new_environments, alive=log.touch)
        before = state.numbers.get(EVALUATED) if state else None
        ending = RunEnding(trainer, keeper, log, evaluator, resumed.folder if resumed else None)
        ranks.first(str(folder))
        ranks.rescue_by(ending.rescue)
        trainer.stop = outside.stopped
        if while_training.reached(config, before):  # the run had ended there
            voice.note(reached_note(config, before))
            trainer.stop = True
        step = trainer.global_step if resumed else None
        trackers = stack.enter_context(Trackers(run, asked(config), step, logged))
        about = setting(trainer, environments)
        with (
            contextlib.closing(log),
            signals.gently(outside.stop, ending.rescue) as watch,
            ending,
            Dashboard(facts, total, console(), about, partial(under_way, trainer)) as dashboard,
            record,
        ):
            videos = EpisodeVideos(trainer, folder, dashboard.message)
            for logs in trainer:
                record.epoch()
                with ranks.apart():
                    logs |= evaluator.after_epoch()
                    logs |= videos.after_epoch()
                log.write(logs)
                keeper.observe(logs)
                if options.stop_at and trainer.global_step >= options.stop_at:
                    trainer.stop = True
                if while_training.reached(config, evaluator.score):
                    dashboard.message(reached_note(config, evaluator.score))
                    trainer.stop = True
                for line in trackers.log(logs, videos.newest):
                    dashboard.message(line)
                dashboard.update(logs, last=trainer.stop or trainer.epoch == config.epochs)
                due = checkpoint.is_due(config, trainer.epoch - 1) or keeper.improved
                if ranks.any(due):
                    with ranks.apart():
                        ending.save()
            with ranks.apart():
                ending.save()  # only here is it certain that the run stopped
            if trainer.fault:
                raise trainer.fault
            trackers.done = trainer.epoch == config.epochs
            trackers.weights = ending.saved and ending.saved / checkpoint.WEIGHTS
            if not trackers.done:
                last = {}
            elif after_self_play.is_asked(config):
                last = climb(trainer, dashboard, log.touch)
            else:
                last = evaluate(evaluator, trainer, dashboard)
            if last:
                log.write(last)
                trackers.evaluated(last)
        return outside.status or (watch.status if watch.number == signal.SIGHUP else 0)


def console() -> Console | None:
    """Where the dashboard draws: standard output, or with ``-q`` nowhere."""
    return Console(quiet=True, force_terminal=False) if voice.is_quiet() else None


def make_environments(
    config: Config, path: Path | None, ranks: Alone
) -> tuple[Config, Environments]:
    """The environments of a run, and its configuration as they need it.

    Args:
        config: as it is asked for.
        path: the weights to begin from, whose policy may have learned to see normalised rows, or to
            put out rescaled actions.
        ranks: of which each has a part of them.
    """
    if path:
        asked, config = config, as_trained(config, path)
        for line in differences(asked, config, path):
            voice.note(line)
    return config, make_part(config, ranks, placement.rollout_cores(config))


def introduce(config: Config, environments: Environments) -> None:
    """Print what there is to be said of environments; refuse those that can't be evaluated.

    Or can't be drawn, where videos are asked for.
    """
    say(config)
    evaluation.refuse_agents(config, environments)
    refuse_undrawable(config, environments)
    if note := after_self_play.prepare(config, environments.spec):
        voice.note(note)
    if unused := vec.unused_keys(config, environments):
        voice.note(f"unused here: {', '.join(unused)}")
    if config.python:
        for line in filter(None, (environments.description, family_note(config))):
            voice.note(line)


def trace_files(trainer: Trainer, options: argparse.Namespace) -> TraceFiles:
    """What the options want recorded besides the log."""
    captured = options.gpu_capture and (options.gpu_capture, options.gpu_capture_epochs or 1)
    traced = options.trace and (options.trace, options.profile_epochs or PROFILED)
    return TraceFiles(trainer, captured, traced)


def go_on(trainer: Trainer, resumed: Checkpoint, state: State) -> int:
    """Have a trainer go on from a checkpoint; returns where the run's log was."""
    exactly = trainer.restore(resumed.weights, state)
    voice.note(f"going on with {resumed.folder} after {trainer.epoch} epochs")
    if not exactly:
        voice.note(
            f"environments restarted: {restarted(trainer.config)}, so the run differs from an"
            " uninterrupted one"
        )
    if isinstance(trainer.vec, TellsScores) and "scores" not in state.arrays:
        voice.note(
            f"{SCORE} counts from here: the checkpoint has none of the last episodes' scores"
        )
    return state.numbers.get("log_position", 0)  # saved without a log, in a notebook say


def new_environments(config: Config) -> Environments:
    """Those of an evaluation."""
    return vec.make(config, placement.rollout_cores(config))


def evaluate(evaluator: Evaluator, trainer: Trainer, dashboard: Dashboard) -> dict[str, float]:
    """Roll out the final weights, as upstream does after training; the record, empty if none."""
    record: dict[str, float] = {}
    for record in evaluator.after_training():
        if dashboard.live:
            found = {n.replace("env/", EVALUATION): x for n, x in record.items() if "env/" in n}
            dashboard.update(found)
    if record:
        shown = ", ".join(
            f"{name.partition('/')[2]} {value:.3f}"
            for name, value in record.items()
            if "env/" in name
        )
        if shown:
            dashboard.message(f"evaluation of the final weights: {shown}")
        if note := evaluation.short_note(trainer, record):
            dashboard.message(note)
    return record


def climb(trainer: Trainer, dashboard: Dashboard, alive: Callable[[], object]) -> dict[str, float]:
    """Have the final weights of a run with self-play play others; the record."""
    ladder = after_self_play.climb(trainer, new_environments, alive)
    for line in str(ladder).splitlines():
        dashboard.message(line)
    return after_self_play.logs_of(ladder, trainer)
=======
from puffer_mlx.tracking.tracked_run import refuse_missing
>>>>>>> main


def option_parser() -> argparse.ArgumentParser:
    return build_parser(extra=add_options)


@reported
def main(argv: list[str]) -> int | None:
    if "--version" in argv:
        print(version_text())
        return
    if "--list" in argv:
        print_catalog(Console())
        return
    with contextlib.ExitStack() as stack:
        if rank_said():
            stack.enter_context(voice.speaking(voice.QUIET))
        return start(argv, find_resumed(argv, stack), stack)


def start(
    argv: list[str], resumed: checkpoint.Checkpoint | None, held: contextlib.ExitStack
) -> int:
    """Train as a command line says, from a checkpoint on or from the beginning; the exit code.

    Args:
        argv: the words.
        resumed: the checkpoint to go on from.
        held: holds its run.
    """
    own = resumed.folder / checkpoint.CONFIG if resumed else None
    config, options = configured(argv, own)
    if config.train.gpus > 1 and not started():
        held.close()  # the first rank holds it
        return start_here(config, argv)
    if resumed and options.load_model_path is not None:
        raise UserError("--resume and --load-model-path are given", "one of them")
    refuse_missing(config)
    vec.settle_family(config)
    voice.note(trainer_note(config), *take_notes(config))
    config.unused += [*optimizers.unread(config), *unread(config)]
    voice.note(unused_note(config), "" if resumed else rate_note(config))
    detail_config(config)
    return train(config, options, resumed)


def start_here(config: Config, argv: list[str]) -> int:
    """Start ``train.gpus`` ranks of this command on this machine; the exit code."""
    share(config, 0, config.train.gpus)  # it can be divided: said once, not by each
    loud = {voice.QUIET: ["-q"], voice.VERBOSE: ["-v"]}.get(voice.level(), [])
    on_gpus = starting.uses_gpus(config.base.device)
    words = program.of_package("train", *argv, *loud)
    return starting.start_ranks(config.train.gpus, words, on_gpus)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
