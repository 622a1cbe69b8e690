"""Command lines of a sweep's runs, and the files of the runs in the sweep's folder."""

import contextlib
import shutil
from pathlib import Path
from typing import NamedTuple

from optuna.trial import FrozenTrial

from puffer_mlx.config import Config, ini_text, load
from puffer_mlx.config.option_names import option
from puffer_mlx.errors import UserError
from puffer_mlx.sweep.curve import HeldOut
from puffer_mlx.sweep.engine.study import DEFAULT, Study, curves
from puffer_mlx.sweep.settings import SweepSettings
from puffer_mlx.sweep.space import AGENTS, Space, Values, fit_sizes
from puffer_mlx.sweep.training_process import Slot, TrainingProcess
from puffer_mlx.system import verbosity
from puffer_mlx.system.files import publish
from puffer_mlx.tracking.tracked_run import tracker_names

BEST = "best.ini"
BUFFERS = "vec.num_buffers"


class Trainings(NamedTuple):
    """Settings that all runs of a sweep share.

    Args:
        env: Environment's name on the command line.
        words: Further words of the command line, without those for the sweep only.
        config: Checked configuration of the first run, with its family.
        space: Parameters of the sweep.
        settings: Settings of the sweep.
        folder: Folder of the sweep.
        hang_timeout: Seconds without a change of a run's log after which the run is ended.
    """

    env: str
    words: list[str]
    config: Config
    space: Space
    settings: SweepSettings
    folder: Path
    hang_timeout: float

    def adjust(self, values: Values) -> Values:
        """Make suggested values consistent: buffers of equal size, minibatches within an epoch.

        Values that can be run stay as suggested. So do values that can't be repaired: their trial
        fails with the reason.
        """
        for sizes in (values, fit_sizes(values, self.space, self.config)):
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
        """Return the folder of a run's files."""
        return self.folder / "runs" / _name(run, seed)

    def words_of(self, run: FrozenTrial, seed: int = 0) -> list[str]:
        """Return the words of a run's command line that describe the training, from ENV on."""
        values = self._values_of(run)
        words = [
            *self._words(),
            *(f"{option(*name.split('.', 1))}={x}" for name, x in values.items()),
        ]
        if seed:  # other initial weights; environment i has seed vec.seed + i
            words.append(f"--base.seed={self.config.base.seed + seed}")
            words.append(f"--vec.seed={self.config.vec.seed + 1000 * seed}")
        return words

    def _values_of(self, run: FrozenTrial) -> Values:
        """Return the suggested values of a run. The first run uses the files' values."""
        by_files = run.user_attrs.get(DEFAULT)
        return {
            p.name: run.params[p.name]
            for p in self.space.parameters
            if not by_files or p.default is None
        }

    def _words(self) -> list[str]:
        """Return the words that all runs share, from ENV on."""
        words = [self.env, *self.words]
        if self.config.python and "--family" not in " ".join(words):
            words += ["--family", self.config.base.family]
        return words

    def _config(self, values: Values) -> Config:
        """Return the configuration with suggested values.

        Raises:
            UserError: If the values can't be run.
        """
        env, *words = self._words()
        return load(env, words, keywords=values, family=self.config.base.family)

    def start(self, run: FrozenTrial, slot: Slot, seed: int) -> TrainingProcess:
        """Start the process of a run with one of its seeds.

        Raises:
            UserError: If its values can't be run.
        """
        self._config(self._values_of(run))
        folder = self.folder_of(run, seed)
        settings = self.settings
        _forget(folder)
        words = self.words_of(run, seed)
        words += [f"--checkpoint-dir={folder / 'checkpoints'}", f"--log-dir={folder / 'logs'}"]
        typed = {word.partition("=")[0] for word in self.words}
        usual = {"--checkpoint-interval": "0"}
        if tracker_names(self.config):
            usual["--wandb-group"] = self.folder.name
        words += [f"{name}={text}" for name, text in usual.items() if name not in typed]
        return TrainingProcess(
            words, folder, slot, settings.metric, settings.downsample, self.hang_timeout
        )

    # ---- results of a run ------------------------------------------------------------------------

    def write_best(self, run: FrozenTrial, held_out: HeldOut) -> None:
        """Write a run's configuration and results as a file for ``train``."""
        config = self._config(self._values_of(run))
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
    """Return the name of a run's folder: its number, and the seed's number after the first."""
    return f"{run.number:04d}" + f"-{seed + 1}" * bool(seed)


def _forget(folder: Path) -> None:
    """Remove a restarted run's files, so that its log doesn't count twice."""
    for name in "logs", "checkpoints":
        if (folder / name).is_symlink():
            raise UserError(f"{folder / name} is a link", "remove it")
        shutil.rmtree(folder / name, ignore_errors=True)


class Records:
    """Write the best run's configuration during a sweep.

    Args:
        study: Trials of the sweep.
        trainings: Files of its runs.
    """

    def __init__(self, study: Study, trainings: Trainings) -> None:
        self._study = study
        self._trainings = trainings
        self._best: tuple[int, HeldOut] | None = None  # run and results in the file
        self._faults: list[str] = []

    def ended(self, run: FrozenTrial) -> None:
        """Update the file after a run or a held-out seed has ended."""
        try:
            self._write_best()
        except UserError as error:  # an error here must not end the sweep
            self._faults.append(str(error))

    def conclude(self) -> None:
        """Write the file a last time, and print the errors so far."""
        self._write_best()
        for line in dict.fromkeys(self._faults):
            verbosity.note(line, error=True)

    def _write_best(self) -> None:
        best = self._study.best()
        if best is None:
            return
        held_out = self._study.held_out(best)
        if (best.number, held_out) != self._best:
            self._trainings.write_best(best, held_out)
            self._best = best.number, held_out
