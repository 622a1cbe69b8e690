"""Check seeds and saved states."""

import copy
import re

import numpy as np

from puffer_mlx import vec
from puffer_mlx.check.env.environment import EnvUnderTest, RandomRollout
from puffer_mlx.check.items import Findings, fail, ok, skip, warn
from puffer_mlx.config.releases import main_source
from puffer_mlx.vec.base import Rows, VecEnv
from puffer_mlx.vec.native.sources import environment_files

STEPS = 300
THREADS = 4
OTHERS = "the agents are shared by other numbers of environments"
# State that the environments of a process share. rand() is separate for each (src/host.h).
SHARED = {
    r"\brandom\s*\(": "random()",
    r"\b[elm]?rand48\s*\(|\bdrand48\s*\(": "drand48()",
    r"\barc4random\w*\s*\(": "arc4random()",
    r"\b(time|clock|clock_gettime)\s*\(": "the time of day",
    r"^\s*static\s+(?!const|inline)[\w\s*]+\b\w+(\[[^\]]*\])*\s*(=[^;]*)?;": "a static variable",
}


def check_seeds(env: EnvUnderTest) -> Findings:
    """Check that a seed determines the run, with any number of threads and groups."""
    place = find_difference(env)
    if place is None:
        return [warn(f"nothing can be compared: {OTHERS}, from one run to the next", cause(env))]
    if place:
        return [fail(f"one seed gives two different runs: {place}", cause(env))]
    equal, incomparable = [], []
    variants = (
        (f"{THREADS} threads", f"one thread and {THREADS}", {"threads": THREADS}),
        ("two groups", "one group and two", {"groups": 2}),
    )
    for words, both, options in variants if env.native else ():
        if place := find_difference(env, **options):
            return [fail(f"with {words} a seed gives another run: {place}", cause(env))]
        (incomparable if place is None else equal).append(both)
    findings = [ok(f"one seed, one run: {', '.join(equal) or 'two runs'} agree to the bit")]
    if incomparable:
        text = f"{', '.join(incomparable)}: {OTHERS}, which can't be compared"
        findings.append(skip(text))
    if find_difference(env, seed=env.config.vec.seed + 10_007) == "":
        source = "rand_r(&env->rng)" if env.native else "self.np_random, which reset(seed) makes"
        hint = f"good if that is the task; else draw from {source}"
        findings.append(warn("another seed gives the same run: nothing is left to chance", hint))
    return findings


def same_sizes(one: VecEnv, two: VecEnv) -> bool:
    """Return True if two sets have equal numbers of agents and environments.

    An environment with MY_VEC_INIT may choose at random how many environments share the agents.
    """
    mine = one.num_agents, one.num_environments
    return mine == (two.num_agents, two.num_environments)


def find_difference(env: EnvUnderTest, **options: int) -> str | None:
    """Find the first difference between two sets of environments, stepped side by side.

    Returns:
        A description of the difference, empty without one; None for sets that can't be compared.
    """
    with env.make() as one, env.make(**options) as two:
        if not same_sizes(one, two):
            return None
        mine, its = RandomRollout(one, seed=2), RandomRollout(two)
        if place := first_difference(mine.rows, its.rows):
            return f"after the reset, {place}"
        for step in env.steps(STEPS):
            actions = mine.actions()
            if place := first_difference(mine.step(actions), its.step(actions)):
                return f"after {step} steps, {place}"
    return ""


def first_difference(mine: Rows, its: Rows) -> str:
    """Describe the first difference between two sets of rows, empty without one."""
    for name, a, b in zip(
        ("observation", "reward", "terminal", "mask", "end"), mine, its, strict=True
    ):
        if a is None or b is None or np.array_equal(a, b, equal_nan=a.dtype != np.uint8):
            continue
        agent, *element = (int(i) for i in np.argwhere(a != b)[0])
        where = f"its {name}[{element[0]}]" if element else f"its {name}"
        values = f"{a[agent, *element]:.6g} and {b[agent, *element]:.6g}"
        return f"agent {agent}: {where} is {values}"
    return ""


def cause(env: EnvUnderTest) -> str:
    """Return a hint about randomness that doesn't come from the seed."""
    if not env.native:
        return (
            "draw from self.np_random alone, which super().reset(seed=seed) makes, not from random"
            " or np.random; keep nothing in the class or the module"
        )
    hint = "draw from rand_r(&env->rng) alone, and keep everything that changes in the struct"
    suspects = []
    for path in environment_files(vec.source_folder(env.config)):
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            code = line.partition("//")[0]
            found = [what for pattern, what in SHARED.items() if re.search(pattern, code)]
            suspects += [f"{path.name}:{number} ({what})" for what in found]
    return hint + (f"; look at {', '.join(suspects[:3])}" if suspects else "")


def check_state(env: EnvUnderTest) -> Findings:
    """Check that other environments continue from a saved state with the same bits."""
    with env.make() as one, env.make() as two:
        mine = RandomRollout(one, seed=3)
        for _ in env.steps(STEPS // 2):
            mine.step()
        saved = one.state()
        if saved is None and not env.native:
            return [ok("none: a resumed run begins new episodes, as all Python environments do")]
        if saved is None:
            main = main_source(vec.source_folder(env.config))
            hint = (
                f"define MY_STATE_PLAIN in {main.name if main else 'binding.c'} if the struct has"
                " no pointers of its own, else MY_STATE (vecenv.h says how)"
            )
            return [warn("none: a resumed run begins new episodes", hint)]
        if not same_sizes(one, two):
            text = f"{OTHERS}, from one run to the next: a state fits only those it is of"
            return [skip(text)]
        its = RandomRollout(two, reset=False)
        for to, values in zip(its.rows, mine.rows, strict=True):
            if to is not None and values is not None:
                np.copyto(to, values)
        expected = []  # actions and rows of the original environments
        for _ in env.steps(STEPS // 2):
            actions = mine.actions()
            mine.step(actions)
            expected.append((actions, copy.deepcopy(mine.rows)))
        two.restore(saved)
        for step, (actions, rows) in enumerate(expected, 1):
            if place := first_difference(rows, its.step(actions)):
                text = f"{len(saved):,} bytes, but {step} steps after they are restored {place}"
                hint = (
                    "MY_STATE_PLAIN is for structs without pointers of their own; with memory of"
                    " your own define MY_STATE, and save all of it"
                    if env.native
                    else "state() and restore() must carry everything that step reads"
                )
                return [fail(text, hint)]
    steps = len(expected)
    return [ok(f"{len(saved):,} bytes; restored, {steps} steps go on with the same bits")]
