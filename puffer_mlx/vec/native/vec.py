"""Native environments: PufferLib's folders of C, compiled on first use, stepped by a thread pool.

The C side is ``envs/include/vecenv.h`` (4.0's contract), ``envs/include/release_5/pufferenv.h``
(5.0's) and ``envs/src``. ctypes releases the interpreter lock during every call, so waiting never
stops other Python threads.
"""

import ctypes
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from puffer_mlx.config.compatibility import ENV_OF_5
from puffer_mlx.config.dialects import folder_version
from puffer_mlx.config.memory_needs import refuse_step
from puffer_mlx.errors import UserError
from puffer_mlx.vec.base import Collected, PreparedStep, Rows
from puffer_mlx.vec.native.c_functions import (
    FLOAT32,
    TEXT_BYTES,
    Span,
    address,
    addresses,
    numbers,
    read_means,
    shapes,
)
from puffer_mlx.vec.native.gpu_rules import GPUSide, gpu_rules
from puffer_mlx.vec.native.make import create, open_environment, read_spec
from puffer_mlx.vec.native.open_handle import OpenHandle
from puffer_mlx.vec.native.raylib import INSTALL
from puffer_mlx.vec.native.saved_state import pack, unpack
from puffer_mlx.vec.native.sources import needs, resumable_digests


