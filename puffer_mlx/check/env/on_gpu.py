"""Check if a GPU can step the environment, with the same results as the host."""

import re
import tempfile
from pathlib import Path

from puffer_mlx import vec
from puffer_mlx.check.env.environment import EnvUnderTest
from puffer_mlx.check.items import FAIL, OK, Finding, Findings, fail, ok, skip, warn
from puffer_mlx.check.trajectories import compare
from puffer_mlx.config.dialects import folder_version
from puffer_mlx.errors import UserError
from puffer_mlx.ops.gpu.text import FOLDER, EnvRules, in_namespace
from puffer_mlx.rollout.on_gpu import device_env
from puffer_mlx.system.backend import kernel_substitute
from puffer_mlx.system.compiler import CompilerError, compile_shared
from puffer_mlx.system.devices import has_gpu
from puffer_mlx.vec.native.gpu_rules import WORD_BYTES, GPURules
from puffer_mlx.vec.native.sources import environment_files
from puffer_mlx.vec.native.vec import NativeVec

ROLLOUTS = 8
ROUNDING = 1e-3  # largest difference from another order of rounding
GUIDE = "docs/writing_envs.md, “Rules that a GPU runs”, says how they are written"
HEADER = Path(__file__).with_name("rules_on_gpu.h")
RULES = FOLDER / "acting" / "rules.kernel.h"
SHOWN = 3  # compiler errors to show
COMPILED = [
    *("-S", "-std=c++14", "-nostdinc", "-nostdinc++", "-fno-sanitize=all"),
    *("-Werror=double-promotion", "-Wno-extern-initializer", "-Wno-unused-command-line-argument"),
]
# Inserted after rules.kernel.h, which uses some of these words. As in Metal, an initialized
# constant may be extern outside of functions but not inside.
WORDS = """
#undef TABLE
#define TABLE extern const
#pragma GCC poison double static
"""
_VARIABLES = re.compile(
    r"^\s*(?:\.section\s+)?(?:\.t?(?:bss|data)|\.l?comm|\.zerofill|__DATA)\b(?!\.rel|,__const)",
    re.M,
)
_DEFINED = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.MULTILINE)


def check_gpu_rules(env: EnvUnderTest) -> Findings:
    """Check that the rules compile for a GPU and give the host's trajectories there."""
    if not env.native:
        return [skip("environments in Python are stepped on the CPU")]
    with env.make() as environments:
        assert isinstance(environments, NativeVec)
        side = environments.gpu_side
        known = device_env(environments) is not None
    if side is None or not known:
        reasons = unsupported_features(vec.source_folder(env.config), side is not None)
        return [skip(f"stepped on the CPU alone: {'; '.join(reasons)}. {GUIDE}")]
    compilation = compile_rules(side.rules)
    if compilation.verdict == FAIL or not (has_gpu() or kernel_substitute()):
        return [compilation]
    warnings = [] if compilation.verdict == OK else [compilation]
    return [*warnings, compare_with_host(env)]


def compile_rules(rules: GPURules) -> Finding:
    """Compile rules with this machine's C++ compiler and without features that GPUs lack.

    Address spaces are checked for rows only, and only by clang.
    """
    name = rules.header.stem
    try:
        text = rules_program(rules)
        assembly = _assembly(name, text)
        refused = _extensions(name, text)
    except OSError as error:
        return fail(f"its rules include {error.filename}, which isn't there", GUIDE)
    except CompilerError as error:
        return fail(
            f"its rules don't compile for a GPU: {'; '.join(_errors(error)[:SHOWN])}", GUIDE
        )
    except UserError as error:
        return skip(f"whether its rules compile for a GPU, can't be told: {error.message}")
    if _VARIABLES.search(assembly):
        return fail("its rules don't compile for a GPU: variables outside of functions", GUIDE)
    if refused:
        return warn(f"a GPU's compiler may refuse its rules: {'; '.join(refused[:SHOWN])}", GUIDE)
    return ok(
        "its rules compile without headers, double and static variables, as a GPU needs them;"
        " there is none here to compare them on"
    )


def _errors(error: CompilerError) -> list[str]:
    return [line for line in error.lines if " error: " in line]


def _extensions(name: str, text: str) -> list[str]:
    """Return errors about language extensions that GPU compilers may not accept."""
    try:
        _assembly(name, text, "-pedantic-errors")
    except CompilerError as error:
        return [line for line in _errors(error) if "anonymous" not in line]
    return []


def rules_program(rules: GPURules) -> str:
    """Return the source that a GPU compiler gets for the rules, without a kernel."""
    header = rules.header.name
    text = in_namespace(EnvRules(rules.header, rules.struct, rules.masked))
    text = text.replace("namespace game {\n", f'namespace game {{\n#line 1 "{header}"\n', 1)
    before = (path.read_text() for path in (HEADER, RULES))
    calls = "void one_step(Game ENV_PTR* env) { game::c_step(env); }\n"
    layout = (
        f'static_assert(sizeof(Game) == {WORD_BYTES * rules.words}, "laid out in another way");\n'
    )
    return "".join((*before, WORDS, text, calls, layout))


def _assembly(name: str, text: str, *flags: str) -> str:
    """Compile a C++ program. Returns its assembly.

    Raises:
        CompilerError: If it doesn't compile.
        UserError: If there is no compiler.
    """
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / f"{name}.cpp"
        source.write_text(text)
        path = compile_shared(f"{name}-rules", [source], [*COMPILED, *flags], "c++")
    return path.read_text()


def compare_with_host(env: EnvUnderTest) -> Finding:
    """Compare the environment on the GPU with the environment on the CPU."""
    result = compare(env.make, ROLLOUTS)
    if result is None:
        text = "a GPU doesn't step so few environments, or rows of so many numbers: it is stepped"
        return warn(f"{text} on the CPU", "another --vec.total-agents")
    rate = result.agents / result.seconds
    counts = f"{result.agents} agents for {result.steps} steps, {result.ends} episodes ended"
    if result.difference > ROUNDING:
        text = (
            f"on the GPU something else happens, first at step {result.first}: numbers are"
            f" {result.difference:.3g} apart; {counts}"
        )
        hint = "look for what C leaves open: order of evaluation, overflow, numbers that aren't set"
        return fail(text, hint)
    how = ", to the bit"
    if apart := result.agents - result.equal:
        how = (
            f" but for rounding ({result.difference:.1g}), from which {apart} agents went other"
            " ways"
        )
    return ok(f"on the GPU as on the CPU{how}: {counts}; {rate:,.0f} steps/s {result.form}")


def unsupported_features(folder: Path, unequal: bool = False) -> list[str]:
    """Return reasons why a folder's environment can't run on a GPU.

    Args:
        folder: Folder of the environment.
        unequal: True if its environments have different numbers of agents.
    """
    if folder_version(folder) == "5.0":
        return ["rules for a GPU need the form of PufferLib 4.0"]
    files = [path for path in environment_files(folder) if path.suffix in (".c", ".h")]
    code = "\n".join(path.read_text(errors="replace") for path in files)
    defined = set(_DEFINED.findall(code))
    reasons = {
        "binding.c doesn't define MY_GPU": "MY_GPU" not in defined,
        "binding.c doesn't define MY_STATE_PLAIN, so its state may be more than its struct": (
            "MY_STATE_PLAIN" not in defined
        ),
        "its environments have different numbers of agents": unequal,
    }
    return [reason for reason, holds in reasons.items() if holds]
