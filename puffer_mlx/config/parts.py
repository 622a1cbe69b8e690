"""Which parts there are to choose from, and what algorithms say of themselves.

Parts are found by listing folders, and none is imported: rooms without mathematics, as this one,
don't load MLX. So ``FACTS`` of a file in ``ppo/algorithms`` is a call of ``Facts`` whose
arguments are literals.
"""

import ast
from functools import cache
from pathlib import Path
from pkgutil import iter_modules
from typing import NamedTuple

from puffer_mlx.errors import UserError

PACKAGE = Path(__file__).resolve().parents[1]


def network_folders() -> dict[str, Path]:
    """Each network's folder by its name, as ``torch.network`` says it."""
    return {name: file.parent for name, file in _named("networks/*/__init__.py").items()}


def encoder_files() -> dict[str, Path]:
    """Each encoder's file by its name, as ``torch.encoder`` says it."""
    return _named("encoders/*.py")


def algorithms() -> tuple[str, ...]:
    """The algorithms, as ``train.algorithm`` says them."""
    return _modules("ppo/algorithms")


def optimizers() -> tuple[str, ...]:
    """The optimizers, as ``train.optimizer`` says them."""
    return _modules("ppo/optimizers")


def trackers() -> tuple[str, ...]:
    """The trackers of runs, as ``base.track`` says them."""
    return _modules("tracking/trackers")


def _modules(where: str) -> tuple[str, ...]:
    return tuple(sorted(module.name for module in iter_modules([str(PACKAGE / where)])))


@cache
def _named(pattern: str) -> dict[str, Path]:
    """Files of policies by the name that they say: ``NAME = "..."``."""
    files = {}
    for file in sorted((PACKAGE / "policy").glob(pattern)):
        for statement in ast.parse(file.read_text(encoding="utf-8")).body:
            match statement:
                case ast.Assign([ast.Name("NAME")], ast.Constant(str(name))):
                    files[name] = file
    return files


class Facts(NamedTuple):
    """What has to be known of an algorithm before, and beside, its training.

    Args:
        about: in the help of ``train.algorithm``: what minibatches and advantages are.
        title: whose it is, in the first line of a run.
        release: of PufferLib, whose trainer it is; empty: another one's.
        layer: the file of settings that counts after default.ini; empty: there is none.
        unread: the keys that it doesn't obey.
        limits: of continuous actions: arguments of ``policy.distributions.ActionBounds``.
        carries_state: whether it trains from the recurrent states that the rollout began with;
            False: from the initial ones.
        in_order: whether minibatches are the next S agents, so that S divides N.
        by_samples: whether minibatches are of samples, not of segments, without memory.
        stops_by_kl: whether ``train.target_kl`` may end its epochs.
        lags: whether it is meant for ``train.overlap``, where weights act one update late.
        evaluates_apart: whether the evaluation after training has environments of its own.
        saves_after: by how many epochs a checkpoint comes earlier than 4.0's.
    """

    about: str
    title: str
    release: str = ""
    layer: str = ""
    unread: tuple[str, ...] = ()
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
    """What the algorithm of that name says of itself.

    Raises:
        UserError: there is none of that name.
    """
    names = algorithms()
    if name not in names:
        raise UserError(f"train.algorithm {name} does not exist here", " or ".join(names))
    folder = PACKAGE / "ppo" / "algorithms"
    files = folder / f"{name}.py", folder / name / "__init__.py"
    file = next(path for path in files if path.is_file())
    for statement in ast.parse(file.read_text(encoding="utf-8")).body:
        match statement:
            case ast.Assign([ast.Name("FACTS")], ast.Call(_, [], words)):
                return Facts(**{str(word.arg): ast.literal_eval(word.value) for word in words})
    raise AssertionError(f"{file} has no FACTS = Facts(...)")


def of_release(release: str) -> str:
    """The name of the trainer of a release of PufferLib."""
    return next(name for name in algorithms() if facts(name).release == release)
