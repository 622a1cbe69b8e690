"""Loops around environments of any kind: all agents in one set of rows."""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from puffer_mlx.vec.base import Rows
from puffer_mlx.vec.gym.make import GymFactory
from puffer_mlx.vec.puffer import PufferFactory
from puffer_mlx.vec.python_vec import PythonVec
from puffer_mlx.vec.rollout_loop import ActFunction
from puffer_mlx.vec.rows import allocate_rows, random_actions
from puffer_mlx.vec.zoo import ZooFactory

_FUNCTIONS: list[Any] = []  # which C may call: they stay


def copied(rows: Rows) -> Rows:
    return Rows._make(None if array is None else array.copy() for array in rows)


def group_of(vec: Any, group: int) -> slice:
    """Return which agents are in a group, as a slice."""
    n = vec.num_agents // vec.num_groups
    return slice(group * n, (group + 1) * n)


def filled(vec: Any, number: int) -> Rows:
    """Allocate the rows of all agents, filled with a number that environments overwrite."""
    rows = allocate_rows(vec, vec.num_agents)
    for array in rows:
        if array is not None:
            array.fill(number)
    return rows


def started(vec: Any) -> Rows:
    """Reset environments; return the rows of all agents."""
    rows = filled(vec, 9)
    vec.reset(rows)
    return rows


def send(vec: Any, rows: Rows, actions: np.ndarray, *groups: int) -> None:
    """Send actions to some groups of environments, or to all, which begins a step."""
    for group in groups or range(vec.num_groups):
        agents = group_of(vec, group)
        vec.send(group, actions[agents], rows.select(agents))


def step(vec: Any, rows: Rows, actions: Any = 0) -> Rows:
    """Step all groups of environments; return a copy of the rows of all agents."""
    actions = np.asarray(actions, np.float32)
    actions = actions[:, None] if actions.ndim == 1 else actions
    shape = vec.num_agents, vec.spec.action.heads
    send(vec, rows, np.ascontiguousarray(np.broadcast_to(actions, shape)))
    for group in range(vec.num_groups):
        vec.wait(group)
    return copied(rows)


def played(vec: Any, steps: int, seed: int = 0) -> list[Rows]:
    """Play random actions; return copies of the rows after the reset and each step."""
    rows, rng = started(vec), np.random.default_rng(seed)
    random = (random_actions(vec, vec.num_agents, rng) for _ in range(steps))
    return [copied(rows), *(step(vec, rows, actions) for actions in random)]


def times_of(vec: Any, steps: int) -> Rows:
    """Allocate the rows of all agents for ``steps + 1`` times, and reset into time 0."""
    rows = Rows._make(
        None if array is None else np.zeros((steps + 1, *array.shape), array.dtype)
        for array in allocate_rows(vec, vec.num_agents)
    )
    vec.reset(rows.select(0))
    return rows


def address_of(act: Callable[[int, int, int], object]) -> tuple[int, int]:
    """Wrap a Python function as the address of a C actor, as ``VecEnv.collect`` takes it."""
    function = ActFunction(lambda _, *numbers: act(*numbers))
    _FUNCTIONS.append(function)
    return ctypes.cast(function, ctypes.c_void_p).value or 0, 0


def whole_rollout(vec: Any, twin: Any, steps: int, seed: int) -> tuple[list, Any]:
    """Collect a rollout of random actions in one call, and compare it with a stepped ``twin``.

    Returns:
        What ``act`` was called with, in turn, and what ``collect`` returned.
    """
    rng, calls = np.random.default_rng(seed), []
    history = np.stack([random_actions(vec, vec.num_agents, rng) for _ in range(steps)])
    actions, rows = np.full_like(history, np.nan), times_of(vec, steps)

    def act(t: int, first: int, count: int) -> None:
        calls.append((t, first, count))
        actions[t, first : first + count] = history[t, first : first + count]

    collected = vec.collect(steps, address_of(act), actions, rows, spans=1000)
    np.testing.assert_array_equal(actions, history)  # everybody acted
    if twin is not None:
        other = started(twin)
        same(rows.select(0), other)
        for t, chosen in enumerate(history, 1):
            same(rows.select(t), step(twin, other, chosen))
    assert collected.acting > 0 and collected.stepping > 0 and collected.spans
    return calls, collected


def same(ours: Rows, theirs: Rows) -> None:
    """Assert that two sets of environment rows are equal to the bit."""
    for name, one, other in zip(Rows._fields, ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other, name)


def alike(ours: list[Rows], theirs: list[Rows]) -> bool:
    """Return True if two lists of environment rows are equal to the bit."""
    return all(
        np.array_equal(one, other)
        for a, b in zip(ours, theirs, strict=True)
        for one, other in zip(a, b, strict=True)
        if one is not None and other is not None
    )


# ---- Environments in Python ----------------------------------------------------------------------

FACTORY = "env", "render", "rescale_actions", "image_channels"  # arguments of every factory


def _python_vec(
    kind: Any, constructor: Any, name: str, more: tuple[str, ...], settings: Any
) -> Any:
    env, *rest = (settings.pop(key, None) for key in FACTORY)
    given = zip(("render", "rescale", "channels"), rest, strict=True)
    arguments = {key: value for key, value in given if value is not None}
    arguments |= {key: settings.pop(key) for key in more if settings.get(key) is not None}
    return PythonVec(kind(name, constructor, dict(env or {}), **arguments), **settings)


def gym_vec(constructor: Any, *, name: str, **settings: Any) -> PythonVec:
    more = {"total": settings["total_agents"], **settings}
    return _python_vec(GymFactory, constructor, name, ("final_observations", "wrap", "total"), more)


def zoo_vec(constructor: Any, *, name: str, **settings: Any) -> PythonVec:
    return _python_vec(ZooFactory, constructor, name, (), settings)


def puffer_vec(constructor: Any, *, name: str, **settings: Any) -> PythonVec:
    return _python_vec(PufferFactory, constructor, name, (), settings)
