"""Who may import whom, read from the sources with ``ast``.

A module imports only modules that stand before it in the table: any row above, or its own row to
its left. A new file must be given a place here.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "puffer_mlx"

LAYERS = (  # top down; a file's path without .py
    # 0: foundations
    "own_folders install output signals "
    "policy/__init__ errors files objects build raylib mac blas __init__ version spec distributed "
    "trace profiler config_key config_names config_schema config_files config_cli config_check "
    "config_fit trust config allocation",
    # 1: arithmetic, and the contract of an environment
    "cache_limit trees scores precision devices worker low kernel_texts recurrent_texts kernels "
    "cpu_ops "
    "streams cuda capture ops "
    "policy/activations policy/recurrent policy/encoders policy/images policy/mingru "
    "policy/lstm policy/gru policy/mlp policy/networks policy/distributions policy/decoders "
    "policy/custom advantage priority loss optim vec/base",
    # 2: wholes made of them
    "vec/waiting vec/addresses vec/faults "
    "policy/policy vec/loop vec/normalize vec/stepping vec/state vec/sources vec/compiling "
    "vec/library vec/native vec/spaces vec/episodes vec/processes vec/gym_faults "
    "vec/gym_infos vec/gym_families vec/gym_make vec/gym_workers vec/gym_forms vec/rows vec/gym "
    "vec/puffer_instances vec/puffer_workers vec/puffer_plan vec/puffer vec/__init__",
    # 3: what a trainer is made of
    "actor rollout update placement schedule learner normalization tensor_files weights_io "
    "remembered branches checkpoint run_folder",
    # 4
    "trainer",
    # 5: consumers
    "recording "
    "loggers ending view advice picture dashboard latency pictures screen evaluate notebook sweep "
    "dialects detect torch_parts torch_modules onnx_graph onnx_export parity export importing "
    "checks/__init__ checks/tools checks/coded checks/halves checks/arithmetic checks/placing "
    "checks/overlap checks/mixed checks/upkeep checks/items "
    "apart catalog env_check/__init__ env_check/findings env_check/subject env_check/playing "
    "env_check/seeing env_check/repeating env_check/ending env_check/pace env_check/foreign "
    "env_check/pictures env_check/items",
)
ORDER = {module: place for place, module in enumerate(" ".join(LAYERS).split())}
LEVEL = {module: level for level, row in enumerate(LAYERS) for module in row.split()}

NUMPY_AND_MLX = {
    "actor",
    "rollout",
    "tensor_files",
    "weights_io",
}  # memory and files: the only ones so low
MLX_ONLY = {"advantage", "priority", "loss", "optim", "low", "ops", "kernels", "cpu_ops", "update"}
GUESTS = {"torch", "pufferlib", "wandb", "tensorboard", "optuna", "matplotlib", "gymnasium"}
GUESTS |= {"imageio", "imageio_ffmpeg", "PIL", "IPython", "onnx", "onnxruntime"}
TORCH_ROOM = {"torch_parts", "torch_modules"}  # modules of PyTorch, themselves guests elsewhere
GYM_ROOM = {"vec/gym_workers"}  # a class of Gymnasium's; a guest elsewhere, too

FILES = {
    path.relative_to(PACKAGE).with_suffix("").as_posix(): path for path in PACKAGE.rglob("*.py")
}


def imports(node: ast.AST, at_import: bool = True) -> Iterator[tuple[str, bool]]:
    """(dotted name, whether importing the file runs it) of every import below ``node``.

    ``from a import b`` gives both ``a`` and ``a.b``: b may be a module.
    """
    for child in ast.iter_child_nodes(node):
        inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(child, ast.Import):
            yield from ((alias.name, at_import) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"line {child.lineno}: write imports in full"
            assert child.module
            yield child.module, at_import
            yield from ((f"{child.module}.{alias.name}", at_import) for alias in child.names)
        else:
            yield from imports(child, at_import and not inside)


def ours(names: set[str]) -> set[str]:
    """The modules of this package among dotted names, as in the table."""
    paths = {name.replace(".", "/").removeprefix("puffer_mlx/") for name in names}
    return paths & set(FILES)


def outsiders(names: set[str]) -> set[str]:
    return {name.split(".")[0] for name in names} - {"puffer_mlx"}


@pytest.fixture(params=sorted(FILES))
def module(request):
    return request.param


@pytest.fixture
def everything(module):
    return {name for name, _ in imports(ast.parse(FILES[module].read_text()))}


@pytest.fixture
def at_import(module):
    return {name for name, now in imports(ast.parse(FILES[module].read_text())) if now}


def test_every_module_has_a_place(module):
    assert module in ORDER, f"puffer_mlx/{module}.py has no place in LAYERS: give it one"


def test_no_module_has_two_places():
    assert len(ORDER) == sum(len(row.split()) for row in LAYERS)


def test_imports_go_up_the_table(module, everything):
    wrong = {m for m in ours(everything) if ORDER.get(m, 0) >= ORDER.get(module, len(ORDER))}
    assert not wrong, f"{module} imports {sorted(wrong)}, which do not stand before it"


def test_numpy_and_mlx_meet_only_in_the_rollout(module, everything):
    known = outsiders(everything) & {"numpy", "mlx"}
    if module.startswith("vec/"):
        assert known <= {"numpy"}
    elif module.startswith("policy/") or module in MLX_ONLY:
        assert known <= {"mlx"}
    elif LEVEL.get(module, 0) < LEVEL["trainer"] and module not in NUMPY_AND_MLX:
        assert len(known) < 2


def test_guests_are_imported_inside_functions(module, at_import):
    rooms = {"torch"} if module in TORCH_ROOM else set()
    rooms |= {"gymnasium"} if module in GYM_ROOM else set()
    assert not outsiders(at_import) & GUESTS - rooms
    assert rooms or not ours(at_import) & (TORCH_ROOM | GYM_ROOM)


@pytest.mark.parametrize("module", ["puffer_mlx", "puffer_mlx.config", "puffer_mlx.spec"])
def test_light_modules_do_not_load_mlx(module):
    code = f"import sys, {module}; sys.exit('mlx.core' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
