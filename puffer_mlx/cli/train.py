"""Train a policy: python scripts/train.py breakout [options]; --help explains every option."""

import argparse
import contextlib
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from puffer_mlx import checkpoint, vec
from puffer_mlx.checkpoint import Checkpoint, State
from puffer_mlx.checkpoint.environment_statistics import as_trained, restore_statistics
from puffer_mlx.checkpoint.run_lock import held, new_run
from puffer_mlx.checkpoint.weight_files import load_weights
from puffer_mlx.cli.exit_codes import reported
from puffer_mlx.cli.list_environments import print_catalog
from puffer_mlx.cli.stopping import Ending, Outside
from puffer_mlx.cli.trace_files import Recording
from puffer_mlx.config import Config, parse_command_line, take_notes, trust, unused_note
from puffer_mlx.config.fit import rollout_threads
from puffer_mlx.config.memory_needs import refuse_training
from puffer_mlx.config.schema import COMMAND_LINE, KEYS
from puffer_mlx.display.bottleneck import Setting
from puffer_mlx.display.dashboard import Dashboard, abbreviate
from puffer_mlx.errors import UserError
from puffer_mlx.policy.encoders.catalog import plainer_note
from puffer_mlx.ppo import optimizers
from puffer_mlx.profiling import metal_capture
from puffer_mlx.system import output, signals
from puffer_mlx.system.blas import blas_name
from puffer_mlx.system.devices import has_gpu, kernels_note, kind, select_device
from puffer_mlx.system.version import version_text
from puffer_mlx.tracking.json_lines import JsonLines, log_path
from puffer_mlx.tracking.scores import SCORE
from puffer_mlx.training import placement
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.vec.base import Environments, TellsScores

PROFILED = 3  # epochs of a timeline


def step_number(text: str) -> int:
    """A positive number of steps: 64, 1_000_000 or 1e6."""
    try:
        step = int(float(text))
    except (ValueError, OverflowError):
        step = 0
    if step < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of steps, for example 1_000_000"
        )
    return step


