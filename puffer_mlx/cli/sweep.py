"""The command ``sweep``: search for good hyperparameters with many runs."""

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

from puffer_mlx.cli.exit_codes import with_exit_code
from puffer_mlx.cli.options import make_and_find_family
from puffer_mlx.cli.sweep_options import (
    LATEST_SWEEP,
    SWEEP_RUN_KEYS,
    add_options,
    refuse_unknown_method,
    split_sweep_options,
    without_sweep_options,
)
from puffer_mlx.config import Config, load, parse_command_line, take_notes, trust, unused_keys_note
from puffer_mlx.config.command_line import build_parser
from puffer_mlx.config.notes import trainer_note
from puffer_mlx.errors import UserError
from puffer_mlx.sweep import training_process
from puffer_mlx.sweep.reading import Sweep, describe_space, read_sweep
from puffer_mlx.sweep.space import Space
from puffer_mlx.system import program, verbosity
from puffer_mlx.system.files import publish
from puffer_mlx.system.private_folders import refuse_full_disk
from puffer_mlx.system.signals import Interrupts, catch_interrupts
from puffer_mlx.tracking.tracked_run import check_trackers_installed

FIRST_KEYS = (
    "total_timesteps",
    "learning_rate",
    "gamma",
)  # keys that come first in the line of each run
STORAGE_FILE = "sweep.json"  # in a sweep's folder: the storage of its trials


