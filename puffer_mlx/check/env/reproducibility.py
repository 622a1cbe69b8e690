"""Check that seeds and saved states reproduce a run of an environment."""

import copy
import re

import numpy as np

from puffer_mlx import vec
from puffer_mlx.check.env.environment import EnvUnderTest, RandomRollout
from puffer_mlx.check.items import Findings, fail, ok, skip, warn
from puffer_mlx.config.releases import main_source
from puffer_mlx.vec.base import Rows, VecEnv
from puffer_mlx.vec.native.sources import environment_files

COMPARED_STEPS = 300
COMPARED_THREADS = 4
SIZES_DIFFER = "the number of environments differs"
# Pattern in C code -> name of a source of randomness or of state that all environments of a process
# share. rand() isn't one: each environment has its own generator (src/host.h).
SHARED_STATE = {
    r"\brandom\s*\(": "random()",
    r"\b[elm]?rand48\s*\(|\bdrand48\s*\(": "drand48()",
    r"\barc4random\w*\s*\(": "arc4random()",
    r"\b(time|clock|clock_gettime)\s*\(": "the time of day",
    r"^\s*static\s+(?!const|inline)[\w\s*]+\b\w+(\[[^\]]*\])*\s*(=[^;]*)?;": "a static variable",
}


def check_seeds(env: EnvUnderTest) -> Findings:
    """Check that a seed determines an environment's run, for any number of threads and groups."""
    difference = first_run_difference(env)
    if difference is None:
        text = f"runs can't be compared: {SIZES_DIFFER} from one run to the next"
        return [warn(text, randomness_hint(env))]
    if difference:
        return [fail(f"one seed gives two different runs: {difference}", randomness_hint(env))]
    equal: list[str] = []
    incomparable: list[str] = []
    variants = (
        (
            f"{COMPARED_THREADS} threads",
            f"one thread and {COMPARED_THREADS}",
            {"threads": COMPARED_THREADS},
        ),
        ("two groups", "one group and two", {"groups": 2}),
    )
    for variant, compared_runs, options in variants if env.native else ():
        difference = first_run_difference(env, **options)
        if difference:
            text = f"with {variant} a seed gives a different run: {difference}"
            return [fail(text, randomness_hint(env))]
        if difference is None:
            incomparable.append(compared_runs)
        else:
            equal.append(compared_runs)
    findings = [ok(f"runs with one seed: {', '.join(equal) or 'two runs'} agree to the bit")]
    if incomparable:
        text = f"{', '.join(incomparable)} can't be compared: {SIZES_DIFFER}"
        findings.append(skip(text))
    if first_run_difference(env, seed=env.config.vec.seed + 10_007) == "":
        source = "rand_r(&env->rng)" if env.native else "self.np_random, which reset(seed) creates"
        hint = f"fine if the task is deterministic; otherwise take random numbers from {source}"
        findings.append(warn("another seed gives the same run: nothing is random", hint))
    return findings


def equal_sizes(first: VecEnv, second: VecEnv) -> bool:
    """Return True if two vectorized environments have equal numbers of agents and environments.

    An environment with MY_VEC_INIT may choose at random how many environments share the agents.
    """
    first_sizes = first.num_agents, first.num_environments
    return first_sizes == (second.num_agents, second.num_environments)


def first_run_difference(env: EnvUnderTest, **options: int) -> str | None:
    """Run an environment twice with equal actions and find the first difference.

    Args:
        env: Environment to check.
        options: Options of the second run (``EnvUnderTest.small_config``).

    Returns:
        The difference as text, "" for equal runs; or None if the numbers of environments differ,
        so that the runs can't be compared.
    """
    with env.make() as first, env.make(**options) as second:
        if not equal_sizes(first, second):
            return None
        first_rollout = RandomRollout(first, seed=2)
        second_rollout = RandomRollout(second)
        if difference := first_row_difference(first_rollout.rows, second_rollout.rows):
            return f"after the reset, {difference}"
        for step in env.steps(COMPARED_STEPS):
            actions = first_rollout.actions()
            first_rows = first_rollout.step(actions)
            second_rows = second_rollout.step(actions)
            if difference := first_row_difference(first_rows, second_rows):
                return f"after {step} steps, {difference}"
    return ""


