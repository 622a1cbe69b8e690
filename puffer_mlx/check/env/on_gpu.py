"""Check if a GPU can step a C environment, with the same results as the CPU."""

import re
import tempfile
from pathlib import Path

from puffer_mlx import vec
from puffer_mlx.check.env.environment import EnvUnderTest
from puffer_mlx.check.items import FAIL, OK, Finding, Findings, fail, ok, skip, warn
from puffer_mlx.check.trajectories import compare_trajectories
from puffer_mlx.config.releases import folder_release
from puffer_mlx.errors import UserError
from puffer_mlx.ops.gpu.text import FOLDER, EnvRules, in_namespace
from puffer_mlx.rollout.on_gpu import device_env
from puffer_mlx.system.backend import kernel_substitute
from puffer_mlx.system.compiler import CompilerError, compile_shared
from puffer_mlx.system.devices import has_gpu
from puffer_mlx.vec.native.gpu_rules import WORD_BYTES, GPURules
from puffer_mlx.vec.native.sources import environment_files
from puffer_mlx.vec.native.vec import NativeVec

COMPARED_ROLLOUTS = 8
ROUNDING_TOLERANCE = 1e-3  # largest difference that rounding in a different order explains
GUIDE_HINT = "see docs/writing_envs.md, “Rules that a GPU runs”"
DECLARATIONS = Path(__file__).with_name("rules_on_gpu.h")
RULES_HEADER = FOLDER / "acting" / "rules.kernel.h"
MAX_SHOWN_ERRORS = 3
COMPILER_FLAGS = [
    *("-S", "-std=c++14", "-nostdinc", "-nostdinc++", "-fno-sanitize=all"),
    *("-Werror=double-promotion", "-Wno-extern-initializer", "-Wno-unused-command-line-argument"),
]
# Inserted after rules.kernel.h, which itself uses double and static. As in Metal, an initialized
# constant may be extern outside of functions but not inside.
FORBIDDEN_FEATURES = """
#undef TABLE
#define TABLE extern const
#pragma GCC poison double static
"""
# Assembly directives that define a variable outside of functions; constants are allowed.
_VARIABLES = re.compile(
    r"^\s*(?:\.section\s+)?(?:\.t?(?:bss|data)|\.l?comm|\.zerofill|__DATA)\b(?!\.rel|,__const)",
    re.M,
)
_DEFINED = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.MULTILINE)


def check_gpu_rules(env: EnvUnderTest) -> Findings:
    """Check that an environment's rules compile for a GPU and give the CPU's trajectories there."""
    if not env.native:
        return [skip("environments in Python are stepped on the CPU")]
    with env.make() as environments:
        assert isinstance(environments, NativeVec)
        gpu_side = environments.gpu_side
        supported = device_env(environments) is not None
    if gpu_side is None or not supported:
        reasons = unsupported_features(vec.source_folder(env.config), gpu_side is not None)
        return [skip(f"stepped only on the CPU: {'; '.join(reasons)}; {GUIDE_HINT}")]
    finding = compile_rules(gpu_side.rules)
    if finding.verdict == FAIL or not (has_gpu() or kernel_substitute()):
        return [finding]
    warnings = [] if finding.verdict == OK else [finding]
    return [*warnings, compare_with_host(env)]


def compile_rules(rules: GPURules) -> Finding:
    """Check that an environment's rules (its step code) compile for a GPU. Returns a finding.

    Features that GPUs lack, such as double and static variables, are errors. Address spaces are
    checked for rows only, and only by clang.
    """
    name = rules.header.stem
    try:
        program = rules_program(rules)
        assembly = _compile_to_assembly(name, program)
        extensions = _extension_errors(name, program)
    except OSError as error:
        return fail(f"its rules include {error.filename}, which doesn't exist", GUIDE_HINT)
    except CompilerError as error:
        errors = "; ".join(_error_lines(error)[:MAX_SHOWN_ERRORS])
        return fail(f"its rules don't compile for a GPU: {errors}", GUIDE_HINT)
    except UserError as error:
        return skip(f"can't check that its rules compile for a GPU: {error.message}")
    if _VARIABLES.search(assembly):
        return fail("its rules don't compile for a GPU: variables outside of functions", GUIDE_HINT)
    if extensions:
        errors = "; ".join(extensions[:MAX_SHOWN_ERRORS])
        return warn(f"a GPU's compiler may reject its rules: {errors}", GUIDE_HINT)
    return ok(
        "its rules compile without headers, double and static variables, as a GPU needs; not"
        " compared with the CPU, because this machine has no GPU"
    )


