"""The checkpoint, or the file of weights, that a person names."""

from pathlib import Path

from puffer_mlx.checkpoint import branches
from puffer_mlx.checkpoint.folder import WEIGHTS
from puffer_mlx.config import Config
from puffer_mlx.errors import UserError
from puffer_mlx.system.files import reading

WHICH = "name a run's folder, a checkpoint's folder or latest"


def checkpoints(folder: Path, holding: str = WEIGHTS) -> list[Path]:
    """A run's checkpoints that hold a file, the newest last (``branches.checkpoints``)."""
    return [one.folder for one in branches.checkpoints(folder, holding)]


def find(path: str, config: Config, holding: str = WEIGHTS) -> Path:
    """The checkpoint that ``latest``, a RUN_ID, a run's folder or a checkpoint's folder names.

    ``latest`` is the newest checkpoint of the newest run of this environment; of a run it is the
    newest one, too (``branches``: the most steps of the branch that was trained last).

    Args:
        path: see above.
        config: says where checkpoints are, and of which environment.
        holding: the file that it must have: ``STATE`` of those that a run can go on from.

    Raises:
        UserError: there is none, or it can't be read.
    """
    if not path.strip():
        raise UserError("no checkpoint is named: the text is empty", WHICH)
    with reading(path):
        return _find(path, config, holding)


def _find(path: str, config: Config, holding: str) -> Path:
    """As ``find``; a folder that can't be looked at is an OSError."""
    root = home = Path(config.base.checkpoint_dir) / config.slug
    if path == "latest":
        found = branches.newest(root, holding)
    else:
        candidates = (Path(path), root / path)
        root = next((folder for folder in candidates if folder.is_dir()), Path(path))
        if (root / WEIGHTS).is_file():
            target = root.resolve()
            if not root.is_symlink():
                return target if root.name in ("", "..") else root  # the run's folder is above
            if target.parent != root.parent.resolve():  # ``best`` is a link in it
                message = f"{root} is a link to {target}, out of its folder"
                raise UserError(message, f"name {target}")
            return root.parent / target.name
        found = next(reversed(branches.checkpoints(root, holding)), None)
    if found is None:
        if path == "latest" or root.is_dir():
            raise UserError(f"there is no checkpoint in {root}", f"train first, or {WHICH}")
        raise UserError(*_nowhere(path, home))
    return found.folder


def _nowhere(path: str, home: Path) -> tuple[str, str]:
    """What to say of a name that is neither a folder nor a run of an environment's; and a hint.

    Args:
        path: the name.
        home: the folder of the environment's runs.
    """
    message = f"there is no checkpoint in {path}"
    if home / path != Path(path):
        message += f": neither {path} nor {home / path} is a folder"
    own = sorted(run.name for run in home.glob("*"))
    others = sorted(f"{run.parent.name}/{run.name}" for run in home.parent.glob("*/*"))
    if own:
        return message, f"runs there are: {', '.join(own[-3:])}"
    if others:
        return message, f"{home.name} has no run yet; of others there are {', '.join(others[-3:])}"
    return message, f"train first, or {WHICH}"


def find_weights(path: str, config: Config) -> Path:
    """The file that ``--load-model-path`` names: a file, or what ``find`` finds.

    Raises:
        UserError: there is none.
    """
    with reading(path):
        if Path(path).suffix and not Path(path).is_dir():
            return Path(path)
    return find(path, config) / WEIGHTS
