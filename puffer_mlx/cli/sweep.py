"""Search for a good configuration: puffer-mlx sweep breakout [options]; --help shows them."""

import argparse
import contextlib
import importlib.util
import json
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from puffer_mlx import vec
from puffer_mlx.cli.exit_codes import reported
from puffer_mlx.cli.sweep_options import (
    LATEST,
    OBEYED,
    Own,
    add_options,
    own_options,
    without_sweep,
)
from puffer_mlx.config import Config, load, parse_command_line, take_notes, trust, unused_note
from puffer_mlx.config.command_line import build_parser
from puffer_mlx.config.trainer_choice import trainer_note
from puffer_mlx.errors import UserError
from puffer_mlx.sweep import places
from puffer_mlx.sweep.reading import Sweep, read_sweep
from puffer_mlx.sweep.space import Space
from puffer_mlx.system import program, voice
from puffer_mlx.system.files import publish
from puffer_mlx.system.private_folders import refuse_full
from puffer_mlx.tracking.tracked_run import refuse_missing

FIRST = ("total_timesteps", "learning_rate", "gamma")  # of what a row shows, if it is swept
WHERE = "sweep.json"  # in a sweep's folder: where its trials are


class Found(NamedTuple):
    """Which sweep it is, and where.

    Args:
        name: the sweep's.
        folder: its own on this machine.
        storage: where its trials are.
        there: whether it must be there already.
    """

    name: str
    folder: Path
    storage: str
    there: bool


def option_parser() -> argparse.ArgumentParser:
    return build_parser(extra=add_options, obeyed=OBEYED)


@reported
def main(argv: list[str]) -> int:
    config, _ = parse_command_line(argv, add_options, obeyed=OBEYED)
    if importlib.util.find_spec("optuna") is None:
        raise UserError("a sweep needs Optuna", "pip install 'puffer-mlx[sweep]'")
    refuse_full()  # else each of its runs is, one after the other
    own, words = own_options(argv[1:])
    with ended_by_signals():
        return sweep(argv[0], words, own, find(config, own), config)