def epochs_number(text: str) -> int:
    """A positive whole number."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of epochs, for example 3")
    return int(text)


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("this run")
    group.add_argument(
        "--load-model-path",
        metavar="PATH",
        help="start a new run from weights: a .safetensors or .bin file, or what --resume takes",
    )
    group.add_argument(
        "--resume",
        metavar="RUN",
        help="go on with a run exactly where it was saved: latest, a RUN_ID, a run's folder or a"
        " checkpoint's; its own configuration, changed by the other options given here",
    )
    group.add_argument(
        "--stop-at",
        metavar="STEP",
        type=step_number,
        help="end after the epoch that reaches this step, schedules unchanged",
    )
    group.add_argument(
        "--profile-epochs",
        metavar="N",
        type=epochs_number,
        help="epochs in the timeline of --profile FILE.json, from the third of this start on"
        f" (default {PROFILED})",
    )
    group.add_argument(
        "--gpu-capture",
        metavar="FILE.gputrace",
        type=Path,
        help="Macs only: record what the GPU does, for Xcode; needs MTL_CAPTURE_ENABLED=1",
    )
    group.add_argument(
        "--gpu-capture-epochs",
        metavar="N",
        type=epochs_number,
        help=f"epochs in it, at most {metal_capture.MOST}: each may take gigabytes (default 1)",
    )
    group.add_argument("--list", action="store_true", help="say which environments there are")
    group.add_argument(
        "--version", action="store_true", help="print versions, device and BLAS, and exit"
    )


def train(
    config: Config,
    options: argparse.Namespace,
    resumed: Checkpoint | None,
    with_images: Callable[[], Config],
) -> int:
    """Train; the exit code.

    Args:
        config: without what images need.
        options: this script's own.
        resumed: the checkpoint to go on from.
        with_images: makes the configuration with it.
    """
    select_device(config.base.device)
    kept = optimizers.kept(optimizers.find(config.train.optimizer))
    refuse_training(config, kept=kept)  # before environments are made, which may be as large
    if note := kernels_note():
        print(note, file=sys.stderr, flush=True)
    path = resumed.folder / checkpoint.WEIGHTS if resumed else None
    if options.load_model_path is not None:
        path = checkpoint.find_weights(options.load_model_path, config)

    def as_learned(config: Config) -> Config:
        return as_trained(config, path) if path else config

    asked, config = config, as_learned(config)
    if config is not asked:
        print(f"observations are normalised, as {path} learned to see them")
    outside = Outside()
    config, made = vec.make_fitting(
        config, placement.rollout_cores, lambda: as_learned(with_images())
    )
    with made as environments, output.going_on(outside.lost), contextlib.ExitStack() as stack:
        say(config)
        if unused := vec.unused_keys(config, environments):
            print(f"unused here: {', '.join(unused)}")
        if config.python:
            print(environments.description)
            print(f"settings: {', '.join(config.files[1:])}")  # default.ini goes without saying
        state = checkpoint.load_state(resumed.folder) if resumed else None
        if path:
            restore_statistics(environments, path)
        trainer = Trainer(config, environments, like=state)
        captured = options.gpu_capture and (options.gpu_capture, options.gpu_capture_epochs or 1)
        traced = options.trace and (options.trace, options.profile_epochs or PROFILED)
        record = Recording(trainer, captured, traced)
        position = None
        if resumed and state:
            position = go_on(trainer, resumed, state)
        elif path:
            trainer.weights = load_weights(path, trainer.weights)
        folder = resumed.folder.parent if resumed else stack.enter_context(new_run(config))
        keeper = checkpoint.CheckpointManager(folder, config, resumed.folder if resumed else None)
        log = JsonLines(log_path(config, folder.name), position)
        if log.note:
            print(log.note)
        if note := plainer_note(config.env_name, trainer.policy.encoder):
            print(note)
        for line in placement.notes(config, trainer.placement):
            print(line)
        summary = {
            "Environment": config.env_name,
            "Parameters": abbreviate(trainer.parameters),
            "Agents": f"{config.vec.total_agents:,} in {config.vec.num_buffers} groups",
            "Device": device_text(trainer),
            "Run": folder.name,
        }
        total = config.epochs * config.batch_size
        if options.stop_at:
            total = min(total, -(-options.stop_at // config.batch_size) * config.batch_size)
        ending = Ending(trainer, keeper, log, resumed.folder if resumed else None)
        outside.trainer = trainer
        trainer.stop = outside.stopped
        with (
            contextlib.closing(log),
            signals.gently(outside.stop, ending.rescue) as watch,
            ending,
            Dashboard(summary, total, setting=setting(trainer, environments)) as dashboard,
            record,
        ):
            for logs in trainer:
                record.epoch()
                log.write(logs)
                keeper.observe(logs)
                if options.stop_at and trainer.global_step >= options.stop_at:
                    trainer.stop = True
                dashboard.update(logs, last=trainer.stop or trainer.epoch == config.epochs)
                if checkpoint.is_due(config, trainer.epoch - 1):
                    ending.save()
            ending.save()  # only here is it certain that the run stopped
            if trainer.fault:
                raise trainer.fault
            if trainer.epoch == config.epochs and (evaluation := evaluate(trainer, dashboard)):
                log.write(evaluation)
        return outside.status or (watch.status if watch.number == signal.SIGHUP else 0)


def device_text(trainer: Trainer) -> str:
    """Where it trains, and where it acts if that is elsewhere."""
    place = trainer.placement
    text = f"CPU, {blas_name()}" if kind(place.learner) == "cpu" else "GPU"
    return text if place.rollout == place.learner else f"{text}; rollouts on the CPU"


def setting(trainer: Trainer, environments: Environments) -> Setting:
    """What the dashboard's advice depends on."""
    config, place = trainer.config, trainer.placement
    cores = placement.rollout_cores(config)
    return Setting(
        device=kind(place.learner),
        rollout_device=kind(place.rollout),
        overlap=place.overlap,
        precision=config.train.precision,
        cores=cores,
        num_threads=rollout_threads(config, cores),
        num_buffers=config.vec.num_buffers,
        total_agents=config.vec.total_agents,
        minibatch_size=config.train.minibatch_size,
        minibatches=config.minibatches,
        parameters=trainer.parameters,
        has_gpu=has_gpu(),
        backend=environments.backend,
        chosen=config.vec.backend != "auto",
        environments=environments.num_environments,
        in_c=trainer.acts_in_c,
        started=trainer.epoch,
    )


def go_on(trainer: Trainer, resumed: Checkpoint, state: State) -> int:
    """Have a trainer go on from a checkpoint; returns where the run's log was."""
    exactly = trainer.restore(resumed.weights, state)
    print(f"going on with {resumed.folder} after {trainer.epoch} epochs")
    if not exactly:
        print(
            f"environments restarted: {restarted(trainer.config)}, so the run differs from an"
            " uninterrupted one"
        )
    if isinstance(trainer.vec, TellsScores) and "scores" not in state.arrays:
        print(f"{SCORE} counts from here: the checkpoint has none of the last episodes' scores")
    return state.numbers.get("log_position", 0)  # saved without a log, in a notebook say


def restarted(config: Config) -> str:
    """Why environments can't go on."""
    if config.python:
        return "those of Python can't save their state"
    return "this one can't save its state (MY_STATE in its binding.c)"