class NativeVec:
    """N agents of a native environment in Q groups; implements ``VecEnv``.

    Args:
        folder: the environment's folder, as for ``compile_environment``.
        total_agents: N, a multiple of Q and of the agents per environment.
        num_buffers: Q.
        num_threads: threads that step environments, at least 1; the caller's thread never does.
        env: the environment's parameters, section [env] of the configuration. As upstream, what
            can't be converted to a float is not passed on to environments of 4.0; those of 5.0
            get texts and lists.
        seed: environment i draws from a generator seeded with ``seed + i``; upstream's is 0.
        vec: further parameters from section [vec], for environments that create themselves.

    Attributes:
        num_environments: how many share the N agents.
        num_threads: threads there are: not more than environments.
        unread: keys of ``env`` that no environment asked for, in the order given, but for the
            defaults that 5.0 gives to every environment.
        can_render: whether ``render`` opens a window: the environment draws with raylib, and it is
            installed.
        description: how they are stepped, one line.
        gpu_side: for a GPU that steps them itself; None if their rules compile for a CPU alone.

    Raises:
        UserError: compilation failed (see ``compile_environment``), keys are missing or have
            values the environment refuses.
        Misfit: the environments don't fill N agents in Q groups exactly.
    """

    finals = False  # c_step starts the next episode itself
    backend = "native"

    def __init__(
        self,
        folder: Path | str,
        *,
        total_agents: int,
        num_buffers: int = 1,
        num_threads: int = 1,
        env: Mapping[str, Any],
        seed: int = 0,
        vec: Mapping[str, Any] | None = None,
    ) -> None:
        self._library = open_environment(folder)
        name = Path(folder).resolve().name
        version = folder_version(folder)
        self.spec = read_spec(folder, self._library)
        seen = self.spec.observation_size * self.spec.observation_dtype.itemsize
        refuse_step(self.spec, total_agents, seen + self.spec.mask_size)
        self.num_agents = total_agents
        self.num_groups = num_buffers

        at, unread = create(
            self._library,
            name,
            agents=total_agents,
            groups=num_buffers,
            threads=num_threads,
            seed=seed & 0xFFFFFFFF,
            vec=vec or {},
            env=env,
            version=version,
        )
        self._handle = OpenHandle(self._library, self.spec.name, at, num_buffers + 1)
        passed = dict(env) if version == "5.0" else numbers(env)  # to the environments
        read = set(passed) - unread
        common = ENV_OF_5 if version == "5.0" else {}  # which few of them read
        self.unread = [key for key in env if key not in read and env[key] != common.get(key)]
        self._resumable = resumable_digests(folder)
        self._identity: dict[str, str | int] = {
            "environment": name,
            "sources": self._resumable[0],
            "machine": f"{sys.byteorder}-endian, {8 * ctypes.sizeof(ctypes.c_void_p)} bits",
            "vec.total_agents": total_agents,
            **{f"env.{key}": repr(passed[key]) for key in sorted(read)},
            **{f"vec.{key}": repr(value) for key, value in sorted(numbers(vec or {}).items())},
        }
        self.num_environments = int(self._library.puffer_environments(at))
        rules = gpu_rules(folder, self._library, self.spec)
        counts = total_agents, self.num_environments
        self.gpu_side = rules and GPUSide(rules, self._library, self._handle, self.spec, *counts)
        self.num_threads = int(self._library.puffer_threads(at))
        self.can_render = bool(self._library.puffer_can_render())
        self._draws = self.can_render or needs(folder).raylib
        window = "" if not self._draws else ", in a window" if self.can_render else ", no raylib"
        self.description = f"C, {self.num_threads} threads{window}"

        n = total_agents // num_buffers
        self._action_shape = (n, self.spec.action.heads)
        self._step_shapes = shapes(n, self.spec)
        self._reset_shapes = shapes(total_agents, self.spec)
        self._send = self._library.puffer_send
        self._wait = self._library.puffer_wait

    def reset(self, out: Rows) -> None:
        """Start new episodes for all N agents and write their first rows (rewards and terminals 0).

        Environments are reset in order, on the calling thread, after steps under way are done.

        Raises:
            UserError: an environment ended itself (exit, abort).
        """
        rows_at = addresses(out, self.spec, self._reset_shapes)
        if self._library.puffer_reset(self._handle.address(), *rows_at):
            raise self._handle.ended()

    def send(self, group: int, actions: np.ndarray, out: Rows) -> None:
        """Begin one step of a group and return at once.

        Args:
            group: 0 ≤ group < Q; it must not be stepping already.
            actions: (n, heads) float32, C-contiguous. Not modified, copied before the return.
            out: rows of the group's n agents; kept alive until the group's next step.

        Raises:
            IndexError: there is no such group.
            ValueError: an array has another shape or dtype, or isn't C-contiguous.
            RuntimeError: the group is stepping already, or the environments are closed.
        """
        handle = self._open(group)
        actions_at = address(actions, self._action_shape, FLOAT32, "actions", written=False)
        rows_at = addresses(out, self.spec, self._step_shapes)
        if self._send(handle, group, 1, actions_at, *rows_at):
            raise RuntimeError(f"group {group} is stepping already; wait({group}) first")
        self._handle.held[group] = out

    def prepare(self, groups: range, actions: np.ndarray, out: Rows) -> PreparedStep:
        """A step of neighbouring groups as one call of C: see ``PreparesSteps``.

        Raises:
            ValueError: an array has another shape or dtype, or isn't C-contiguous.
        """
        first, count = groups.start, len(groups)
        n = count * self.num_agents // self.num_groups
        shape = n, self.spec.action.heads
        actions_at = address(actions, shape, FLOAT32, "actions", written=False)
        rows_at = addresses(out, self.spec, shapes(n, self.spec))

        def send() -> None:
            handle = self._handle.address()
            if self._send(handle, first, count, actions_at, *rows_at):
                raise RuntimeError(f"one of groups {[*groups]} is stepping already; wait first")
            self._handle.held[first] = actions, out

        def wait() -> None:
            self._handle.until_done(self._wait, self._handle.address(), first, count)

        return PreparedStep(send, wait)

    def wait(self, group: int) -> None:
        """Block until the group's step is done and its rows are written.

        Signals are handled meanwhile. What their handlers raise is raised here, after half a second
        at most; the group may still be stepping then.

        Raises:
            UserError: an environment ended itself (exit, abort). Nothing steps any more.
        """
        self._handle.until_done(self._wait, self._open(group), group, 1)

    def collect(
        self, steps: int, act: tuple[int, int], actions: np.ndarray, out: Rows, spans: int = 0
    ) -> Collected:
        """Act and step all agents ``steps`` times, without Python, and return when that is done.

        Every thread takes some agents through all steps. The interpreter lock is free meanwhile.

        Args:
            steps: T.
            act: addresses of a C function, PufferAct of ``envs/src/vec.h``, and of its context. It
                reads what arrived, and writes ``actions``.
            actions: (T, N, heads) float32, C-contiguous.
            out: (T + 1, N, ...) rows; those of time 0 are there, the others are written.
            spans: note when threads worked, at most so many times.

        Signals are handled meanwhile, as in ``wait``. What their handlers raise ends the rollout
        after the steps under way; ``act`` isn't called any more when that is raised here.

        Raises:
            ValueError: an array has another shape or dtype, or isn't C-contiguous.
            RuntimeError: a group is stepping already, or the environments are closed.
            UserError: an environment ended itself (exit, abort). Nothing steps any more.
        """
        N = self.num_agents
        actions_at = address(actions, (steps, N, self.spec.action.heads), FLOAT32, "actions")
        all_shapes = tuple((steps + 1, *shape) for shape in self._reset_shapes)
        rows_at = addresses(out, self.spec, all_shapes)
        seconds, notes = (ctypes.c_double * 2)(), (Span * spans)()
        began, clock = time.perf_counter(), time.clock_gettime(time.CLOCK_MONOTONIC)
        handle = self._handle.address()
        if self._library.puffer_collect(handle, steps, *act, actions_at, *rows_at, notes, spans):
            raise RuntimeError("a group is stepping already; wait for all of them first")
        self._handle.held[-1] = actions, out, notes
        count = self._handle.until_done(self._library.puffer_collected, handle, seconds)
        self._handle.held[-1] = None
        ahead = began - clock  # of the clock that spans are in
        times = [(n.thread, n.first, n.begin + ahead, n.end + ahead) for n in notes[:count]]
        return Collected(seconds[0], seconds[1], times)

    def log(self) -> dict[str, float]:
        """Means over the episodes that ended since the last call, with ``n`` their number.

        Empty if no episode ended. May be called from any thread at any time: each group is read
        between two of its steps.

        Raises:
            UserError: the environment's my_log sets more than 256 keys.
        """
        return self._means(self._library.puffer_log)

    def episodes(self) -> list[dict[str, float]]:
        """The same, for each environment on its own.

        Returns:
            One record per environment where an episode ended since the last call of this or of
            ``log``, in the environments' order: what ``my_log`` sets, as means over its own
            episodes, ``n`` their number, and ``env`` the environment's number (its agents are
            counted through in this order). An environment of one agent that is asked after
            every step ends at most one episode, so its records are those of single episodes.

        Raises:
            UserError: the environment's my_log sets more than 256 keys.
        """
        records = []
        env = ctypes.c_int(0)
        while record := self._means(self._library.puffer_next_log, ctypes.byref(env)):
            records.append({**record, "env": float(env.value)})
            env.value += 1
        return records

    def state(self) -> np.ndarray | None:
        """Everything that stepping depends on; None if the sources have no MY_STATE macro.

        Waits for steps under way. Equal states are equal bytes, whatever the numbers of threads and
        groups. Episodes that ``log`` hasn't reported yet are in it.

        Returns:
            (bytes,) uint8, for ``restore``.
        """
        handle = self._handle.address()
        size = self._library.puffer_save(handle, None, -1)
        if size < 0:
            return None
        while True:  # a step of another thread may come between and change the size
            body = np.empty(size, np.uint8)
            size = self._library.puffer_save(handle, body.ctypes.data, len(body))
            if size <= len(body):
                return pack(self._identity, body[:size])

    def restore(self, state: np.ndarray) -> None:
        """Go on from what ``state`` returned, bit for bit, without a reset.

        The numbers of threads and groups may be others than where it was saved. No row is written:
        the caller has what arrived before the state was saved. Waits for steps under way.

        Raises:
            UserError: the state is damaged, or was saved by another environment, other sources of
                it, other parameters, agents or kind of machine. Nothing was changed then, except
                if a my_load_state refused: reset the environments after that.
        """
        handle = self._handle.address()
        body = unpack(state, self._identity, self._resumable)
        text = ctypes.create_string_buffer(TEXT_BYTES)
        if self._library.puffer_load(handle, body.ctypes.data, len(body), text, len(text)):
            raise UserError(
                f"{self.spec.name}: {text.value.decode(errors='replace')}",
                "go on without the state: the environments start anew",
            )

    def render(self, env: int = 0) -> bool:
        """Let an environment draw itself in its window; the first time opens it.

        Called once after every step, from the same thread each time, on macOS the main one. How
        fast that is the environment decides: most wait for the next frame. Waits for steps under
        way. The window is closed with the environments.

        Args:
            env: 0 ≤ env < num_environments.

        Returns:
            False if the environment wants to end: the window was closed, or Escape pressed. Don't
            draw again then.

        Raises:
            IndexError: there is no such environment.
            UserError: it can't be drawn (``can_render``), or not on this thread.
        """
        handle = self._handle.address()
        if not 0 <= env < self.num_environments:
            raise IndexError(f"environment {env}, expected 0 to {self.num_environments - 1}")
        if not self.can_render:
            why = "raylib isn't installed" if self._draws else "its c_render doesn't use raylib"
            raise UserError(
                f"{self.spec.name} can't open a window: {why}",
                INSTALL if self._draws else "make pictures instead: draw.py beside its binding.c",
            )
        if sys.platform == "darwin" and threading.current_thread() is not threading.main_thread():
            raise UserError("macOS draws windows on the main thread only", "call render() there")
        return not self._library.puffer_render(handle, env)

    def set_bot_policy(self, policy: int) -> None:
        """Choose the scripted opponent that every environment plays against: PufferLib 5.0's bots.

        Waits for steps under way. Upstream resets the environments after that.

        Args:
            policy: the environment's own number for it.

        Raises:
            UserError: the environment has none (no PUF_HAS_BOT_POLICY), or ended itself.
        """
        if self._library.puffer_set_bot_policy(self._handle.address(), policy):
            raise UserError(
                f"{self.spec.name} has no scripted opponents",
                "an environment that has some defines PUF_HAS_BOT_POLICY and puf_set_bot_policy",
            )

    def seats(self) -> tuple[np.ndarray, np.ndarray | None]:
        """See ``KnowsSeats``: PufferLib 5.0's environments say whose seats theirs are."""
        environments, policies = np.zeros((2, self.num_agents), np.int32)
        none = self._library.puffer_seats(
            self._handle.address(), environments.ctypes.data, policies.ctypes.data
        )
        return environments, None if none else policies

    def set_tags(self, tags: np.ndarray) -> None:
        """See ``KnowsSeats``; 4.0's environments have a ``tag`` if they say MY_USES_TAGS."""
        tags = np.ascontiguousarray(tags, np.int32)
        if tags.shape != (self.num_environments,):
            raise ValueError(f"tags: expected ({self.num_environments},), found {tags.shape}")
        self._library.puffer_set_tags(self._handle.address(), tags.ctypes.data)

    def busy_seconds(self) -> float:
        """Thread-seconds spent inside environment steps since creation."""
        return float(self._library.puffer_busy_seconds(self._handle.address()))

    def close(self) -> None:
        """Finish steps under way and free everything. Calling it twice is harmless.

        Where a signal handler raised something while a step was waited for, here or before, it has
        another half a second: then it is left to itself, in memory that stays as it is.
        """
        self._handle.close()

    def __enter__(self) -> "NativeVec":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_handle"):  # else it failed before
            self.close()

    def _open(self, group: int) -> int:
        """The address, where there is such a group."""
        address = self._handle.address()
        if not 0 <= group < self.num_groups:
            raise IndexError(f"group {group}, expected 0 to {self.num_groups - 1}")
        return address

    def _means(self, function: Any, *arguments: Any) -> dict[str, float]:
        return read_means(self.spec.name, function, self._handle.address(), *arguments)