def find(config: Config, own: Own) -> Found:
    """Which sweep is meant.

    Raises:
        UserError: it isn't there.
    """
    above = Path(own.dir) / config.slug
    name = own.resume or own.name or str(time.time_ns() // 1_000_000)
    if own.resume == LATEST:
        files = sorted(above.glob(f"*/{WHERE}"), key=lambda path: path.stat().st_mtime)
        if not files:
            raise UserError(f"there is no sweep in {above}", "without --resume one begins")
        name = files[-1].parent.name
    folder = above / name
    if name != folder.name or name.startswith("."):
        raise UserError(f"{name!r} is no name of a sweep", "a word, without a slash")
    if own.resume and not own.storage and not folder.is_dir():
        there = sorted(path.parent.name for path in above.glob(f"*/{WHERE}"))
        hint = (
            f"those there are: {', '.join(there[-3:])}" if there else "without --resume one begins"
        )
        raise UserError(f"there is no sweep {name} in {above}", hint)
    storage = own.storage or str(folder / "journal.log")
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        storage = own.storage or json.loads((folder / WHERE).read_text())["storage"]
    return Found(name, folder, storage, there=own.resume is not None)


def sweep(env: str, words: list[str], own: Own, found: Found, typed: Config) -> int:
    """Sweep; the exit code.

    Args:
        env: the environment.
        words: further ones of the configuration.
        own: the sweep's own options.
        found: which sweep it is.
        typed: the configuration of ``env`` and ``words`` alone.
    """
    from puffer_mlx.sweep.engine import opening, storage
    from puffer_mlx.sweep.engine.samplers import make_sampler
    from puffer_mlx.sweep.engine.trainings import Trainings

    opened = storage.open_storage(found.storage, must_exist=found.there)
    with storage.reported(found.storage):
        name = f"{found.folder.parent.name}-{found.name}"
        before = opening.about(opened, name)
        if before is None and found.there:
            there = ", ".join(opening.names(opened)) or "none"
            raise UserError(f"{found.storage} has no sweep {name}", f"those there are: {there}")
        began_with = before.get("words", []) if before else words
        said = [*kept_words(began_with), *words] if before else words
        config, swept = configured(env, said, typed, f"the sweep {name} in {found.storage}")
        plain = without_sweep(said)
        trainings = Trainings(
            env, plain, config, swept.space, swept.settings, found.folder, own.hang
        )
        sampler = make_sampler(swept.space, swept.settings, config.base.seed, trainings.settle)
        about = {"words": began_with, **opening.described(swept, config)}
        given = {} if before else {file: values_of(file, swept.space) for file in own.start_from}
        made = opening.open_study(opened, name, swept, about, sampler, given)
        with publish(found.folder / WHERE) as temporary:
            temporary.write_text(json.dumps({"storage": found.storage, "study": name}))
        return drive(made, trainings, own, found)


def configured(env: str, words: Sequence[str], typed: Config, study: str) -> tuple[Config, Sweep]:
    """The first run's configuration and what is swept; says what there is to say of both.

    Args:
        env: the environment.
        words: further ones: those that the study keeps, and those that were typed.
        typed: the configuration of those that were typed now.
        study: what messages call the study, whose words are a file's.

    Raises:
        UserError: anything wrong; or the study names code, or a file to write, that the person
            doesn't know. Runs get all words as if they were typed, so that it is asked here.
    """
    config, _ = parse_command_line([env, *words], add_options, obeyed=OBEYED)
    trust.note_origin(config, typed, study)
    trust.permit(config, "base", "env", "torch")
    trust.permit_profile(config)
    refuse_missing(config)
    vec.settle_family(config)
    voice.note(trainer_note(config), *take_notes(config))
    config.unused = [name for name in config.unused if not name.startswith("sweep.")]
    voice.note(unused_note(config))
    swept = read_sweep(config)
    voice.note(*swept.notes)
    return config, swept


def kept_words(words: Sequence[str]) -> list[str]:
    """A study's words that a sweep which goes on obeys: those of its configuration.

    Raises:
        UserError: they say where runs are kept.
    """
    return [word for word in own_options(words)[1] if word != "--allow-code"]


def values_of(word: str, space: Space) -> dict[str, int | float]:
    """The values of what is swept in another configuration, of ``--start-from``.

    Raises:
        UserError: it can't be read, or lacks one.
    """
    config = load(word, [])
    values: dict[str, int | float] = {}
    for p in space.parameters:
        section = config.env if p.section == "env" else vars(getattr(config, p.section))
        if not isinstance(found := section.get(p.key), int | float):
            raise UserError(f"{word} has no number for {p.name}", "leave it out of --start-from")
        values[p.name] = p.to_value(p.to_unit(found))
    return values


def drive(made: Any, trainings: Any, own: Own, found: Found) -> int:
    """Run what is to be run, and say what came of it; the exit code."""
    from puffer_mlx.sweep.engine.driver import Driver, judging
    from puffer_mlx.sweep.engine.table import Screen
    from puffer_mlx.sweep.engine.trainings import Records

    settings, config = trainings.settings, trainings.config
    gpus = gpus_of(config, settings.gpus)
    where = places.share(own.parallel, places.own_cores(), gpus, config.train.gpus)
    about = f"{settings.method} over {len(trainings.space)} keys"
    title = f"sweep {found.name} of {config.env_name}: {about}, {found.storage}"
    console = Console(quiet=True, force_terminal=False) if voice.is_quiet() else Console()
    with Screen(made, title, settings.max_runs, len(where), console, columns(trainings)) as screen:
        records = Records(made, trainings)

        def ended(run: Any) -> None:
            screen.ended(run)
            records.ended(run)

        judge = judging(made, trainings.space, settings)
        most, start = settings.max_runs, trainings.start
        try:
            Driver(made, start, where, most, screen.draw, ended, judge).run()
        except KeyboardInterrupt:
            again = f"{program.command('sweep')} {trainings.env} --resume {found.name}"
            voice.note(f"the runs under way were ended; {again} goes on", error=True)
            raise
        finally:
            records.conclude()
    return say_result(made, found, settings.metric)


def say_result(made: Any, found: Found, metric: str) -> int:
    """Print the result; the exit code."""
    from puffer_mlx.sweep.engine import report
    from puffer_mlx.sweep.engine.trainings import BEST

    best = made.best()
    if best is None:
        raise UserError("no run finished", f"what they said is in {found.folder / 'runs'}")
    score, cost = best.values
    number = f"{made.ordinal(best)} (runs/{best.number:04d})"
    print(f"best: run {number}, {metric} {score:.5g} after {cost:.1f} s of training")
    print(f"      {program.command('train')} {found.folder / BEST}")
    if known := report.importances(made):
        most = ", ".join(f"{name} {part:.0%}" for name, part in list(known.items())[:5])
        voice.note(f"what mattered: {most}")
    for path in report.draw(made, found.folder):
        voice.note(f"picture {path}")
    if not report.can_draw():
        voice.note("pictures of the front and of what mattered: pip install 'puffer-mlx[plot]'")
    return 0


def columns(trainings: Any) -> list[str]:
    """Which keys a row shows, by their short names."""
    swept = [name.rpartition(".")[2] for name in trainings.space.names]
    return [*[name for name in FIRST if name in swept], *[n for n in swept if n not in FIRST]][:4]


def gpus_of(config: Config, most: int) -> list[str]:
    """The GPUs that runs share; empty where they compute on a CPU, or a Mac's."""
    from puffer_mlx.system.devices import has_gpu

    found = places.own_gpus() if config.base.device != "cpu" else []
    if not found or not has_gpu():
        return []
    if most > len(found):
        raise UserError(
            f"sweep.gpus is {most}, and there are {len(found)}", f"at most {len(found)}"
        )
    return found[: most or None]


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM, which batch systems send, and a closed terminal end it as Ctrl-C does."""

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    mine = threading.current_thread() is threading.main_thread()
    numbers = [signal.SIGTERM, signal.SIGHUP] if mine else []
    before = {number: signal.getsignal(number) for number in numbers}
    for number, handler in before.items():
        if handler != signal.SIG_IGN:  # as nohup has it
            signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
