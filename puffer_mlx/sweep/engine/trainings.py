"""A sweep's runs as command lines of ``puffer-mlx train``, and their files in its folder."""

import contextlib
import shutil
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from optuna.trial import FrozenTrial

from puffer_mlx import vec
from puffer_mlx.config import Config, ini_text, load
from puffer_mlx.config.command_line import option
from puffer_mlx.errors import UserError
from puffer_mlx.sweep.child import Child, Place
from puffer_mlx.sweep.curve import HeldOut
from puffer_mlx.sweep.engine.study import DEFAULT, Study, curves
from puffer_mlx.sweep.reading import sections
from puffer_mlx.sweep.settings import SweepSettings
from puffer_mlx.sweep.space import AGENTS, Space, Values, fit
from puffer_mlx.system import voice
from puffer_mlx.system.files import publish
from puffer_mlx.tracking.tracked_run import tracker_names

BEST = "best.ini"
BUFFERS = "vec.num_buffers"


class Trainings(NamedTuple):
    """What all runs of a sweep have in common.

    Args:
        env: the word on the command line.
        words: further words, without what is only the sweep's.
        config: of the first run, checked, its family settled.
        space: what is swept.
        settings: how.
        folder: the sweep's.
        hang: seconds in which nothing happens to a run's log after which it counts as hanging.
    """

    env: str
    words: list[str]
    config: Config
    space: Space
    settings: SweepSettings
    folder: Path
    hang: float

    def settle(self, values: Values) -> Values:
        """Suggested values that fit one another: groups of equal size, minibatches in an epoch.

        What can be run stays as it was suggested, and what no moving of sizes helps, too: that is a
        failed trial, which says why.
        """
        for sizes in (values, fit(values, self.space, self.config)):
            grouped = self._in_equal_groups(sizes)
            with contextlib.suppress(UserError):
                self._config(grouped)
                return grouped
        return self._in_equal_groups(values)

    def _in_equal_groups(self, values: Values) -> Values:
        if BUFFERS not in values:
            return values
        agents = int(values.get(AGENTS, self.config.vec.total_agents))
        wanted = max(1, min(int(values[BUFFERS]), agents))
        return {**values, BUFFERS: next(q for q in range(wanted, 0, -1) if agents % q == 0)}

    def folder_of(self, run: FrozenTrial, seed: int = 0) -> Path:
        """Where a run's files are."""
        return self.folder / "runs" / _name(run, seed)

    def words_of(self, run: FrozenTrial, seed: int = 0) -> list[str]:
        """Return the part of a run's command line that describes the training, from ENV on."""
        values = self._values_of(run)
        words = [
            *self._words(),
            *(f"{option(*name.split('.', 1))}={x}" for name, x in values.items()),
        ]
        if seed:  # other weights, and other environments: environment i starts from its seed plus i
            words.append(f"--base.seed={self.config.base.seed + seed}")
            words.append(f"--vec.seed={self.config.vec.seed + 1000 * seed}")
        return words

    def _values_of(self, run: FrozenTrial) -> Values:
        """Return the suggested values of a run; the first run has the files' values."""
        by_files = run.user_attrs.get(DEFAULT)
        return {
            p.name: run.params[p.name]
            for p in self.space.parameters
            if not by_files or p.default is None
        }

    def _words(self) -> list[str]:
        """Return the words that all runs have in common, from ENV on."""
        words = [self.env, *self.words]
        if self.config.python and "--family" not in " ".join(words):
            words += ["--family", self.config.base.family]
        return words

    def _config(self, values: Values) -> Config:
        """Return the configuration of suggested values.

        Raises:
            UserError: it can't be run.
        """
        env, *words = self._words()
        config = load(env, words, keywords=values)
        vec.settle_family(config)
        return config

    def config_of(self, run: FrozenTrial) -> Config:
        """Return a run's configuration, with what is swept in its [sweep] sections.

        Raises:
            UserError: its values can't be run.
        """
        config = self._config(self._values_of(run))
        config.sweep = sections(self.config, self.space)
        return config

    def start(self, run: FrozenTrial, place: Place, seed: int) -> Child:
        """Start a run's process, with one of its seeds.

        Raises:
            UserError: its values can't be run.
        """
        self.config_of(run)
        folder, settings = self.folder_of(run, seed), self.settings
        _forget(folder)
        words = self.words_of(run, seed)
        words += [f"--checkpoint-dir={folder / 'checkpoints'}", f"--log-dir={folder / 'logs'}"]
        typed = {word.partition("=")[0] for word in self.words}
        usual = {"--checkpoint-interval": "0"}
        if tracker_names(self.config):
            usual["--wandb-group"] = self.folder.name
        words += [f"{name}={text}" for name, text in usual.items() if name not in typed]
        return Child(words, folder, place, settings.metric, settings.downsample, self.hang)

    # ---- what is left of a run -------------------------------------------------------------------

    def write_best(self, run: FrozenTrial, held_out: HeldOut) -> None:
        """Write the configuration of a run, and what it came to, as a file that ``train`` takes."""
        config = self.config_of(run)
        config = replace(config, base=replace(config.base, family=self.config.base.family))
        score, cost = run.values
        head = (
            f"# runs/{_name(run, 0)} of the sweep {self.folder.name}: {self.settings.metric}"
            f" {score:g} after {cost:.1f} s"
        )
        if seeds := curves(run):
            head += f", the {self.settings.seeds_score} of {len(seeds)} seeds"
        if held_out.seeds:
            head += f".\n# With held-out seeds: {held_out.words(self.settings.sign)}"
        with publish(self.folder / BEST) as temporary:
            temporary.write_text(f"{head}.\n\n{ini_text(config)}", encoding="utf-8")


def _name(run: FrozenTrial, seed: int) -> str:
    """A run's name in its folder: its number, and which one of several seeds it is."""
    return f"{run.number:04d}" + f"-{seed + 1}" * bool(seed)


def _forget(folder: Path) -> None:
    """Remove what a run that begins again has left: its log would count twice."""
    for name in "logs", "checkpoints":
        if (folder / name).is_symlink():
            raise UserError(f"{folder / name} is a link", "remove it")
        shutil.rmtree(folder / name, ignore_errors=True)


class Records:
    """Writes the best run's configuration while a sweep runs.

    Args:
        study: the sweep's trials.
        trainings: its runs' files.
    """

    def __init__(self, study: Study, trainings: Trainings) -> None:
        self._study, self._trainings = study, trainings
        self._best: tuple[int, HeldOut] | None = None  # what is written
        self._faults: list[str] = []

    def ended(self, run: FrozenTrial) -> None:
        """A run is over with all of its seeds, or with one more held-out seed."""
        try:
            self._write_best()
        except UserError as error:  # the sweep matters more
            self._faults.append(str(error))

    def conclude(self) -> None:
        """Write what is left to be written; say what couldn't be."""
        self._write_best()
        for line in dict.fromkeys(self._faults):
            voice.note(line, error=True)

    def _write_best(self) -> None:
        best = self._study.best()
        if best is None:
            return
        held_out = self._study.held_out(best)
        if (best.number, held_out) != self._best:
            self._trainings.write_best(best, held_out)
            self._best = best.number, held_out
