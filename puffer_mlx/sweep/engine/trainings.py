"""Start the training processes of a sweep, and write the best run's configuration."""

import contextlib
import shutil
from pathlib import Path
from typing import NamedTuple

from optuna.trial import FrozenTrial

from puffer_mlx.config import Config, ini_text, load
from puffer_mlx.config.option_names import option
from puffer_mlx.errors import UserError
from puffer_mlx.sweep.curve import HeldOutResults
from puffer_mlx.sweep.engine.study import FROM_CONFIG, Study, seed_curves
from puffer_mlx.sweep.settings import SweepSettings
from puffer_mlx.sweep.space import AGENTS, Space, Values, fit_sizes
from puffer_mlx.sweep.training_process import Slot, TrainingProcess
from puffer_mlx.system import verbosity
from puffer_mlx.system.files import publish
from puffer_mlx.tracking.tracked_run import tracker_names

BEST_FILE = "best.ini"
NUM_BUFFERS = "vec.num_buffers"


class RunLauncher(NamedTuple):
    """Starter of a sweep's training processes, with the settings that all runs share.

    Args:
        env: Environment's name on the command line.
        words: Words after the environment's name, as for ``train``: without options of the sweep.
        config: Checked configuration of the first run; ``base.family`` isn't ``auto``.
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
        """Make suggested values consistent: equal buffers, minibatches within an epoch.

        Values that can be run stay as suggested. Values that can't be adjusted also stay: their
        trial fails with the reason.
        """
        for sizes in (values, fit_sizes(values, self.space, self.config)):
            adjusted = self._with_equal_buffers(sizes)
            with contextlib.suppress(UserError):
                self._config(adjusted)
                return adjusted
        return self._with_equal_buffers(values)

    def _with_equal_buffers(self, values: Values) -> Values:
        """Reduce the suggested number of buffers until it divides the number of agents."""
        if NUM_BUFFERS not in values:
            return values
        agents = int(values.get(AGENTS, self.config.vec.total_agents))
        buffers = max(1, min(int(values[NUM_BUFFERS]), agents))
        while agents % buffers:
            buffers -= 1
        return {**values, NUM_BUFFERS: buffers}

    def run_folder(self, run: FrozenTrial, seed: int = 0) -> Path:
        """Return the folder for the files of a sweep's run with one of its seeds."""
        return self.folder / "runs" / _folder_name(run, seed)

    def run_words(self, run: FrozenTrial, seed: int = 0) -> list[str]:
        """Return a run's arguments for ``puffer-mlx train``, the environment's name first.

        The options for the run's folders are left out.
        """
        values = self._run_values(run)
        words = [
            *self._shared_words(),
            *(f"{option(*name.split('.', 1))}={x}" for name, x in values.items()),
        ]
        if seed:  # other initial weights; environment i has seed vec.seed + i
            words.append(f"--base.seed={self.config.base.seed + seed}")
            words.append(f"--vec.seed={self.config.vec.seed + 1000 * seed}")
        return words

    def _run_values(self, run: FrozenTrial) -> Values:
        """Return a run's suggested values by full name.

        For the run with the configured values, only those of keys without a configured value.
        """
        uses_config = run.user_attrs.get(FROM_CONFIG)
        return {
            p.name: run.params[p.name]
            for p in self.space.parameters
            if not uses_config or p.default is None
        }

    def _shared_words(self) -> list[str]:
        """Return the arguments for ``puffer-mlx train`` that all runs of the sweep share.

        The environment's name comes first.
        """
        words = [self.env, *self.words]
        if self.config.python and "--family" not in " ".join(words):
            words += ["--family", self.config.base.family]
        return words

    def _config(self, values: Values) -> Config:
        """Return the complete configuration of a run with suggested values.

        Raises:
            UserError: If the values can't be run.
        """
        env, *words = self._shared_words()
        return load(env, words, keywords=values, family=self.config.base.family)

    def start(self, run: FrozenTrial, slot: Slot, seed: int) -> TrainingProcess:
        """Start the training process of a run with one of its seeds.

        Raises:
            UserError: If the run's values can't be run.
        """
        self._config(self._run_values(run))
        folder = self.run_folder(run, seed)
        settings = self.settings
        _remove_files(folder)
        words = self.run_words(run, seed)
        words += [f"--checkpoint-dir={folder / 'checkpoints'}", f"--log-dir={folder / 'logs'}"]
        user_options = {word.partition("=")[0] for word in self.words}
        defaults = {"--checkpoint-interval": "0"}
        if tracker_names(self.config):
            defaults["--wandb-group"] = self.folder.name
        words += [f"{name}={text}" for name, text in defaults.items() if name not in user_options]
        return TrainingProcess(
            words, folder, slot, settings.metric, settings.downsample, self.hang_timeout
        )

    # ---- results of a run ------------------------------------------------------------------------

    def write_best(self, run: FrozenTrial, held_out: HeldOutResults) -> None:
        """Write a run's configuration to the sweep's best.ini, a file for ``train``."""
        config = self._config(self._run_values(run))
        score, cost = run.values
        head = (
            f"# runs/{_folder_name(run, 0)} of the sweep {self.folder.name}: {self.settings.metric}"
            f" {score:g} after {cost:.1f} s"
        )
        if seeds := seed_curves(run):
            head += f", the {self.settings.seeds_score} of {len(seeds)} seeds"
        if held_out.seeds:
            head += f".\n# With held-out seeds: {held_out.summary(self.settings.sign)}"
        with publish(self.folder / BEST_FILE) as temporary:
            temporary.write_text(f"{head}.\n\n{ini_text(config)}", encoding="utf-8")


def _folder_name(run: FrozenTrial, seed: int) -> str:
    """Return the name of a run's folder: ``0007``, or ``0007-2`` with its second seed."""
    suffix = f"-{seed + 1}" if seed else ""
    return f"{run.number:04d}{suffix}"


def _remove_files(folder: Path) -> None:
    """Remove a restarted run's log and checkpoints, so that its log doesn't count twice."""
    for name in "logs", "checkpoints":
        if (folder / name).is_symlink():
            raise UserError(f"{folder / name} is a link", "remove it")
        shutil.rmtree(folder / name, ignore_errors=True)


class BestFile:
    """Writer of a sweep's best.ini, which contains the configuration of the best run so far.

    Args:
        study: Trials of the sweep.
        launcher: Writes the file.
    """

    def __init__(self, study: Study, launcher: RunLauncher) -> None:
        self._study = study
        self._launcher = launcher
        self._best: tuple[int, HeldOutResults] | None = None  # run and results in the file
        self._errors: list[str] = []

    def on_end(self, run: FrozenTrial) -> None:
        """Update best.ini after a run or a held-out seed has ended."""
        try:
            self._write_best()
        except UserError as error:  # an error here must not end the sweep
            self._errors.append(str(error))

    def finish(self) -> None:
        """Update best.ini a last time, and print the errors of all updates."""
        self._write_best()
        for line in dict.fromkeys(self._errors):
            verbosity.note(line, error=True)

    def _write_best(self) -> None:
        """Write the sweep's best.ini if the best run or its results have changed."""
        best = self._study.best()
        if best is None:
            return
        held_out = self._study.held_out_results(best)
        if (best.number, held_out) != self._best:
            self._launcher.write_best(best, held_out)
            self._best = best.number, held_out
