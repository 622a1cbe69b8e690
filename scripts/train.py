#!/usr/bin/env python
"""Train a policy: python scripts/train.py breakout [options]; --help explains every option."""

import argparse
import contextlib
import signal
import sys
import time
from pathlib import Path

from puffer_mlx import checkpoint, vec
from puffer_mlx.blas import blas_name, raise_cache_limit
from puffer_mlx.checkpoint import Checkpoint
from puffer_mlx.config import Config, parse_command_line, unused_note
from puffer_mlx.cpu_ops import threads
from puffer_mlx.dashboard import Dashboard, abbreviate
from puffer_mlx.errors import UserError, reported
from puffer_mlx.loggers import JsonLines, log_path
from puffer_mlx.trainer import Trainer, select_device
from puffer_mlx.version import version_text
from puffer_mlx.weights_io import load_weights


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
        "--version", action="store_true", help="print versions, device and BLAS, and exit"
    )


def train(config: Config, options: argparse.Namespace, resumed: Checkpoint | None) -> None:
    device = select_device(config.base.device)
    raise_cache_limit()
    run_id = resumed.folder.parent.name if resumed else str(time.time_ns() // 1_000_000)
    with vec.make(config, threads()) as environments:
        if environments.unread:
            print(f"unused here: {', '.join(f'env.{key}' for key in environments.unread)}")
        trainer = Trainer(config, environments)
        position = None
        if resumed:
            position = go_on(trainer, resumed)
        elif options.load_model_path:
            path = checkpoint.find_weights(options.load_model_path, config)
            trainer.weights = load_weights(path, trainer.weights)
        folder = resumed.folder.parent if resumed else checkpoint.prepare(config, run_id)
        keeper = checkpoint.Keeper(folder, config)
        log = JsonLines(log_path(config, run_id), position)
        summary = {
            "Environment": config.env_name,
            "Parameters": abbreviate(trainer.parameters),
            "Agents": f"{config.vec.total_agents:,} in {config.vec.num_buffers} groups",
            "Device": "GPU" if device.type == device.type.gpu else f"CPU, {blas_name()}",
            "Run": run_id,
        }
        stop_on_signals(trainer)
        total = config.epochs * config.batch_size
        if options.stop_at:
            total = min(total, -(-options.stop_at // config.batch_size) * config.batch_size)
        saved: Path | None = None
        saved_epoch = trainer.epoch  # what there is to save is what was trained since

        def save(whole: bool = True) -> None:
            """Save the last epoch that ended, unless it is; not whole: only its weights."""
            nonlocal saved, saved_epoch
            if trainer.epoch == saved_epoch:
                return
            state = trainer.state() if whole else None
            if state:
                state.numbers["log_position"] = log.position
            step = trainer.epoch * config.batch_size
            saved = keeper.save(step, environments.spec, trainer.policy, trainer.weights, state)
            saved_epoch = trainer.epoch

        try:
            with Dashboard(summary, total) as dashboard:
                for logs in trainer:
                    log.write(logs)
                    keeper.observe(logs)
                    if options.stop_at and trainer.global_step >= options.stop_at:
                        trainer.stop = True
                    dashboard.update(logs, last=trainer.stop or trainer.epoch == config.epochs)
                    if checkpoint.is_due(config, trainer.epoch - 1):
                        save()
                save()  # only here is it certain that the run stopped: a signal may come any time
                if trainer.epoch == config.epochs and (evaluation := evaluate(trainer, dashboard)):
                    log.write(evaluation)
        except UserError:  # a loss that isn't finite, a full disk: keep what can be kept
            with contextlib.suppress(UserError):
                save(whole=False)  # an epoch was under way, or its record is missing
            raise
        finally:
            log.close()
        print(f"saved {saved}" if saved else "no epoch ended; nothing to save")
        print(f"log   {log.path}")


def go_on(trainer: Trainer, resumed: Checkpoint) -> int:
    """Have a trainer go on from a checkpoint; returns where the run's log was."""
    state = checkpoint.load_state(resumed.folder)
    exactly = trainer.restore(resumed.weights, state)
    print(f"going on with {resumed.folder} after {trainer.epoch} epochs")
    if not exactly:
        print(
            "environments restarted: this one can't save its state (MY_STATE in its binding.c),"
            " so the run differs from an uninterrupted one"
        )
    return state.numbers.get("log_position", 0)  # saved without a log, in a notebook say


def find_resumed(argv: list[str]) -> Checkpoint | None:
    """The checkpoint that --resume names; its own configuration is what other options change."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("--resume", "--checkpoint-dir", "--checkpoint_dir"):
        first.add_argument(name, dest=name[2:].replace("-", "_"), nargs="?")
    given, _ = first.parse_known_args(argv[1:])
    if not given.resume:
        return None
    directory = ["--checkpoint-dir", given.checkpoint_dir] if given.checkpoint_dir else []
    config, _ = parse_command_line([argv[0], *directory])
    made = checkpoint.load(checkpoint.find(given.resume, config, checkpoint.STATE))
    if made.config.env_name != config.env_name:
        raise UserError(
            f"{made.folder} is a run of {made.config.env_name}, not of {config.env_name}",
            f"python scripts/train.py {made.config.env_name} --resume {given.resume}",
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


def stop_on_signals(trainer: Trainer) -> None:
    """Ctrl-C and SIGTERM end the run after its epoch, saved; a second one ends it at once."""

    def handle(number: int, _frame: object) -> None:
        if trainer.stop:
            raise KeyboardInterrupt
        trainer.stop = True
        print("\nstopping after this epoch; again to stop at once", file=sys.stderr)

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)


@reported
def main(argv: list[str]) -> None:
    if "--version" in argv:
        print(version_text())
        return
    resumed = find_resumed(argv)
    if resumed:
        argv = [str(resumed.folder / checkpoint.CONFIG), *argv[1:]]
    config, options = parse_command_line(argv, add_options)
    if resumed and options.load_model_path:
        raise UserError("--resume and --load-model-path are given", "one of them")
    if note := unused_note(config):
        print(note)
    train(config, options, resumed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
