"""GPU kernels read by clang as what they are: CUDA, compiled to PTX, and the nearest to Metal.

`emulated_gpu.py` runs the texts as C++, where all memory is alike. Here nothing is run, but memory
of a device, of a block and of a thread are different things, a GPU's functions can't call others,
and warnings are errors. clang is PyPI's `ziglang`: every machine's is the same. Metal is there
twice: until 4.0 what a member function is called for is in the thread's memory, from 4.1 on (macOS
27) it may be anywhere.
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
from emulated_gpu import COMMON_TYPES
from emulated_run import minibatch_texts

import puffer_mlx
from puffer_mlx.config import Policy, Torch
from puffer_mlx.ops.gpu import launch, nvrtc, text
from puffer_mlx.policy.policy import make_policy
from puffer_mlx.policy.rollout_on_gpu import REGISTERS, choose_rows
from puffer_mlx.ppo import minibatch
from puffer_mlx.spec import EnvSpec
from puffer_mlx.system.backend import building_for
from puffer_mlx.vec.native.gpu_rules import gpu_rules
from puffer_mlx.vec.native.make import find_environment, open_environment, read_spec

PACKAGE = Path(puffer_mlx.__file__).parent
HEADERS = Path(__file__).parents[1] / "c"
# T steps, S segments, H channels, and the rest of what templates ask for: no multiples of a block.
SIZES = {"T": 3, "S": 5, "H": 33, "R": 4, "C": 2, "THREADS": 32, "G": 4, "D": 33, "U": 8, "N": 7}
SIZES["MASKED"] = 1
# Of minibatches whose plans take every branch: T, S, D, H, layers, logits, heads; 0 of numbers.
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
    *("-Wno-unused-variable", "-Wno-unused-local-typedef"),  # no kernel needs all that it may use
    "-Wno-pass-failed",  # how far a loop is unrolled, NVRTC decides otherwise
]
CUDA = [
    *("-x", "cuda", "--cuda-device-only", "--cuda-gpu-arch=sm_80", "-nocudainc", "-nocudalib"),
    *("-Wno-unknown-cuda-version", "-std=c++20", "-O0", "-S"),
    *("-include", str(HEADERS / "as_cuda.h")),
]
HOPPER = "--no-cuda-gpu-arch=sm_80", "--cuda-gpu-arch=sm_90"
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
    *("breakout", "cartpole", "catch", "connect4", "craftax_classic", "g2048", "memory", "squared"),
)
CASES = [(backend, low) for backend in LOW for low in LOW[backend]]
# Metal copies a struct from any memory, and returns one; here it must be said.
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
  void operator=(const device Line& other) __generic {
    for (int w = 0; w < 16 / (int)sizeof(Low); ++w)
      for (int k = 0; k < (int)sizeof(Low) / 2; ++k) of[w].of[k] = other.of[w].of[k];
  }
  void operator=(const Line& other) threadgroup {
    for (int w = 0; w < 16 / (int)sizeof(Low); ++w)
      for (int k = 0; k < (int)sizeof(Low) / 2; ++k) of[w].of[k] = other.of[w].of[k];
  }
  void operator=(const threadgroup Line& other) __generic {
    for (int w = 0; w < 16 / (int)sizeof(Low); ++w)
      for (int k = 0; k < (int)sizeof(Low) / 2; ++k) of[w].of[k] = other.of[w].of[k];
  }
  void operator=(const Line& other) device {
    for (int w = 0; w < 16 / (int)sizeof(Low); ++w)
      for (int k = 0; k < (int)sizeof(Low) / 2; ++k) of[w].of[k] = other.of[w].of[k];
  }
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


def kernels(language: str, seats: int = 0) -> list[text.Kernel]:
    """All; with seats those alone that differ with them, or with a continuous space."""
    paths = [*sorted(PACKAGE.rglob("*.metal.h")), *minibatch_texts()]
    backend = language.split()[0]
    found = [kernel for path in paths for kernel in text.kernels(path, backend).values()]
    if seats:
        names = [({*each.template}, each) for each in found]
        found = [each for of, each in names if {"SEATS", "HEADS"} & of and "POOL" not in of]
    assert len(found) >= (7 if seats else 9)
    return found


def plans(kernel: text.Kernel, language: str, low: bool) -> list[dict[str, Any]]:
    """Numbers of a template that fit together only as those choose them who launch the kernel.

    Of a minibatch one plan for each of its ways through time and memory; of most kernels nothing.
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
        block, room = launch.POOL_THREADS["cuda"], launch.SHARED_POOLS["sm_90"]
        wide = []
        for n, (T, D, H, L, A) in enumerate(((16, 40, 128, 2, 3), (64, 126, 192, 1, 40))):
            given = T, 64, D, H, L, A, n + 1, n > 0, True, block, room
            plan = minibatch.choose_wide(minibatch.MinibatchSizes(*given))
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
    room = launch.SHARED_POOLS["sm_90"] if backend == "cuda" else launch.SHARED_BYTES
    for which in MINIBATCHES:
        n = len(found)
        live = (n + n // 2) % 2 == 1  # in all ways together with the others
        sizes = minibatch.MinibatchSizes(*which, live, low, launch.POOL_THREADS[backend], room)
        plan = minibatch.choose_plan(sizes)
        if plan is not None:
            chosen = which[-1] > 0
            way = chosen, plan.sizes["KEPT"], plan.sizes["ALL"], plan.chunks > 1
            seen = {"Observed": mx.uint8 if n % 4 == 1 else mx.float32}
            further = {
                **seen,
                "BLOCKS": plan.blocks,
                "MASKED": int(n % 3 == 0),
                "EXACT": n // 2 % 2,
            }
            found.setdefault(way, {**plan.sizes, **further})
    ways = {(3, 1), (3, 0), *(() if low else ((2, 0), (1, 0)))}
    if backend == "metal" and not low:  # for more there is no room
        ways = {(2, 0), (1, 0), (0, 0)}
    assert {(kept, every) for _, kept, every, _ in found} == ways
    assert {parts for *_, parts in found} == {False, True}
    return [*found.values()]


def program(kernel: text.Kernel, language: str, low: str, given: Mapping[str, Any] = SIZES) -> str:
    """The kernel in a namespace of its own, of one type and one choice of sizes.

    On Metal the library has all names of the text besides, since a later version may have any.
    """
    before, space, backend = kernel.before, "", language.split()[0]
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
    """Words of a text that are no keyword, and aren't meant to be the library's."""
    text = re.sub(r"//.*|#define \w+ puffer_\w+|puffer_\w+", "", before)
    return sorted({*WORD.findall(text)} - LIBRARYS - {*MACRO.findall(text)})


def messages(folder: Path, language: str, source: str, *but: str) -> str:
    """What the front end says; ``but``: options that follow the others."""
    path = folder / "kernels.txt"
    path.write_text(source)
    command = [sys.executable, "-m", "ziglang", "clang", *FRONT_ENDS[language], *WARNINGS, *but]
    output = ["-o", str(folder / "kernels.ptx")] if language == "cuda" else []
    done = subprocess.run([*command, str(path), *output], capture_output=True, text=True)
    assert (done.returncode == 0) == (not done.stderr), done.stderr
    return done.stderr


@pytest.mark.parametrize(("backend", "low"), CASES)
@pytest.mark.parametrize("seats", [0, 1])
def test_texts(tmp_path, backend, low, seats):
    every = kernels(backend, seats)
    given = {**SIZES, "SEATS": seats, "HEADS": 0 if seats else 3}
    programs = [
        program(kernel._replace(name=f"{kernel.name}_{n}"), backend, low, {**given, **plan})
        for kernel in every
        for n, plan in enumerate(plans(kernel, backend, low != "float"))
    ]
    assert messages(tmp_path, backend, "".join(programs)) == ""
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
# The union needs a constructor here; where there are no masks nobody reads them; Metal's pragma.
UNION = "  Game env;\n};", "  Game env;\n  EnvStorage() {}\n};"
ALLOWED = "-Wno-unused-parameter", "-Wno-unknown-pragmas"


# The same by matrix units: environment, H, layers, agents, and whether of 16 bits.
BY_ROWS = [
    *(("breakout", 64, 1, 16384, False), ("breakout", 128, 1, 4096, True)),
    *(
        ("cartpole", 32, 2, 4096, True),
        ("memory", 32, 1, 18, False),
        ("memory", 32, 1, 16384, True),
        ("connect4", 64, 1, 4096, False),
    ),
]


def rollout(environment: str, network: str, language: str) -> str:
    """The program of whole rollouts with an environment's rules, of its own sizes."""
    spec, rules, given = game(environment)
    block = {"R": 4, "GROUPS": 2, "THREADS": 128, "ROOM": 300}
    block["SEATS"] = {"connect4_two": 2, "soccer": 4}.get(environment, 0)
    low = "float" if spec.observation_dtype.itemsize == 4 else "uint8_t"
    layers = PACKAGE / "policy" / "networks" / network / "layers.metal.h"
    kernel = text.rollout(layers, rules, language.split()[0])
    return _rollout_program(kernel, language, low, {**block, **given})


def rows_kernels(backend: str) -> list[tuple[text.Kernel, bool, dict[str, Any]]]:
    """Those of BY_ROWS for which a GPU has room: whether of 16 bits, and the template's numbers."""
    path, found = PACKAGE / "policy" / "networks" / "mingru" / text.ROWS, []
    for n, (environment, hidden, layers, agents, low) in enumerate(BY_ROWS):
        spec, rules, given = game(environment)
        policy = make_policy(spec, Policy(hidden_size=hidden, num_layers=layers), Torch())
        with building_for(backend, lambda *_, **__: []):
            rows = choose_rows(policy, spec, agents, low)
        if rows is not None:
            kernel = text.rollout(path, rules, backend)
            kernel = kernel._replace(name=f"{kernel.name}_{n}")
            found.append((kernel, low, {**rows, "EXACT": n % 2, **given}))
    return found


def game(environment: str) -> tuple[EnvSpec, text.EnvRules, dict[str, Any]]:
    """Of an environment the spec and the rules, and what a rollout's template asks of it."""
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


def _rollout_program(kernel: text.Kernel, language: str, low: str, given: dict[str, Any]) -> str:
    assert UNION[0] in kernel.before
    if language != "cuda":
        kernel = kernel._replace(before=kernel.before.replace(*UNION))
    return program(kernel, language, low, given)


OF_SEVERAL = "connect4_two", "rock_paper_scissors", "soccer"  # agents
STEPS = {"THREADS": 64, "APART": 4, "SEATS": 2}


@pytest.mark.parametrize("language", FRONT_ENDS)
def test_steps_of_environments(tmp_path, language):
    source = ""
    for environment in (*ON_GPU, *OF_SEVERAL):
        spec, rules, given = game(environment)
        low = "float" if spec.observation_dtype.itemsize == 4 else "uint8_t"
        kernel = text.environments(rules, language.split()[0])
        source += _rollout_program(kernel, language, low, {**STEPS, **given})
    assert messages(tmp_path, language, source, *ALLOWED) == ""


@pytest.mark.parametrize("language", FRONT_ENDS)
def test_whole_rollouts(tmp_path, language):
    source = "".join(rollout(*which, language) for which in ROLLOUTS)
    assert messages(tmp_path, language, source, *ALLOWED) == ""


@pytest.mark.parametrize("language", FRONT_ENDS)
def test_whole_rollouts_by_rows(tmp_path, language):
    backend = language.split()[0]
    every = rows_kernels(backend)
    assert len(every) == (len(BY_ROWS) if backend == "cuda" else 3)
    assert {sizes["KEPT"] for *_, sizes in every} == {1, 2}
    assert {sizes["M"] for *_, sizes in every} == {16, 32, *((64,) if backend == "cuda" else ())}
    source = "".join(
        _rollout_program(kernel, language, LOW[language][low], sizes)
        for kernel, low, sizes in every
    )
    assert messages(tmp_path, language, source, *ALLOWED) == ""


OF_METAL_4_1 = {  # in the text before a kernel; whether 4.0 finds it, too, and what is said
    "a member function that leads to the thread's memory": (
        "  FUNCTION void next_layer() {",
        "  FUNCTION IN_THREAD uint& width() { return H; }\n  FUNCTION void next_layer() {",
        False,
        "changes address space|cannot bind|could not bind",
    ),
    "a name that the library has": ("#define gelu puffer_gelu\n", "", True, "'gelu' is ambiguous"),
}


@pytest.mark.parametrize("fault", OF_METAL_4_1)
def test_what_metal_4_1_refuses_is_found(tmp_path, fault):
    old, new, both, said = OF_METAL_4_1[fault]
    (kernel,) = (kernel for kernel in kernels("metal") if kernel.name == "lstm_act")
    assert old in kernel.before
    planted = kernel._replace(before=kernel.before.replace(old, new))
    for language in ("metal", "metal 4.1"):
        found = messages(tmp_path, language, program(planted, language, "float"))
        assert bool(re.search(said, found)) == (both or language == "metal 4.1"), found


RULES = {  # text, its replacement, what is said for CUDA (None: nothing) and for Metal
    "a row for the thread's own": (
        "    int open[COLUMNS];\n",
        "    int open[COLUMNS];\n    unsigned char ENV_PTR* row = &env->observations[0];\n"
        "    *row = 1;\n",
        None,
        "cannot initialize a variable of type '.*private unsigned char",
    ),
    "a struct that is laid out in another way": (
        "    int stones; ",
        "    int stones, more[2]; ",
        "a GPU lays the environment's struct out in another way",
        "a GPU lays the environment's struct out in another way",
    ),
}


@pytest.mark.parametrize("backend", KERNEL)
@pytest.mark.parametrize("fault", RULES)
def test_faults_of_rules_are_found(tmp_path, fault, backend):
    old, new, *said = RULES[fault]
    source = rollout("connect4", "mingru", backend)
    assert old in source
    expected = dict(zip(KERNEL, said, strict=True))[backend]
    found = messages(tmp_path, backend, source.replace(old, new), *ALLOWED)
    assert re.search(expected, found) if expected else found == ""


@pytest.mark.parametrize("low", [mx.float16, mx.bfloat16])
def test_texts_without_headers(tmp_path, low):
    """As NVRTC is given them: the declaration, and types of their own."""
    cases = [(kernel, plan) for kernel in kernels("cuda") for plan in plans(kernel, "cuda", True)]
    source = ""
    for kernel, plan in cases:
        given = {**SIZES, **plan, "Low": low}
        made = nvrtc.program(kernel, {n: given.get(n, 3) for n in kernel.template})
        source += f"namespace of_{made.name} {{\n{made.text}}}\n"
    assert messages(tmp_path, "cuda", source, *HOPPER) == ""
    ptx = (tmp_path / "kernels.ptx").read_text()
    entries = re.findall(r"\.entry (\w+)_[0-9a-f]{16}\(", ptx)  # C's names: none is mangled
    assert sorted(entries) == sorted(kernel.name for kernel, _ in cases)


FAULTS = {  # kernel, text, its replacement, what is said for CUDA (None: nothing) and for Metal
    "a pointer that doesn't say to what memory": (
        "mingru_forward",
        "float state = first[i * first_step];",
        "const float* from = first; float state = from[i];",
        None,
        "cannot initialize a variable of type 'const __private float",
    ),
    "a constant in double precision": (
        "mingru_forward",
        "out[k] = (Low)cell.out",
        "out[k] = (Low)(1.0 * cell.out); out[k] = (Low)cell.out",
        "-Wdouble-promotion",
        "-Wdouble-promotion",
    ),
    "a number that isn't set": (
        "mingru_backward",
        "float carry = 0.0f;",
        "float carry;",
        "-Wconditional-uninitialized",
        "-Wconditional-uninitialized",
    ),
    "a device's memory for a block's": (
        "mingru_minibatch",
        "auto encoding =",
        "IN_SHARED const float* there = encoder; auto encoding =",
        None,
        "cannot initialize a variable of type 'const __local float",
    ),
    "a bfloat without a cast": (
        "mingru_forward",
        "out[k] = (Low)cell.out",
        "out[k] = cell.out",
        None,
        "no viable overloaded '='",
    ),
}


@pytest.mark.parametrize("backend", KERNEL)
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_found(tmp_path, fault, backend):
    name, old, new, *said = FAULTS[fault]
    expected = dict(zip(KERNEL, said, strict=True))[backend]
    (kernel,) = (kernel for kernel in kernels(backend) if kernel.name == name)
    assert old in kernel.body
    planted = kernel._replace(body=kernel.body.replace(old, new))
    given = {**SIZES, **plans(kernel, backend, True)[0]}
    found = messages(tmp_path, backend, program(planted, backend, LOW[backend][1], given))
    if expected is None:
        assert not found
    else:
        assert expected in found