def _error_lines(error: CompilerError) -> list[str]:
    """Return those lines of a C++ compiler's output that are errors."""
    return [line for line in error.lines if " error: " in line]


def _extension_errors(name: str, program: str) -> list[str]:
    """Return errors about language extensions in a C++ program, which GPU compilers may reject."""
    try:
        _compile_to_assembly(name, program, "-pedantic-errors")
    except CompilerError as error:
        # GPU compilers accept anonymous structs.
        return [line for line in _error_lines(error) if "anonymous" not in line]
    return []


def rules_program(rules: GPURules) -> str:
    """Return the C++ source of an environment's rules as GPU compilers get it, without kernels."""
    header = rules.header.name
    program = in_namespace(EnvRules(rules.header, rules.struct, rules.masked))
    program = program.replace("namespace game {\n", f'namespace game {{\n#line 1 "{header}"\n', 1)
    headers = (path.read_text() for path in (DECLARATIONS, RULES_HEADER))
    calls = "void one_step(Game ENV_PTR* env) { game::c_step(env); }\n"
    size = WORD_BYTES * rules.words
    layout_check = f'static_assert(sizeof(Game) == {size}, "a different size than on the CPU");\n'
    return "".join((*headers, FORBIDDEN_FEATURES, program, calls, layout_check))


def _compile_to_assembly(name: str, program: str, *flags: str) -> str:
    """Compile a C++ program. Returns its assembly.

    Raises:
        CompilerError: If it doesn't compile.
        UserError: If there is no compiler.
    """
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / f"{name}.cpp"
        source.write_text(program)
        path = compile_shared(f"{name}-rules", [source], [*COMPILER_FLAGS, *flags], "c++")
    return path.read_text()


def compare_with_host(env: EnvUnderTest) -> Finding:
    """Check that an environment on the GPU gives the CPU's trajectories. Returns a finding."""
    result = compare_trajectories(env.make, COMPARED_ROLLOUTS)
    if result is None:
        text = "too few environments, or too large observations, for a GPU: stepped on the CPU"
        return warn(text, "try another --vec.total-agents")
    counts = f"{result.agents} agents for {result.steps} steps, {result.ends} episodes ended"
    if result.difference > ROUNDING_TOLERANCE:
        text = (
            f"the GPU's results differ from step {result.first_difference} on, by up to"
            f" {result.difference:.3g}; {counts}"
        )
        hint = (
            "look for undefined behaviour in C: order of evaluation, overflow, uninitialized"
            " variables"
        )
        return fail(text, hint)
    equality = ", to the bit"
    differing = result.agents - result.equal
    if differing:
        equality = (
            f" except for rounding ({result.difference:.1g}), after which {differing} agents played"
            " differently"
        )
    speed = f"{result.agents / result.seconds:,.0f} steps/s {result.description}"
    return ok(f"the GPU's results are the CPU's{equality}: {counts}; {speed}")


def unsupported_features(folder: Path, differ_in_agents: bool = False) -> list[str]:
    """Return the reasons why an environment can't run on a GPU, as texts.

    Args:
        folder: Folder with the environment's sources.
        differ_in_agents: True if its environments have different numbers of agents.
    """
    if folder_release(folder) == "5.0":
        return ["only environments with PufferLib 4.0's interface can run on a GPU"]
    files = [path for path in environment_files(folder) if path.suffix in (".c", ".h")]
    code = "\n".join(path.read_text(errors="replace") for path in files)
    defined = set(_DEFINED.findall(code))
    reasons = {
        "binding.c doesn't define MY_GPU": "MY_GPU" not in defined,
        "binding.c doesn't define MY_STATE_PLAIN, so its state may be more than its struct": (
            "MY_STATE_PLAIN" not in defined
        ),
        "its environments have different numbers of agents": differ_in_agents,
    }
    return [reason for reason, holds in reasons.items() if holds]