def find_resumed(argv: list[str], stack: contextlib.ExitStack) -> Checkpoint | None:
    """The checkpoint that --resume names; its own configuration is what other options change.

    Its run is held until the stack is closed.
    """
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("--resume", "--checkpoint-dir", "--torch.network", "--torch.encoder"):
        spelled = {name, name.replace("-dir", "_dir")}
        first.add_argument(*spelled, dest=name, nargs="?")
    first.add_argument("--allow-code", "--allow_code", action="store_true")
    given, _ = first.parse_known_args(argv[1:])
    words = vars(given)
    if (which := words.pop("--resume")) is None:
        return None
    allow = ["--allow-code"] * words.pop("allow_code")
    options = [word for pair in words.items() if pair[1] for word in pair]
    config, _ = parse_command_line([argv[0], *options, *allow], training=False)
    found = checkpoint.find(which, config, checkpoint.STATE)
    stack.enter_context(held(found.parent))
    found = checkpoint.find(which, config, checkpoint.STATE)  # it may have ended meanwhile
    made = checkpoint.load(found, trust.known(config))
    if made.config.env_name != config.env_name:
        raise UserError(
            f"{made.folder} is a run of {made.config.env_name}, not of {config.env_name}",
            f"python scripts/train.py {made.config.env_name} --resume {which}",
        )
    return made


def evaluate(trainer: Trainer, dashboard: Dashboard) -> dict[str, float]:
    """Roll out the final weights, as upstream does after training; the record, empty if none."""
    record: dict[str, float] = {}
    for record in trainer.evaluate():
        if dashboard.live:
            dashboard.update({name: record[name] for name in record if name.startswith("env/")})
    if record:
        shown = ", ".join(
            f"{name.partition('/')[2]} {value:.3f}"
            for name, value in record.items()
            if "env/" in name
        )
        dashboard.message(f"evaluation of the final weights: {shown}")
    return record


@reported
def main(argv: list[str]) -> int | None:
    if "--version" in argv:
        print(version_text())
        return
    if "--list" in argv:
        print_catalog(Console())
        return
    with contextlib.ExitStack() as stack:
        return start(argv, find_resumed(argv, stack))


def start(argv: list[str], resumed: Checkpoint | None) -> int:
    """Train as a command line says, from a checkpoint on or from the beginning; the exit code."""
    own = resumed.folder / checkpoint.CONFIG if resumed else None
    config, options = configured(argv, own)
    if resumed and options.load_model_path is not None:
        raise UserError("--resume and --load-model-path are given", "one of them")
    say(config)
    config.unused += optimizers.unread(config)
    if note := unused_note(config):
        print(note)
    if not resumed and (note := rate_note(config)):
        print(note)
    return train(config, options, resumed, lambda: configured(argv, own, images=True)[0])


def configured(
    argv: list[str], run: Path | None, images: bool = False
) -> tuple[Config, argparse.Namespace]:
    """The configuration and this script's own options, ``trace`` among them.

    Args:
        argv: the words.
        run: the configuration of the run that goes on, if one does.
        images: as of ``parse_command_line``.
    """
    config, options = parse_command_line(argv, add_options, images=images, run=run)
    options.trace = None
    trust.permit_log_dir(config, new=run is None)
    if isinstance(config.base.profile, str):  # a file of this start, not of the run
        if (origin := config.origins["base.profile"]) != COMMAND_LINE:
            raise UserError(
                f"{origin} would have the file {config.base.profile} written",
                f"say so on the command line: --profile {config.base.profile}",
            )
        options.trace, config.base.profile = Path(config.base.profile), True
    for epochs, file, words in (
        (options.profile_epochs, options.trace, ("--profile-epochs", "--profile FILE.json")),
        (
            options.gpu_capture_epochs,
            options.gpu_capture,
            ("--gpu-capture-epochs", "--gpu-capture"),
        ),
    ):
        if epochs and not file:
            raise UserError(f"{words[0]} does nothing without {words[1]}", "add it")
    return config, options


def rate_note(config: Config) -> str | None:
    """The line about a learning rate that was chosen for another optimizer; None without one."""
    usual, rate = KEYS["train"]["optimizer"].default, "train.learning_rate"
    if config.train.optimizer == usual or config.origins.get(rate) == COMMAND_LINE:
        return None
    if config.origins.get(rate) and config.origins.get("train.optimizer") != COMMAND_LINE:
        return None  # a file says both
    where = f" ({config.origins[rate]})" if rate in config.origins else ""
    return (
        f"{rate} {config.train.learning_rate:g}{where} was chosen for {usual}:"
        f" --train.learning-rate sets one for {config.train.optimizer}"
    )


def say(config: Config) -> None:
    """Print what there is to be said of a configuration, once."""
    for line in take_notes(config):
        print(line)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