def first_row_difference(first_rows: Rows, second_rows: Rows) -> str:
    """Return as text the first difference between two environments' rows; "" if they are equal."""
    names = ("observation", "reward", "terminal", "mask", "end")  # in the order of ``Rows``
    for name, a, b in zip(names, first_rows, second_rows, strict=True):
        if a is None or b is None or np.array_equal(a, b, equal_nan=a.dtype != np.uint8):
            continue
        agent, *element = (int(i) for i in np.argwhere(a != b)[0])
        element_name = f"its {name}[{element[0]}]" if element else f"its {name}"
        element_values = f"{a[agent, *element]:.6g} and {b[agent, *element]:.6g}"
        return f"agent {agent}: {element_name} is {element_values}"
    return ""


def randomness_hint(env: EnvUnderTest) -> str:
    """Return a hint on where an environment may use randomness that its seed doesn't control.

    For C environments the hint names suspicious lines of their sources.
    """
    if not env.native:
        return (
            "take random numbers only from self.np_random, which super().reset(seed=seed) creates,"
            " not from random or np.random; store no state in the class or the module"
        )
    hint = "take random numbers only from rand_r(&env->rng), and store all state in the struct"
    suspects = []
    for path in environment_files(vec.source_folder(env.config)):
        for line_number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            code = line.partition("//")[0]
            sources = [name for pattern, name in SHARED_STATE.items() if re.search(pattern, code)]
            suspects += [f"{path.name}:{line_number} ({source})" for source in sources]
    return hint + (f"; look at {', '.join(suspects[:3])}" if suspects else "")


def check_state(env: EnvUnderTest) -> Findings:
    """Check that an environment's saved state, restored elsewhere, continues the run to the bit."""
    with env.make() as first, env.make() as second:
        original = RandomRollout(first, seed=3)
        for _ in env.steps(COMPARED_STEPS // 2):
            original.step()
        state = first.state()
        if state is None and not env.native:
            return [ok("none: a resumed run starts new episodes, as with most Python environments")]
        if state is None:
            main = main_source(vec.source_folder(env.config))
            hint = (
                f"define MY_STATE_PLAIN in {main.name if main else 'binding.c'} if the struct has"
                " no pointers to memory that it allocates, else MY_STATE (see vecenv.h)"
            )
            return [warn("none: a resumed run starts new episodes", hint)]
        if not equal_sizes(first, second):
            text = f"{SIZES_DIFFER} from one run to the next, so a saved state may not fit"
            return [skip(text)]
        restored = RandomRollout(second, reset=False)
        for target, row_values in zip(restored.rows, original.rows, strict=True):
            if target is not None and row_values is not None:
                np.copyto(target, row_values)
        expected = []  # actions and rows of the original environments
        for _ in env.steps(COMPARED_STEPS // 2):
            actions = original.actions()
            original.step(actions)
            expected.append((actions, copy.deepcopy(original.rows)))
        second.restore(state)
        for step, (actions, rows) in enumerate(expected, 1):
            if difference := first_row_difference(rows, restored.step(actions)):
                text = f"{len(state):,} bytes, but {step} steps after restoring them {difference}"
                hint = (
                    "MY_STATE_PLAIN is for structs without pointers. If yours allocates memory,"
                    " define MY_STATE and save all of it"
                    if env.native
                    else "state() and restore() must include everything that step reads"
                )
                return [fail(text, hint)]
    step_count = len(expected)
    return [ok(f"{len(state):,} bytes; after restoring, {step_count} steps are equal to the bit")]
