"""Items that check seeds and saved states."""

import re

import numpy as np

from puffer_mlx import vec
from puffer_mlx.check.env.findings import Findings, fail, ok, skip, warn
from puffer_mlx.check.env.random_play import Table
from puffer_mlx.check.env.subject import Subject
from puffer_mlx.config.dialects import main_source
from puffer_mlx.vec.base import Rows, VecEnv
from puffer_mlx.vec.native.sources import environment_files

STEPS = 300
THREADS = 4
OTHERS = "the agents are shared by other numbers of environments"
PARTS = ("observation", "reward", "terminal", "mask", "end")
# State that the environments of a process share. rand() is separate for each (src/host.h).
SHARED = {
    r"\brandom\s*\(": "random()",
    r"\b[elm]?rand48\s*\(|\bdrand48\s*\(": "drand48()",
    r"\barc4random\w*\s*\(": "arc4random()",
    r"\b(time|clock|clock_gettime)\s*\(": "the time of day",
    r"^\s*static\s+(?!const|inline)[\w\s*]+\b\w+(\[[^\]]*\])*\s*(=[^;]*)?;": "a static variable",
}


def seeds(subject: Subject) -> Findings:
    """Check that a seed determines the run, with any number of threads and groups."""
    place = difference(subject)
    if place is None:
        yield warn(f"nothing can be compared: {OTHERS}, from one run to the next", cause(subject))
        return
    if place:
        yield fail(f"one seed gives two different runs: {place}", cause(subject))
        return
    agree, apart = ["two runs"], []
    if subject.native:
        agree = []
        for words, both, options in (
            (f"{THREADS} threads", f"one thread and {THREADS}", {"threads": THREADS}),
            ("two groups", "one group and two", {"groups": 2}),
        ):
            if place := difference(subject, options):
                yield fail(f"with {words} a seed gives another run: {place}", cause(subject))
                return
            (apart if place is None else agree).append(both)
    yield ok(f"one seed, one run: {', '.join(agree) or 'two runs'} agree to the bit")
    if apart:
        yield skip(f"{', '.join(apart)}: {OTHERS}, which can't be compared")
    if difference(subject, {"seed": subject.config.vec.seed + 10_007}) == "":
        yield warn(
            "another seed gives the same run: nothing is left to chance",
            "good if that is the task; else draw from rand_r(&env->rng)"
            if subject.native
            else "good if that is the task; else draw from self.np_random, which reset(seed) makes",
        )


def alike(one: VecEnv, two: VecEnv) -> bool:
    """Return True if two sets have equal numbers of agents and environments.

    An environment with MY_VEC_INIT may choose at random how many environments share the agents.
    """
    mine, its = ((each.num_agents, each.num_environments) for each in (one, two))
    return mine == its


def difference(subject: Subject, other: dict[str, int] | None = None) -> str | None:
    """Find the first difference between two sets of environments, stepped side by side.

    Returns:
        A description of the difference, empty without one; None for sets that can't be compared.
    """
    rng = np.random.default_rng(2)
    with subject.make() as one, subject.make(**(other or {})) as two:
        if not alike(one, two):
            return None
        mine, its = Table(one), Table(two)
        if place := first_difference(mine.rows, its.rows):
            return f"after the reset, {place}"
        for step in subject.steps(STEPS):
            actions = mine.legal(rng)
            mine.step(actions)
            its.step(actions)
            if place := first_difference(mine.rows, its.rows):
                return f"after {step} steps, {place}"
    return ""


def first_difference(mine: Rows, its: Rows) -> str:
    """Return a description of the first difference between rows, or an empty string."""
    for name, a, b in zip(PARTS, mine, its, strict=True):
        if a is None or b is None or np.array_equal(a, b, equal_nan=a.dtype != np.uint8):
            continue
        agent, *element = (int(i) for i in np.argwhere(a != b)[0])
        where = f"number {element[0]} of its {name}" if element else f"its {name}"
        mine_at, its_at = a[agent, *element], b[agent, *element]
        return f"agent {agent}: {where} is {mine_at:.6g} and {its_at:.6g}"
    return ""


def cause(subject: Subject) -> str:
    """Return a hint about randomness that doesn't come from the seed."""
    if not subject.native:
        return (
            "draw from self.np_random alone, which super().reset(seed=seed) makes, not from random"
            " or np.random; keep nothing in the class or the module"
        )
    hint = "draw from rand_r(&env->rng) alone, and keep everything that changes in the struct"
    suspects = shared_things(subject)
    return hint + (f"; look at {', '.join(suspects[:3])}" if suspects else "")


def shared_things(subject: Subject) -> list[str]:
    """Return lines of the environment's sources that seem to share state."""
    folder, lines = vec.source_folder(subject.config), []
    for path in environment_files(folder):
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            code = line.partition("//")[0]
            lines += [
                f"{path.name}:{number} ({what})"
                for pattern, what in SHARED.items()
                if re.search(pattern, code)
            ]
    return lines


def state(subject: Subject) -> Findings:
    """Check that other environments continue from a saved state with the same bits."""
    rng = np.random.default_rng(3)
    with subject.make() as one, subject.make() as two:
        mine = Table(one)
        for _ in subject.steps(STEPS // 2):
            mine.step(mine.legal(rng))
        saved = one.state()
        if saved is None and not subject.native:
            yield ok("none: a resumed run begins new episodes, as all Python environments do")
            return
        if saved is None:
            main = main_source(vec.source_folder(subject.config))
            where = main.name if main else "binding.c"
            yield warn(
                "none: a resumed run begins new episodes",
                f"define MY_STATE_PLAIN in {where} if the struct has no pointers of its own, else"
                " MY_STATE (vecenv.h says how)",
            )
            return
        if not alike(one, two):
            yield skip(f"{OTHERS}, from one run to the next: a state fits only those it is of")
            return
        its = Table(two, reset=False)
        for to, what in zip(its.rows, mine.rows, strict=True):
            if to is not None and what is not None:
                np.copyto(to, what)
        steps = [mine.legal(rng)]
        going = []  # rows of the original environments
        for _ in subject.steps(STEPS // 2):
            going.append([None if a is None else a.copy() for a in mine.step(steps[-1])])
            steps.append(mine.legal(rng))
        two.restore(saved)
        for step, (actions, expected) in enumerate(zip(steps, going, strict=False), 1):
            if place := first_difference(Rows(*expected), its.step(actions)):
                yield fail(
                    f"{len(saved):,} bytes, but {step} steps after they are restored {place}",
                    "MY_STATE_PLAIN is for structs without pointers of their own; with memory of"
                    " your own define MY_STATE, and save all of it"
                    if subject.native
                    else "state() and restore() must carry everything that step reads",
                )
                return
    yield ok(f"{len(saved):,} bytes; restored, {len(going)} steps go on with the same bits")
