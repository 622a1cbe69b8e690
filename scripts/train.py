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
from puffer_mlx.config import Config, parse_command_line, unused_note
from puffer_mlx.cpu_ops import threads
from puffer_mlx.dashboard import Dashboard, abbreviate
from puffer_mlx.errors import UserError
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
        help="start from weights: a .safetensors or .bin file, a run's folder, or latest",
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


def train(config: Config, options: argparse.Namespace) -> None:
    device = select_device(config.base.device)
    raise_cache_limit()
    run_id = str(time.time_ns() // 1_000_000)
    with vec.make(config, threads()) as environments:
        if environments.unread:
            print(f"unused here: {', '.join(f'env.{key}' for key in environments.unread)}")
        trainer = Trainer(config, environments)
        if options.load_model_path:
            path = checkpoint.find_weights(options.load_model_path, config)
            trainer.weights = load_weights(path, trainer.weights)
        folder = checkpoint.prepare(config, run_id)
        log = JsonLines(log_path(config, run_id))
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

        def save() -> None:
            """Save the weights of the last epoch that ended, unless they are."""
            nonlocal saved
            path = checkpoint.path_of(folder, trainer.epoch * config.batch_size)
            if trainer.epoch and saved != path:
                checkpoint.save(path, trainer.weights)
                saved = path

        try:
            with Dashboard(summary, total) as dashboard:
                for logs in trainer:
                    log.write(logs)
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
                save()
            raise
        finally:
            log.close()
        print(
            f"saved {saved}" if saved else "stopped before the first epoch ended; nothing to save"
        )
        print(f"log   {log.path}")


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


def main(argv: list[str]) -> int:
    try:
        if "--version" in argv:
            print(version_text())
            return 0
        config, options = parse_command_line(argv, add_options)
        if note := unused_note(config):
            print(note)
        train(config, options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