class StoredSweep(NamedTuple):
    """The name of a hyperparameter sweep, and where its files and trials are stored.

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
    return build_parser(add_options, used=SWEEP_RUN_KEYS)


@with_exit_code
def main(argv: list[str]) -> int:
    config, _ = parse_command_line(argv, add_options, used=SWEEP_RUN_KEYS)
    refuse_unknown_method(config)
    if importlib.util.find_spec("optuna") is None:
        raise UserError("a sweep needs Optuna", "pip install 'puffer-mlx[sweep]'")
    refuse_full_disk()  # otherwise every run would fail
    options, words = split_sweep_options(argv[1:])
    # Batch systems send SIGTERM, a closed terminal sends SIGHUP.
    with catch_interrupts(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as interrupts:
        return run_sweep(argv[0], words, options, find_sweep(config, options), config, interrupts)


def find_sweep(config: Config, options: argparse.Namespace) -> StoredSweep:
    """Return the hyperparameter sweep, new or resumed, that the options of ``sweep`` select.

    Raises:
        UserError: If the sweep to resume doesn't exist, or the name is invalid.
    """
    env_folder = Path(options.dir) / config.slug
    name = options.resume or options.name or str(time.time_ns() // 1_000_000)
    if options.resume == LATEST_SWEEP:
        files = sorted(env_folder.glob(f"*/{STORAGE_FILE}"), key=lambda path: path.stat().st_mtime)
        if not files:
            raise UserError(f"there is no sweep in {env_folder}", "leave out --resume to start one")
        name = files[-1].parent.name
    folder = env_folder / name
    if name != folder.name or name.startswith("."):
        raise UserError(f"{name!r} isn't a valid name of a sweep", "use a name without a slash")
    if options.resume and not options.storage and not folder.is_dir():
        names = sorted(path.parent.name for path in env_folder.glob(f"*/{STORAGE_FILE}"))
        hint = "leave out --resume to start one"
        hint = f"existing sweeps: {', '.join(names[-3:])}" if names else hint
        raise UserError(f"there is no sweep {name} in {env_folder}", hint)
    storage = options.storage or str(folder / "journal.log")
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        storage = options.storage or json.loads((folder / STORAGE_FILE).read_text())["storage"]
    return StoredSweep(name, folder, storage, resumed=options.resume is not None)


def run_sweep(
    env: str,
    words: list[str],
    options: argparse.Namespace,
    stored: StoredSweep,
    typed: Config,
    interrupts: Interrupts,
) -> int:
    """Run a new or resumed hyperparameter sweep. Returns the exit code.

    Args:
        env: Environment as typed.
        words: Command line of the runs, without the environment.
        options: Options of the sweep.
        stored: Name and storage of the sweep.
        typed: Configuration from ``env`` and ``words`` alone.
        interrupts: Signals that end the sweep.
    """
    from puffer_mlx.sweep.engine import storage
    from puffer_mlx.sweep.engine import study as studies
    from puffer_mlx.sweep.engine.samplers import make_sampler
    from puffer_mlx.sweep.engine.trainings import RunLauncher

    database = storage.open_storage(stored.storage, must_exist=stored.resumed)
    with storage.storage_errors(stored.storage):
        name = f"{stored.folder.parent.name}-{stored.name}"
        existing = studies.study_info(database, name)
        if existing is None and stored.resumed:
            names = ", ".join(studies.study_names(database)) or "none"
            raise UserError(f"{stored.storage} has no sweep {name}", f"existing sweeps: {names}")
        first_words = existing.get("words", []) if existing else words
        all_words = [*resumed_words(first_words), *words] if existing else words
        config, swept = configure_sweep(
            env, all_words, typed, f"the sweep {name} in {stored.storage}"
        )
        run_words = without_sweep_options(all_words)
        launcher = RunLauncher(
            env, run_words, config, swept.space, swept.settings, stored.folder, options.hang
        )
        sampler = make_sampler(swept.space, swept.settings, config.base.seed, launcher.adjust)
        facts = {"words": first_words, **studies.describe_sweep(swept, config)}
        starts = [] if existing else options.start_from
        values = {file: values_of_keys(file, swept.space) for file in starts}
        study = studies.open_study(database, name, swept, facts, sampler, values)
        with publish(stored.folder / STORAGE_FILE) as temporary:
            temporary.write_text(json.dumps({"storage": stored.storage, "study": name}))
        return run_trainings(study, launcher, options, stored, interrupts)


def configure_sweep(
    env: str, words: Sequence[str], typed: Config, study: str
) -> tuple[Config, Sweep]:
    """Return the settings of a sweep and the configuration of its first run; print notes.

    Args:
        env: Environment as typed.
        words: Words stored in the study, followed by the typed words.
        typed: Configuration from the typed words alone.
        study: Name of the study for messages.

    Raises:
        UserError: If the configuration is invalid, or only the study names some code or a file to
            write. Its words are trusted no more than a file's. Runs can't check this, because they
            get all words as typed.
    """
    find_family = partial(find_trusted_family, typed=typed, study=study)
    config, _ = parse_command_line(
        [env, *words], add_options, used=SWEEP_RUN_KEYS, find_family=find_family
    )
    refuse_untrusted(config, typed, study)
    check_trackers_installed(config)
    verbosity.note(trainer_note(config), *take_notes(config))
    config.unused = [name for name in config.unused if not name.startswith("sweep.")]
    verbosity.note(unused_keys_note(config))
    swept = read_sweep(config)
    verbosity.note(*swept.notes, *describe_space(config, swept))
    return config, swept


def refuse_untrusted(config: Config, typed: Config, study: str) -> None:
    """Raise a UserError if only a sweep's stored command line names some code or file to write."""
    trust.note_origin(config, typed, study)
    trust.refuse_untrusted_code(config, "base", "env", "torch")
    trust.refuse_untrusted_profile(config)


def find_trusted_family(config: Config, typed: Config, study: str) -> str:
    """Create a Python environment, if its code is trusted, to find out its family.

    Returns the family, a group of environments with the same defaults.
    """
    refuse_untrusted(config, typed, study)
    return make_and_find_family(config)


def resumed_words(words: Sequence[str]) -> list[str]:
    """Return a sweep's stored command line without the options that resuming it must not reuse.

    Raises:
        UserError: If the command line sets a folder for runs.
    """
    return [word for word in split_sweep_options(words)[1] if word != "--allow-code"]


def values_of_keys(word: str, space: Space) -> dict[str, int | float]:
    """Return values of the searched keys from another configuration, for ``--start-from``.

    Raises:
        UserError: If the configuration can't be read or lacks a value.
    """
    config = load(word, [])
    values: dict[str, int | float] = {}
    for parameter in space.parameters:
        name = parameter.section
        section = config.env if name == "env" else vars(getattr(config, name))
        value = section.get(parameter.key)
        if not isinstance(value, int | float):
            message = f"{word} has no number for {parameter.name}"
            raise UserError(message, "leave it out of --start-from")
        values[parameter.name] = parameter.to_value(parameter.to_coordinate(value))
    return values


