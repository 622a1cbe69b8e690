"""Search for a good configuration: puffer-mlx sweep breakout [options]; --help lists them."""

import argparse
import contextlib
import importlib.util
import json
import signal
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from puffer_mlx.cli.exit_codes import reported
from puffer_mlx.cli.options import find_family
from puffer_mlx.cli.sweep_options import (
    LATEST,
    USED,
    add_options,
    refuse_unknown_method,
    split,
    without_sweep,
)
from puffer_mlx.config import Config, load, parse_command_line, take_notes, trust, unused_keys_note
from puffer_mlx.config.command_line import build_parser
from puffer_mlx.config.notes import trainer_note
from puffer_mlx.errors import UserError
from puffer_mlx.sweep import training_process
from puffer_mlx.sweep.reading import Sweep, description, read_sweep
from puffer_mlx.sweep.space import Space
from puffer_mlx.system import program, voice
from puffer_mlx.system.files import publish
from puffer_mlx.system.private_folders import refuse_full
from puffer_mlx.system.signals import Interrupts, interrupting
from puffer_mlx.tracking.tracked_run import refuse_missing

FIRST = (
    "total_timesteps",
    "learning_rate",
    "gamma",
)  # shown first in a run's line
WHERE = "sweep.json"  # file in a sweep's folder that names the storage of its trials


class StoredSweep(NamedTuple):
    """Name and storage of a sweep.

    Args:
        name: Name of the sweep.
        folder: Local folder of the sweep.
        storage: File or URL of its trials.
        resumed: True if the sweep is resumed and must exist.
    """

    name: str
    folder: Path
    storage: str
    resumed: bool


def option_parser() -> argparse.ArgumentParser:
    return build_parser(add_options, used=USED)


