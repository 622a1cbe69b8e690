"""GPU kernels compiled by clang as CUDA and as OpenCL, which is close to Metal.

Warnings are errors.

`emulated_run.py` runs the kernels as C++, where all memory is alike. Here nothing runs, but device,
block and thread memory are distinct, as on a GPU. clang comes from PyPI's `ziglang`. Metal is
tested twice: up to 4.0 a member function's object is in the thread's memory, from 4.1 on (macOS 27)
in any memory.
"""

import importlib.util
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from emulated_run import COMMON_TYPES, minibatch_texts

import puffer_mlx
from puffer_mlx.config import Policy, Torch
from puffer_mlx.ops.gpu import launch, text
from puffer_mlx.policy.policy import make_policy
from puffer_mlx.policy.rollout_on_gpu import REGISTERS, choose_rows
from puffer_mlx.ppo import minibatch
from puffer_mlx.spec import EnvSpec
from puffer_mlx.system.backend import building_for
from puffer_mlx.vec.native.gpu_rules import gpu_rules
from puffer_mlx.vec.native.make import find_environment, open_environment, read_spec

PACKAGE = Path(puffer_mlx.__file__).parent
HEADERS = Path(__file__).parents[1] / "c"
# T steps, S segments, H channels and other template arguments: no multiples of a block.
SIZES = {"T": 3, "S": 5, "H": 33, "R": 4, "C": 2, "THREADS": 32, "G": 4, "D": 33, "U": 8, "N": 7}
SIZES["MASKED"] = 1
# Minibatches whose plans take every branch: T, S, D, H, layers, logits, heads (0: continuous).
MINIBATCHES = [
    (T, 16, *policy)
    for policy in (
        *((4, 32, 1, 2, 1), (3, 32, 2, 40, 2), (49, 32, 4, 5, 2), (118, 32, 1, 2, 1)),
        *((118, 64, 2, 3, 1), (4, 64, 2, 2, 1), (49, 64, 3, 40, 2), (5, 32, 1, 3, 0)),
    )
    for T in (8, 64, 128)
]
WARNINGS = [
    *("-Wall", "-Wextra", "-Werror", "-Wshadow", "-Wdouble-promotion", "-Wfloat-conversion"),
    *("-Wconditional-uninitialized", "-Wimplicit-int-conversion", "-Wcast-align"),
    *("-Wno-unused-variable", "-Wno-unused-local-typedef"),
    "-Wno-pass-failed",
]
CUDA = [
    *("-x", "cuda", "--cuda-device-only", "--cuda-gpu-arch=sm_80", "-nocudainc", "-nocudalib"),
    *("-Wno-unknown-cuda-version", "-std=c++20", "-O0", "-S"),
    *("-include", str(HEADERS / "as_cuda.h")),
]
METAL_4_1 = [
    *("-x", "cl", "-target", "spir64", "-cl-std=clc++2021", "-cl-no-stdinc", "-fsyntax-only"),
    *("-I", str(HEADERS), "-include", str(HEADERS / "as_metal.h")),
    *("-Xclang", "-cl-ext=-__opencl_c_pipes,-__opencl_c_device_enqueue"),
]
METAL = [*METAL_4_1[:-1], METAL_4_1[-1] + ",-__opencl_c_generic_address_space"]
FRONT_ENDS = {"cuda": CUDA, "metal": METAL, "metal 4.1": METAL_4_1}
KERNEL = {"cuda": "__global__ void", "metal": "__kernel void"}
LOW = {"cuda": ("float", "__half")} | dict.fromkeys(("metal", "metal 4.1"), ("float", "bfloat"))
MACRO = re.compile(r"^ *#define (\w+)", re.MULTILINE)
WORD = re.compile(r"\b[A-Za-z_]\w*")
KEYWORDS = WORD.findall("""
    Low Observed __CUDA_ARCH__ alignas asm auto bool break case char class const constant constexpr
    continue default define defined do double elif else endif false for goto if ifdef ifndef
    include inline int pragma return short signed sizeof static static_assert struct switch
    template true typename undef union unroll unsigned using volatile while
""")
LIBRARYS = {*KEYWORDS, *WORD.findall((HEADERS / "as_metal.h").read_text())}
ON_GPU = (
    *("breakout", "cartpole", "catch", "connect4"),
    *("craftax_classic", "g2048", "memory", "squared"),
)
CASES = [(backend, low, 0) for backend in LOW for low in LOW[backend]]
CASES += [("cuda", "__half", 1), ("metal", "float", 1), ("metal 4.1", "bfloat", 1)]
# Metal copies structs between all memories. Here they need explicit constructors.
COPIED = {
    "struct alignas(4 * R) Rows { float of[R]; };": """struct alignas(4 * R) Rows {
  float of[R];
  Rows() = default;
  Rows(const Rows&) = default;
  Rows(const threadgroup Rows& other) { for (int r = 0; r < R; ++r) of[r] = other.of[r]; }
};""",
    "struct alignas(16) Line { Low of[16 / sizeof(Low)]; };": """struct alignas(16) Line {
  struct Bits {
    unsigned short of[sizeof(Low) / 2];
    Bits() __generic {}
    void operator=(Low) __generic {}
    operator float() const __generic { return 0; }
  };
  Bits of[16 / sizeof(Low)];
  Line() __generic {}
#define COPY_LINE \\
  for (int w = 0; w < 16 / (int)sizeof(Low); ++w) \\
    for (int k = 0; k < (int)sizeof(Low) / 2; ++k) of[w].of[k] = other.of[w].of[k];
  void operator=(const device Line& other) __generic { COPY_LINE }
  void operator=(const Line& other) threadgroup { COPY_LINE }
  void operator=(const threadgroup Line& other) __generic { COPY_LINE }
  void operator=(const Line& other) device { COPY_LINE }
#undef COPY_LINE
};""",
    "struct Sums { float of[V][R]; };": """struct Sums {
  float of[V][R];
  Sums() = default;
  Sums(const Sums&) = default;
#ifndef __opencl_c_generic_address_space
  Sums(const Sums& other) __generic {
    for (int v = 0; v < V * R; ++v) of[v / R][v % R] = other.of[v / R][v % R];
  }
#endif
};""",
    "struct Swizzled {\n": """struct Swizzled {
  Swizzled(IN_SHARED Low* at) __generic : numbers(at) {}
  Swizzled(const Swizzled& other) __generic : numbers(other.numbers) {}
  void operator=(const Swizzled& other) { numbers = other.numbers; }
""",
    "struct Apart {\n": """struct Apart {
  Apart(IN_SHARED float* at) __generic : numbers(at) {}
  Apart(const Apart& other) __generic : numbers(other.numbers) {}
""",
    "struct Padded {\n": """struct Padded {
  Padded(IN_DEVICE const float* at, uint r, uint c) __generic : numbers(at), rows(r), columns(c) {}
  Padded(const Padded& o) __generic : numbers(o.numbers), rows(o.rows), columns(o.columns) {}
""",
    "struct Transposed {\n": """struct Transposed {
  Transposed(const Matrix& of) __generic : matrix(of) {}
  Transposed(const Transposed& other) __generic : matrix(other.matrix) {}
""",
}

