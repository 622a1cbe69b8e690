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

import mlx.core as mx
import pytest

import puffer_mlx
from puffer_mlx.ops.gpu import nvrtc, text
from puffer_mlx.vec.native.gpu_rules import gpu_rules
from puffer_mlx.vec.native.make import find_environment, open_environment, read_spec

PACKAGE = Path(puffer_mlx.__file__).parent
HEADERS = Path(__file__).parents[1] / "c"
# T steps, S segments, H channels, and the rest of what templates ask for: no multiples of a block.
SIZES = {"T": 3, "S": 5, "H": 33, "R": 4, "C": 2, "THREADS": 32, "G": 4, "D": 33, "U": 8, "N": 7}
SIZES["MASKED"] = 1
WARNINGS = [
    *("-Wall", "-Wextra", "-Werror", "-Wshadow", "-Wdouble-promotion", "-Wfloat-conversion"),
    *("-Wconditional-uninitialized", "-Wimplicit-int-conversion", "-Wcast-align"),
    *("-Wno-unused-variable", "-Wno-unused-local-typedef"),  # no kernel needs all that it may use
]
CUDA = [
    *("-x", "cuda", "--cuda-device-only", "--cuda-gpu-arch=sm_80", "-nocudainc", "-nocudalib"),
    *("-Wno-unknown-cuda-version", "-std=c++20", "-O1", "-S"),
    *("-include", str(HEADERS / "as_cuda.h")),
]
METAL_4_1 = [
    *("-x", "cl", "-target", "spir64", "-cl-std=clc++2021", "-cl-no-stdinc", "-fsyntax-only"),
    *("-include", str(HEADERS / "as_metal.h")),
    *("-Xclang", "-cl-ext=-__opencl_c_pipes,-__opencl_c_device_enqueue"),
]
METAL = [*METAL_4_1[:-1], METAL_4_1[-1] + ",-__opencl_c_generic_address_space"]
FRONT_ENDS = {"cuda": CUDA, "metal": METAL, "metal 4.1": METAL_4_1}
KERNEL = {"cuda": "__global__ void", "metal": "__kernel void"}
LOW = {"cuda": ("float", "__half")} | dict.fromkeys(("metal", "metal 4.1"), ("float", "bfloat"))
MACRO = re.compile(r"^ *#define (\w+)", re.MULTILINE)
WORD = re.compile(r"\b[A-Za-z_]\w*")
KEYWORDS = WORD.findall("""
    Low alignas auto bool break case char class const constant constexpr continue
    default define defined do double else endif false for goto if ifdef ifndef include inline
    int pragma return short signed sizeof static struct switch template true typename undef union
    unroll unsigned using while
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
}

pytestmark = pytest.mark.skipif(
    not importlib.util.find_spec("ziglang"), reason="ziglang isn't installed"
)


def kernels(language: str, seats: int = 0) -> list[text.Kernel]:
    """All; with seats those alone that differ with them, or with a continuous space."""
    paths, backend = sorted(PACKAGE.rglob("*.metal.h")), language.split()[0]
    found = [kernel for path in paths for kernel in text.kernels(path, backend).values()]
    found = [each for each in found if not seats or {"SEATS", "HEADS"} & {*each.template}]
    assert len(found) >= (7 if seats else 9)
    return found


def program(kernel: text.Kernel, language: str, low: str, given: Mapping[str, int] = SIZES) -> str:
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
    sizes = (f"constexpr int {name} = {given.get(name, 3)};" for name in kernel.template)
    constants = "".join(line for line in sizes if " Low " not in line)
    return (
        f"namespace of_{kernel.name} {{\nusing Low = {low};\n{before}\n{KERNEL[backend]} "
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
    source = "".join(program(kernel, backend, low, given) for kernel in every)
    assert messages(tmp_path, backend, source) == ""
    if backend == "cuda":
        ptx = (tmp_path / "kernels.ptx").read_text()
        assert ptx.count(".entry") == len(every)
        assert ".shared" in ptx and ".f64" not in ptx


ROLLOUTS = [
    *((environment, "mingru") for environment in ON_GPU),
    *(("connect4", network) for network in ("lstm", "gru", "mlp")),
]
# The union needs a constructor here; where there are no masks nobody reads them; Metal's pragma.
UNION = "    Game env;\n  } held;", "    Game env;\n    Held() {}\n  } held;"
ALLOWED = "-Wno-unused-parameter", "-Wno-unknown-pragmas"


def rollout(environment: str, network: str, language: str) -> str:
    """The program of whole rollouts with an environment's rules, of its own sizes."""
    folder = find_environment(environment)
    library = open_environment(folder)
    spec = read_spec(folder, library)
    rules = gpu_rules(folder, library, spec)
    assert rules is not None
    layers = PACKAGE / "policy" / "networks" / network / "layers.metal.h"
    backend = language.split()[0]
    kernel = text.rollout(layers, text.Rules(*rules[:3]), backend)
    assert UNION[0] in kernel.body
    if backend == "metal":
        kernel = kernel._replace(body=kernel.body.replace(*UNION))
    block = {"R": 4, "GROUPS": 2, "THREADS": 128, "ROOM": 300}
    row = {"SEEN": spec.observation_size, "HEADS": spec.action.heads}
    game = {"LEGAL": max(1, spec.mask_size), "WORDS": rules.words, "LOG": rules.log}
    sizes = {**block, **row, **game, "LOGS": rules.logs}
    low = "float" if spec.observation_dtype.itemsize == 4 else "uint8_t"
    return program(kernel, language, low, sizes)


@pytest.mark.parametrize("language", FRONT_ENDS)
def test_whole_rollouts(tmp_path, language):
    source = "".join(rollout(*which, language) for which in ROLLOUTS)
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
        "    int open[COLUMNS];\n    unsigned char OWN* row = &env->observations[0];\n"
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
    every = kernels("cuda")
    source = ""
    for kernel in every:
        template = {n: low if n == "Low" else SIZES.get(n, 3) for n in kernel.template}
        source += f"namespace of_{kernel.name} {{\n{nvrtc.program(kernel, template).text}}}\n"
    assert messages(tmp_path, "cuda", source) == ""
    ptx = (tmp_path / "kernels.ptx").read_text()
    entries = re.findall(r"\.entry (\w+)_[0-9a-f]{16}\(", ptx)  # C's names: none is mangled
    assert sorted(entries) == sorted(kernel.name for kernel in every)


FAULTS = {  # kernel, text, its replacement, what is said for CUDA (None: nothing) and for Metal
    "a pointer that doesn't say to what memory": (
        "mingru_forward",
        "float state = first[i * first_step];",
        "const float* from = first; float state = from[i];",
        None,
        "cannot initialize a variable of type 'const __private float",
    ),
    "a constant in double precision": (
        "gelu_forward",
        "(Low)gelu<float>(",
        "(Low)(1.0 * gelu<float>((float)x[i])); y[i] = (Low)gelu<float>(",
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
    found = messages(tmp_path, backend, program(planted, backend, LOW[backend][1]))
    if expected is None:
        assert not found
    else:
        assert expected in found