@reported
def main(argv: list[str]) -> int:
    config, _ = parse_command_line(argv, add_options, used=USED)
    refuse_unknown_method(config)
    if importlib.util.find_spec("optuna") is None:
        raise UserError("a sweep needs Optuna", "pip install 'puffer-mlx[sweep]'")
    refuse_full()  # otherwise every run would fail in turn
    options, words = split(argv[1:])
    # Batch systems send SIGTERM, a closed terminal sends SIGHUP.
    with interrupting(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as interrupts:
        return sweep(argv[0], words, options, find(config, options), config, interrupts)


def find(config: Config, options: argparse.Namespace) -> StoredSweep:
    """Return the sweep that the options name.

    Raises:
        UserError: It doesn't exist, or its name is invalid.
    """
    above = Path(options.dir) / config.slug
    name = options.resume or options.name or str(time.time_ns() // 1_000_000)
    if options.resume == LATEST:
        files = sorted(above.glob(f"*/{WHERE}"), key=lambda path: path.stat().st_mtime)
        if not files:
            raise UserError(f"there is no sweep in {above}", "leave out --resume to start one")
        name = files[-1].parent.name
    folder = above / name
    if name != folder.name or name.startswith("."):
        raise UserError(f"{name!r} isn't a valid name of a sweep", "a word without a slash")
    if options.resume and not options.storage and not folder.is_dir():
        names = sorted(path.parent.name for path in above.glob(f"*/{WHERE}"))
        hint = "leave out --resume to start one"
        hint = f"existing sweeps: {', '.join(names[-3:])}" if names else hint
        raise UserError(f"there is no sweep {name} in {above}", hint)
    storage = options.storage or str(folder / "journal.log")
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        storage = options.storage or json.loads((folder / WHERE).read_text())["storage"]
    return StoredSweep(name, folder, storage, resumed=options.resume is not None)


def sweep(
    env: str,
    words: list[str],
    options: argparse.Namespace,
    stored: StoredSweep,
    typed: Config,
    interrupts: Interrupts,
) -> int:
    """Run the sweep. Returns the exit code.

    Args:
        env: Environment.
        words: Further words of the configuration.
        options: Options of the sweep.
        stored: Name and storage of the sweep.
        typed: Configuration of ``env`` and ``words`` alone.
        interrupts: Signals that end the sweep.
    """
    from puffer_mlx.sweep.engine import storage
    from puffer_mlx.sweep.engine import study as studies
    from puffer_mlx.sweep.engine.samplers import make_sampler
    from puffer_mlx.sweep.engine.trainings import Trainings

    database = storage.open_storage(stored.storage, must_exist=stored.resumed)
    with storage.reported(stored.storage):
        name = f"{stored.folder.parent.name}-{stored.name}"
        before = studies.study_info(database, name)
        if before is None and stored.resumed:
            names = ", ".join(studies.study_names(database)) or "none"
            raise UserError(f"{stored.storage} has no sweep {name}", f"existing sweeps: {names}")
        began_with = before.get("words", []) if before else words
        every = [*kept_words(began_with), *words] if before else words
        config, swept = configured(env, every, typed, f"the sweep {name} in {stored.storage}")
        plain = without_sweep(every)
        trainings = Trainings(
            env, plain, config, swept.space, swept.settings, stored.folder, options.hang
        )
        sampler = make_sampler(swept.space, swept.settings, config.base.seed, trainings.adjust)
        facts = {"words": began_with, **studies.describe_sweep(swept, config)}
        starts = [] if before else options.start_from
        values = {file: values_of(file, swept.space) for file in starts}
        study = studies.open_study(database, name, swept, facts, sampler, values)
        with publish(stored.folder / WHERE) as temporary:
            temporary.write_text(json.dumps({"storage": stored.storage, "study": name}))
        return drive(study, trainings, options, stored, interrupts)


def configured(env: str, words: Sequence[str], typed: Config, study: str) -> tuple[Config, Sweep]:
    """Return the first run's configuration and the sweep's settings; print notes on both.

    Args:
        env: Environment.
        words: Words of the study, then the typed ones.
        typed: Configuration of the typed words alone.
        study: Name of the study in messages. Its words are trusted no more than a file's.

    Raises:
        UserError: The configuration is invalid, or the study names code or a file to write that
            the user didn't type. This is checked here because runs get all words as typed.
    """
    look_up = partial(permitted_family, typed=typed, study=study)
    config, _ = parse_command_line([env, *words], add_options, used=USED, find_family=look_up)
    refuse_untrusted(config, typed, study)
    refuse_missing(config)
    voice.note(trainer_note(config), *take_notes(config))
    config.unused = [name for name in config.unused if not name.startswith("sweep.")]
    voice.note(unused_keys_note(config))
    swept = read_sweep(config)
    voice.note(*swept.notes, *description(config, swept))
    return config, swept


def refuse_untrusted(config: Config, typed: Config, study: str) -> None:
    """Refuse code and files to write that only a study's words name; arguments as above."""
    trust.note_origin(config, typed, study)
    trust.refuse_untrusted_code(config, "base", "env", "torch")
    trust.refuse_untrusted_profile(config)


def permitted_family(config: Config, typed: Config, study: str) -> str:
    """Return the family of an environment in Python, if its code may run; arguments as above."""
    refuse_untrusted(config, typed, study)
    return find_family(config)


def kept_words(words: Sequence[str]) -> list[str]:
    """Return the words of a study that a resumed sweep uses.

    Raises:
        UserError: The words set a folder for runs.
    """
    return [word for word in split(words)[1] if word != "--allow-code"]


def values_of(word: str, space: Space) -> dict[str, int | float]:
    """Return another configuration's values of the swept keys, for ``--start-from``.

    Raises:
        UserError: The configuration can't be read or lacks a value.
    """
    config = load(word, [])
    values: dict[str, int | float] = {}
    for p in space.parameters:
        section = config.env if p.section == "env" else vars(getattr(config, p.section))
        if not isinstance(value := section.get(p.key), int | float):
            raise UserError(f"{word} has no number for {p.name}", "leave it out of --start-from")
        values[p.name] = p.to_value(p.to_unit(value))
    return values


def drive(
    study: Any,
    trainings: Any,
    options: argparse.Namespace,
    stored: StoredSweep,
    interrupts: Interrupts,
) -> int:
    """Start the sweep's runs and print the result. Returns the exit code."""
    from puffer_mlx.sweep.engine.driver import Driver
    from puffer_mlx.sweep.engine.progress import Progress
    from puffer_mlx.sweep.engine.trainings import Records

    settings = trainings.settings
    config = trainings.config
    gpus = gpus_of(config, settings.gpus)
    cores = training_process.available_cores()
    slots = training_process.make_slots(options.parallel, cores, gpus, config.train.gpus)
    search = f"{settings.method} over {len(trainings.space)} keys"
    title = f"sweep {stored.name} of {config.env_name}: {search}, {stored.storage}"
    console = Console(quiet=True, force_terminal=False) if voice.is_quiet() else Console()
    shown = columns(trainings)
    with Progress(study, title, settings.max_runs, len(slots), console, shown) as progress:
        records = Records(study, trainings)

        def ended(run: Any) -> None:
            progress.ended(run)
            records.ended(run)

        most = settings.max_runs
        start = trainings.start
        try:
            Driver(study, start, slots, most, progress.draw, ended, interrupts).run()
        except KeyboardInterrupt:
            again = f"{program.command('sweep')} {trainings.env} --resume {stored.name}"
            voice.note(f"the active runs were ended; resume with {again}", error=True)
            raise
        finally:
            records.conclude()
    return say_result(study, stored, settings.metric)


def say_result(study: Any, stored: StoredSweep, metric: str) -> int:
    """Print the result. Returns the exit code.

    Raises:
        UserError: No run has finished.
    """
    from optuna.trial import TrialState

    from puffer_mlx.sweep.engine import progress
    from puffer_mlx.sweep.engine.trainings import BEST

    best = study.best()
    if best is None and (others := len(study.runs(TrialState.RUNNING))):
        raise UserError(
            f"another process is running {others} runs of the sweep {stored.name}; no run has"
            " finished yet, and max_runs allows no more",
            "wait for it, start another sweep with another --name, or raise --sweep.max-runs",
        )
    if best is None:
        raise UserError("no run finished", f"their output is in {stored.folder / 'runs'}")
    score, cost = best.values
    number = f"{study.ordinal(best)} (runs/{best.number:04d})"
    print(f"best: run {number}, {metric} {score:.5g} after {cost:.1f} s of training")
    if (held_out := study.held_out(best)).seeds:
        print(f"      with held-out seeds: {held_out.words(study.settings.sign)}")
    print(f"next  {program.command('train')} {stored.folder / BEST}")
    if warning := study.winner_warning():
        voice.note(warning)
    if known := progress.importances(study):
        most = ", ".join(f"{name} {part:.0%}" for name, part in list(known.items())[:5])
        voice.note(f"most important keys: {most}")
    for path in progress.draw(study, stored.folder):
        voice.note(f"picture {path}")
    if not progress.can_draw():
        voice.note("for pictures of the front and the importances: pip install 'puffer-mlx[plot]'")
    return 0


def columns(trainings: Any) -> list[str]:
    """Return the short names of up to four keys for a run's line."""
    swept = [name.rpartition(".")[2] for name in trainings.space.names]
    return [*[name for name in FIRST if name in swept], *[n for n in swept if n not in FIRST]][:4]


def gpus_of(config: Config, most: int) -> list[str]:
    """Return the GPUs that runs share; empty on a CPU and on Macs.

    Raises:
        UserError: More GPUs were requested than exist.
    """
    from puffer_mlx.system.devices import has_gpu

    gpus = training_process.available_gpus() if config.base.device != "cpu" else []
    if not gpus or not has_gpu():
        return []
    if most > len(gpus):
        raise UserError(f"sweep.gpus is {most}, and there are {len(gpus)}", f"at most {len(gpus)}")
    return gpus[: most or None]
