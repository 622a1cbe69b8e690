"""List the available networks, encoders, algorithms, optimizers and trackers.

Files are listed and parsed but not imported, so that ``config`` doesn't load MLX. Therefore
``FACTS`` in a file of ``ppo/algorithms`` must be a call of ``Facts`` with literal arguments.
"""

import ast
from functools import cache
from pathlib import Path
from pkgutil import iter_modules
from typing import NamedTuple

from puffer_mlx.errors import UserError

PACKAGE_FOLDER = Path(__file__).resolve().parents[1]


def network_folders() -> dict[str, Path]:
    """Return a dict from each legal value of ``torch.network`` to the folder of its code."""
    return {name: file.parent for name, file in _files_by_name("networks/*/__init__.py").items()}


def encoder_files() -> dict[str, Path]:
    """Return a dict from each legal value of ``torch.encoder`` to the file of its code."""
    return _files_by_name("encoders/*.py")


def algorithms() -> tuple[str, ...]:
    """Return the names of all training algorithms: the legal values of ``train.algorithm``."""
    return _modules("ppo/algorithms")


def optimizers() -> tuple[str, ...]:
    """Return the names of all optimizers: the legal values of ``train.optimizer``."""
    return _modules("ppo/optimizers")


def trackers() -> tuple[str, ...]:
    """Return the names of all experiment trackers: the legal values of ``base.track``."""
    return _modules("tracking/trackers")


def _modules(folder: str) -> tuple[str, ...]:
    return tuple(sorted(module.name for module in iter_modules([str(PACKAGE_FOLDER / folder)])))


@cache
def _files_by_name(pattern: str) -> dict[str, Path]:
    """Return a dict from names of networks or encoders (``NAME`` in the code) to their files."""
    files = {}
    for file in sorted((PACKAGE_FOLDER / "policy").glob(pattern)):
        for statement in ast.parse(file.read_text(encoding="utf-8")).body:
            match statement:
                case ast.Assign([ast.Name("NAME")], ast.Constant(str(name))):
                    files[name] = file
    return files


class Facts(NamedTuple):
    """Properties of a training algorithm, available without importing the algorithm's code.

    Args:
        summary: Description of minibatches and advantages, for the help of ``train.algorithm``.
        title: Name of the trainer in the first line of a run.
        release: PufferLib release with this trainer; empty for other trainers.
        settings_file: File of settings read after default.ini; empty for no file.
        unused: Keys without an effect.
        limits: Arguments of ``policy.distributions.ActionBounds`` for continuous actions.
        carries_state: True to train from the recurrent states at the start of the rollout, False
            to train from initial states.
        in_order: True if minibatches are the next S agents, so that S must divide N.
        by_samples: True if minibatches consist of samples, not segments, without recurrent state.
        stops_by_kl: True if ``train.target_kl`` may end an epoch's updates early.
        lags: True if it tolerates ``train.overlap``: rollouts by weights that are one update old.
        evaluates_apart: True if the evaluation after training uses separate environments.
        saves_after: Number of epochs by which checkpoints are saved earlier than in PufferLib 4.0.
    """

    summary: str
    title: str
    release: str = ""
    settings_file: str = ""
    unused: tuple[str, ...] = ()
    limits: tuple[float, ...] = ()
    carries_state: bool = True
    in_order: bool = False
    by_samples: bool = False
    stops_by_kl: bool = False
    lags: bool = False
    evaluates_apart: bool = False
    saves_after: int = 0


@cache
def facts(name: str) -> Facts:
    """Return the properties of a training algorithm.

    Raises:
        UserError: If the algorithm doesn't exist.
    """
    names = algorithms()
    if name not in names:
        raise UserError(f"train.algorithm {name} does not exist here", " or ".join(names))
    folder = PACKAGE_FOLDER / "ppo" / "algorithms"
    files = folder / f"{name}.py", folder / name / "__init__.py"
    file = next(path for path in files if path.is_file())
    for statement in ast.parse(file.read_text(encoding="utf-8")).body:
        match statement:
            case ast.Assign([ast.Name("FACTS")], ast.Call(_, [], words)):
                return Facts(**{str(word.arg): ast.literal_eval(word.value) for word in words})
    raise AssertionError(f"{file} has no FACTS = Facts(...)")


def trainer_of_release(release: str) -> str:
    """Return the name of the training algorithm that PufferLib's release 4.0 or 5.0 uses."""
    return next(name for name in algorithms() if facts(name).release == release)