def run_trainings(
    study: Any,
    launcher: Any,
    options: argparse.Namespace,
    stored: StoredSweep,
    interrupts: Interrupts,
) -> int:
    """Run the training runs of a hyperparameter sweep, print the result. Returns the exit code."""
    from puffer_mlx.sweep.engine.driver import Driver
    from puffer_mlx.sweep.engine.progress import SweepProgress
    from puffer_mlx.sweep.engine.trainings import BestFile

    settings = launcher.settings
    config = launcher.config
    gpus = select_gpus(config, settings.gpus)
    cores = training_process.available_cores()
    slots = training_process.make_slots(options.parallel, cores, gpus, config.train.gpus)
    search = f"{settings.method} over {len(launcher.space)} keys"
    title = f"sweep {stored.name} of {config.env_name}: {search}, {stored.storage}"
    console = Console(quiet=True, force_terminal=False) if verbosity.is_quiet() else Console()
    keys = displayed_keys(launcher)
    with SweepProgress(study, title, settings.max_runs, len(slots), console, keys) as progress:
        best_file = BestFile(study, launcher)

        def on_end(run: Any) -> None:
            progress.on_end(run)
            best_file.on_end(run)

        max_runs = settings.max_runs
        start = launcher.start
        try:
            Driver(study, start, slots, max_runs, progress.draw, on_end, interrupts).run()
        except KeyboardInterrupt:
            again = f"{program.command('sweep')} {launcher.env} --resume {stored.name}"
            verbosity.note(f"the active runs were stopped; resume with {again}", error=True)
            raise
        finally:
            best_file.finish()
    return print_sweep_result(study, stored, settings.metric)


def print_sweep_result(study: Any, stored: StoredSweep, metric: str) -> int:
    """Print the result of a hyperparameter sweep: its best runs. Returns the exit code.

    Raises:
        UserError: If no run has finished.
    """
    from optuna.trial import TrialState

    from puffer_mlx.sweep.engine import progress
    from puffer_mlx.sweep.engine.trainings import BEST_FILE

    best = study.best()
    if best is None and (running := len(study.runs(TrialState.RUNNING))):
        raise UserError(
            f"another process is running {running} runs of the sweep {stored.name}; no run has"
            " finished yet, and max_runs allows no more",
            "wait for it, start another sweep with another --name, or raise --sweep.max-runs",
        )
    if best is None:
        raise UserError("no run finished", f"their output is in {stored.folder / 'runs'}")
    score, cost = best.values
    run = f"{study.ordinal(best)} (runs/{best.number:04d})"
    print(f"best: run {run}, {metric} {score:.5g} after {cost:.1f} s of training")
    if (held_out := study.held_out_results(best)).seeds:
        print(f"      with held-out seeds: {held_out.summary(study.settings.sign)}")
    print(f"next  {program.command('train')} {stored.folder / BEST_FILE}")
    if warning := study.winner_warning():
        verbosity.note(warning)
    if importances := progress.importances(study):
        largest = list(importances.items())[:5]
        text = ", ".join(f"{name} {fraction:.0%}" for name, fraction in largest)
        verbosity.note(f"most important keys: {text}")
    for path in progress.draw_plots(study, stored.folder):
        verbosity.note(f"picture {path}")
    if not progress.can_draw():
        verbosity.note(
            "for pictures of the Pareto front and the importances: pip install 'puffer-mlx[plot]'"
        )
    return 0


def displayed_keys(launcher: Any) -> list[str]:
    """Return the names of up to four searched keys whose values the line about each run shows."""
    swept = [name.rpartition(".")[2] for name in launcher.space.names]
    return [
        *[name for name in FIRST_KEYS if name in swept],
        *[name for name in swept if name not in FIRST_KEYS],
    ][:4]


def select_gpus(config: Config, count: int) -> list[str]:
    """Return the ids of the GPUs on which a sweep's runs train; empty on CPUs and Macs.

    Raises:
        UserError: If more GPUs are requested than exist.
    """
    from puffer_mlx.system.devices import has_gpu

    gpus = training_process.available_gpus() if config.base.device != "cpu" else []
    if not gpus or not has_gpu():
        return []
    if count > len(gpus):
        message = f"sweep.gpus is {count}, but there are {len(gpus)}"
        raise UserError(message, f"at most {len(gpus)}")
    return gpus[: count or None]