pytestmark = pytest.mark.skipif(
    not importlib.util.find_spec("ziglang"), reason="ziglang isn't installed"
)


def kernels(language: str, seats: int = 0) -> list[text.KernelSource]:
    """Return the sources of all GPU kernels.

    With ``seats``, of those that depend on players or the kind of action space.
    """
    paths = [*sorted(PACKAGE.rglob("*.metal.h")), *minibatch_texts()]
    backend = language.split()[0]
    found = [kernel for path in paths for kernel in text.read_kernels(path, backend).values()]
    if seats:
        names = [({*each.template}, each) for each in found]
        found = [each for of, each in names if {"PLAYERS", "HEADS"} & of and "POOL" not in of]
    assert len(found) >= (7 if seats else 9)
    return found


def plans(kernel: text.KernelSource, language: str, low: bool) -> list[dict[str, Any]]:
    """Return choices of a GPU kernel's template arguments, as the launching functions make them.

    For a minibatch, one plan for each combination of features.
    """
    backend = language.split()[0]
    if kernel.name == "muon_by_block":
        block = launch.POOL_THREADS["cuda"]
        sizes = {columns: 64 * columns + 2 * 64 * 64 + block for columns in (192, 64)}
        return [
            {"COLUMNS": c, "THREADS": block, "POOL": pool, "EXACT": int(c == 64)}
            for c, pool in sizes.items()
        ]
    if kernel.name == "mingru_minibatch_wide":
        block, room = launch.POOL_THREADS["cuda"], launch.CUDA_POOL_BYTES["sm_90"]
        wide = []
        for n, (T, D, H, L, A) in enumerate(((16, 40, 128, 2, 3), (64, 126, 192, 1, 40))):
            given = T, 64, D, H, L, A, n + 1, n > 0, True, block, room
            plan = minibatch.choose_wide_plan(minibatch.MinibatchSizes(*given))
            assert plan is not None
            seen = {"Observed": mx.float32 if n else mx.uint8, "MASKED": n, "BLOCKS": plan.blocks}
            wide.append({**plan.sizes, **seen, "POOL": plan.sizes["POOL"] * (1 if low else 2)})
        return wide
    if kernel.name == "mingru_wide_gradients":
        sizes = {"D": 126, "H": 192, "L": 2, "A": 40, "SLICES": 4, "THREADS": 256, "RESIDENT": 512}
        return [{**sizes, "POOL": 3 * 64 * 128 * (1 if low else 2)}]
    if kernel.name == "muon_by_cluster":
        clusters = (1, 8) if backend == "cuda" else (1,)
        return [{"EXACT": int(not low), "CLUSTER": blocks} for blocks in clusters]
    if kernel.name != "mingru_minibatch":
        return [{}]
    found: dict[tuple, dict[str, Any]] = {}
    room = launch.CUDA_POOL_BYTES["sm_90"] if backend == "cuda" else launch.SHARED_BYTES
    for which in MINIBATCHES:
        n = len(found)
        live = (n + n // 2) % 2 == 1  # in all ways together with the others
        sizes = minibatch.MinibatchSizes(*which, live, low, launch.POOL_THREADS[backend], room)
        plan = minibatch.choose_plan(sizes)
        if plan is not None:
            chosen = which[-1] > 0
            way = chosen, plan.sizes["KEPT"], plan.sizes["ALL"], plan.chunks > 1
            seen = {"Observed": mx.uint8 if n % 4 == 1 else mx.float32}
            further = {"BLOCKS": plan.blocks, "MASKED": int(n % 3 == 0), "EXACT": n // 2 % 2}
            found.setdefault(way, {**plan.sizes, **seen, **further})
    assert {parts for *_, parts in found} == {False, True}
    return [*found.values()]


def program(
    kernel: text.KernelSource, language: str, low: str, given: Mapping[str, Any] = SIZES
) -> str:
    """Return a GPU kernel's program for a compiler, for one type and one choice of sizes.

    On Metal the library also declares all names of the text, since a later version may have any.
    """
    before, space, backend = kernel.header, "", language.split()[0]
    after = "".join(f"#undef {name}\n" for name in MACRO.findall(before + kernel.body))
    if backend == "metal":
        space = "device "
        library = "".join(f"struct {name};" for name in _others(before))
        for plain, copied in COPIED.items():
            before = before.replace(plain, copied)
        before = f"namespace metal {{{library}}}\nusing namespace metal;\n{before}"
    arrays = [f"{space}const {type_}* {name}" for name, type_ in kernel.inputs.items()]
    arrays += [f"{space}{type_}* {name}" for name, type_ in kernel.outputs.items()]
    sizes = {
        name: given.get(name, 3) for name in kernel.template if name not in ("Low", "Observed")
    }
    constants = "".join(f"constexpr int {name} = {size};" for name, size in sizes.items())
    types = {"Low": low, "Observed": COMMON_TYPES[given.get("Observed", mx.float32)]}
    using = "".join(f"using {name} = {type_};\n" for name, type_ in types.items())
    return (
        f"namespace of_{kernel.name} {{\n{using}{before}\n{KERNEL[backend]} "
        f"{kernel.name}({', '.join(arrays)}) {{\n{constants}\n{kernel.body}}}\n}}\n{after}"
    )


def _others(before: str) -> list[str]:
    """Return the words of a kernel's source that are neither keywords nor library names."""
    text = re.sub(r"//.*|#define \w+ puffer_\w+|puffer_\w+", "", before)
    return sorted({*WORD.findall(text)} - LIBRARYS - {*MACRO.findall(text)})


def compiler_messages(folder: Path, language: str, source: str, *options: str) -> str:
    """Compile a GPU kernel's source for CUDA or Metal; return the compiler's warnings.

    Fails if there are errors.
    """
    path = folder / "kernels.txt"
    path.write_text(source)
    command = [sys.executable, "-m", "ziglang", "clang", *FRONT_ENDS[language], *WARNINGS, *options]
    output = ["-o", str(folder / "kernels.ptx")] if language == "cuda" else []
    done = subprocess.run([*command, str(path), *output], capture_output=True, text=True)
    assert (done.returncode == 0) == (not done.stderr), done.stderr
    return done.stderr


@pytest.mark.parametrize(("backend", "low", "seats"), CASES)
def test_all_kernels_compile_without_warnings(tmp_path, backend, low, seats):
    every = kernels(backend, seats)
    given = {**SIZES, "PLAYERS": seats, "HEADS": 0 if seats else 3}
    programs = [
        program(kernel._replace(name=f"{kernel.name}_{n}"), backend, low, {**given, **plan})
        for kernel in every
        for n, plan in enumerate(plans(kernel, backend, low != "float"))
    ]
    assert compiler_messages(tmp_path, backend, "".join(programs)) == ""
    if backend == "cuda":
        ptx = (tmp_path / "kernels.ptx").read_text()
        assert ptx.count(".entry") == len(programs)
        assert ".shared" in ptx and ".f64" not in ptx


ROLLOUTS = [
    *((environment, "mingru") for environment in ON_GPU),
    *(("connect4", network) for network in ("lstm", "gru", "mlp")),
    *(("connect4_two", network) for network in ("mingru", "lstm", "gru", "mlp")),
    ("soccer", "mlp"),
]
# The union needs a constructor here.
UNION = "  Game env;\n};", "  Game env;\n  EnvStorage() {}\n};"
ALLOWED = "-Wno-unused-parameter", "-Wno-unknown-pragmas"


# Rollouts by matrix units: environment, H, layers, agents, True for 16-bit weights.
BY_ROWS = [
    ("breakout", 64, 1, 16384, False),
    ("breakout", 128, 1, 4096, True),
    ("cartpole", 32, 2, 4096, True),
    ("memory", 32, 1, 18, False),
    ("memory", 32, 1, 16384, True),
    ("connect4", 64, 1, 4096, False),
]


def rollout(environment: str, network: str, language: str) -> str:
    """Return the source of the GPU kernel that runs rollouts of an environment and a network."""
    spec, rules, given = game(environment)
    block = {"R": 4, "GROUPS": 2, "THREADS": 128, "ROOM": 300}
    block["PLAYERS"] = {"connect4_two": 2, "soccer": 4}.get(environment, 0)
    low = "float" if spec.observation_dtype.itemsize == 4 else "uint8_t"
    layers = PACKAGE / "policy" / "networks" / network / "layers.metal.h"
    kernel = text.rollout_kernel(layers, rules, language.split()[0])
    return _rollout_program(kernel, language, low, {**block, **given})


def rows_kernels(backend: str) -> list[tuple[text.KernelSource, bool, dict[str, Any]]]:
    """Return the matrix-unit rollout kernels that fit a GPU.

    For each: kernel, True for 16 bits, template arguments.
    """
    path, found = PACKAGE / "policy" / "networks" / "mingru" / text.ROWS_FILE, []
    for n, (environment, hidden, layers, agents, low) in enumerate(BY_ROWS):
        spec, rules, given = game(environment)
        policy = make_policy(spec, Policy(hidden_size=hidden, num_layers=layers), Torch())
        with building_for(backend, lambda *_, **__: []):
            rows = choose_rows(policy, spec, agents, low)
        if rows is not None:
            kernel = text.rollout_kernel(path, rules, backend)
            kernel = kernel._replace(name=f"{kernel.name}_{n}")
            found.append((kernel, low, {**rows, "EXACT": n % 2, **given}))
    return found


def game(environment: str) -> tuple[EnvSpec, text.EnvRules, dict[str, Any]]:
    """Return an environment's spec, its GPU rules and their template arguments."""
    folder = find_environment(environment)
    library = open_environment(folder)
    spec = read_spec(folder, library)
    rules = gpu_rules(folder, library, spec)
    assert rules is not None
    seen = mx.uint8 if spec.observation_dtype == "uint8" else mx.float32
    row = {"Observed": seen, "SEEN": spec.observation_size, "HEADS": spec.action.heads}
    game = {"LEGAL": max(1, spec.mask_size), "WORDS": rules.words, "LOG": rules.log}
    game |= {"LOGS": rules.logs, "LARGE": int(rules.words > REGISTERS)}
    return spec, text.EnvRules(*rules[:3]), {**row, **game}


def _rollout_program(
    kernel: text.KernelSource, language: str, low: str, given: dict[str, Any]
) -> str:
    assert UNION[0] in kernel.header
    if language != "cuda":
        kernel = kernel._replace(header=kernel.header.replace(*UNION))
    return program(kernel, language, low, given)


OF_SEVERAL = "connect4_two", "rock_paper_scissors", "soccer"  # agents
STEPS = {"THREADS": 64, "APART": 4, "PLAYERS": 2}


@pytest.mark.parametrize("language", ["metal", "metal 4.1"])  # CUDA: test_nvrtc_compiles.py
def test_environment_steps_compile_without_warnings(tmp_path, language):
    source = ""
    for environment in (*ON_GPU, *OF_SEVERAL):
        spec, rules, given = game(environment)
        low = "float" if spec.observation_dtype.itemsize == 4 else "uint8_t"
        kernel = text.environment_kernel(rules, language.split()[0])
        source += _rollout_program(kernel, language, low, {**STEPS, **given})
    assert compiler_messages(tmp_path, language, source, *ALLOWED) == ""


@pytest.mark.parametrize("language", FRONT_ENDS)
def test_rollouts_compile_without_warnings(tmp_path, language):
    source = "".join(rollout(*which, language) for which in ROLLOUTS)
    assert compiler_messages(tmp_path, language, source, *ALLOWED) == ""


@pytest.mark.parametrize("language", FRONT_ENDS)
def test_rollouts_by_matrix_units_compile_without_warnings(tmp_path, language):
    backend = language.split()[0]
    every = rows_kernels(backend)
    assert {sizes["KEPT"] for *_, sizes in every} == {1, 2}
    source = "".join(
        _rollout_program(kernel, language, LOW[language][low], sizes)
        for kernel, low, sizes in every
    )
    assert compiler_messages(tmp_path, language, source, *ALLOWED) == ""
