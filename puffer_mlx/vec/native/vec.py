"""Vectorised C environments of PufferLib, compiled on first use and stepped by a thread pool.

The C side is ``envs/include/vecenv.h`` (interface of 4.0), ``envs/include/release_5/pufferenv.h``
(5.0) and ``envs/src``. ctypes releases the interpreter lock during every call, so other Python
threads run while one waits.
"""

import ctypes
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from puffer_mlx.config.compatibility import ENV_OF_5
from puffer_mlx.config.memory_needs import refuse_large_step
from puffer_mlx.config.releases import folder_release
from puffer_mlx.errors import UserError
from puffer_mlx.vec.base import Collected, PreparedStep, Rows
from puffer_mlx.vec.native.c_functions import (
    FLOAT32,
    TEXT_BYTES,
    OpenHandle,
    Span,
    address,
    float_values,
    read_means,
    row_addresses,
    row_shapes,
)
from puffer_mlx.vec.native.gpu_rules import GPUSide, gpu_rules
from puffer_mlx.vec.native.make import create, open_environment, read_spec
from puffer_mlx.vec.native.raylib import INSTALL_HINT
from puffer_mlx.vec.native.saved_state import pack_state, unpack_state
from puffer_mlx.vec.native.sources import find_requirements, resumable_digests


class NativeVec:
    """Environments in C that step N agents in Q groups; implements ``VecEnv``.

    Args:
        folder: Folder of the environment, as for ``compile_environment``.
        total_agents: Number of agents N, a multiple of Q and of the agents per environment.
        num_buffers: Number of groups Q.
        num_threads: Threads that step environments, at least 1, besides the caller's thread.
        env: Parameters of the environment, section [env] of the configuration. As in PufferLib,
            environments of 4.0 get only values that convert to a float; those of 5.0 also get texts
            and lists.
        seed: Environment i uses a random generator seeded with ``seed + i``. PufferLib uses 0.
        vec: Further parameters from section [vec], for environments that create themselves.
        file: File with the parameters, for messages.

    Attributes:
        num_environments: Number of environments that share the N agents.
        num_threads: Number of threads, at most one per environment.
        unused: Keys of ``env`` that no environment read, in the order of ``env``, without the
            defaults that 5.0 passes to every environment.
        can_render: True if ``render`` can open a window: the environment uses raylib, and raylib is
            installed.
        description: One line on how environments are stepped.
        gpu_side: Access to the structs for a GPU, or None when the environments can't step on one.

    Raises:
        UserError: Compilation failed (see ``compile_environment``), keys are missing, or the
            environment rejects their values.
        Misfit: The environments don't fill N agents in Q groups exactly.
    """

    final_observations = False  # c_step begins the next episode
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
        file: str = "the configuration",
    ) -> None:
        self._library = open_environment(folder)
        name = Path(folder).resolve().name
        version = folder_release(folder)
        self.spec = read_spec(folder, self._library)
        observation_bytes = self.spec.observation_size * self.spec.observation_dtype.itemsize
        refuse_large_step(self.spec, total_agents, observation_bytes + self.spec.mask_size)
        self.num_agents = total_agents
        self.num_groups = num_buffers

        at, unused = create(
            self._library,
            name,
            agents=total_agents,
            groups=num_buffers,
            threads=num_threads,
            seed=seed & 0xFFFFFFFF,
            vec=vec or {},
            env=env,
            version=version,
            file=file,
        )
        self._handle = OpenHandle(self._library, self.spec.name, at, num_buffers + 1)
        # Parameters for the environments: 4.0 passes only numbers.
        passed = dict(env) if version == "5.0" else float_values(env)
        read = set(passed) - unused
        common = ENV_OF_5 if version == "5.0" else {}  # few environments read these
        self.unused = [key for key in env if key not in read and env[key] != common.get(key)]
        self._resumable = resumable_digests(folder)
        self._identity: dict[str, str | int] = {
            "environment": name,
            "sources": self._resumable[0],
            "machine": f"{sys.byteorder}-endian, {8 * ctypes.sizeof(ctypes.c_void_p)} bits",
            "vec.total_agents": total_agents,
            **{f"env.{key}": repr(passed[key]) for key in sorted(read)},
            **{f"vec.{key}": repr(value) for key, value in sorted(float_values(vec or {}).items())},
        }
        self.num_environments = int(self._library.puffer_environments(at))
        rules = gpu_rules(folder, self._library, self.spec)
        counts = total_agents, self.num_environments
        self.gpu_side = rules and GPUSide(rules, self._library, self._handle, self.spec, *counts)
        self.num_threads = int(self._library.puffer_threads(at))
        self.can_render = bool(self._library.puffer_can_render())
        self._draws = self.can_render or find_requirements(folder).raylib
        window = "" if not self._draws else ", in a window" if self.can_render else ", no raylib"
        self.description = f"C, {self.num_threads} threads{window}"

        n = total_agents // num_buffers
        self._action_shape = (n, self.spec.action.heads)
        self._step_shapes = row_shapes(n, self.spec)
        self._reset_shapes = row_shapes(total_agents, self.spec)
        self._send = self._library.puffer_send
        self._wait = self._library.puffer_wait

    def reset(self, out: Rows) -> None:
        """Start new episodes for all N agents and write their first observations into ``out``.

        Rewards and terminals of these rows are 0. Waits for steps in progress, then resets
        environments in order on the calling thread.

        Raises:
            UserError: An environment ended the process (exit, abort).
        """
        rows_at = row_addresses(out, self.spec, self._reset_shapes)
        if self._library.puffer_reset(self._handle.address(), *rows_at):
            raise self._handle.ended_error()

    def send(self, group: int, actions: np.ndarray, out: Rows) -> None:
        """Begin one environment step of a group of agents and return at once.

        Args:
            group: 0 ≤ group < Q; it must not be stepping already.
            actions: (n, heads) float32, C-contiguous. Copied before the call returns.
            out: Rows of the group's n agents; referenced until the group's next step.

        Raises:
            IndexError: There is no such group.
            ValueError: An array has another shape or dtype, or isn't C-contiguous.
            RuntimeError: The group is stepping already, or the environments are closed.
        """
        handle = self._open(group)
        actions_at = address(actions, self._action_shape, FLOAT32, "actions", written=False)
        rows_at = row_addresses(out, self.spec, self._step_shapes)
        if self._send(handle, group, 1, actions_at, *rows_at):
            raise RuntimeError(f"group {group} is stepping already; wait({group}) first")
        self._handle.held[group] = out

    def prepare(self, groups: range, actions: np.ndarray, out: Rows) -> PreparedStep:
        """Prepare a repeatable environment step of consecutive groups, as one C call.

        Raises:
            ValueError: An array has another shape or dtype, or isn't C-contiguous.
        """
        first, count = groups.start, len(groups)
        n = count * self.num_agents // self.num_groups
        shape = n, self.spec.action.heads
        actions_at = address(actions, shape, FLOAT32, "actions", written=False)
        rows_at = row_addresses(out, self.spec, row_shapes(n, self.spec))

        def send() -> None:
            handle = self._handle.address()
            if self._send(handle, first, count, actions_at, *rows_at):
                raise RuntimeError(f"one of groups {[*groups]} is stepping already; wait first")
            self._handle.held[first] = actions, out

        def wait() -> None:
            self._handle.wait_for_step(self._wait, self._handle.address(), first, count)

        return PreparedStep(send, wait)

    def wait(self, group: int) -> None:
        """Block until a group's environment step is done and its rows are written.

        Signals are handled meanwhile. An exception of a signal handler is raised after at most half
        a second; the group may still be stepping then.

        Raises:
            UserError: An environment ended the process (exit, abort). No environment steps any
                more.
        """
        self._handle.wait_for_step(self._wait, self._open(group), group, 1)

    def collect(
        self, steps: int, act: tuple[int, int], actions: np.ndarray, out: Rows, spans: int = 0
    ) -> Collected:
        """Collect a rollout: act and step ``steps`` times for all agents, in C threads.

        Each thread steps some agents through the entire rollout. The interpreter lock is free
        meanwhile. Signals are handled as in ``wait``: an exception of a signal handler ends the
        rollout after the steps in progress, and ``act`` isn't called after it is raised.

        Args:
            steps: Number of steps T.
            act: Addresses of a C function, PufferAct of ``envs/src/vec.h``, and of its context. The
                function reads rows and writes ``actions``.
            actions: (T, N, heads) float32, C-contiguous.
            out: (T + 1, N, ...) rows. Time 0 is input, the others are output.
            spans: Maximum number of time spans of working threads to record.

        Raises:
            ValueError: An array has another shape or dtype, or isn't C-contiguous.
            RuntimeError: A group is stepping already, or the environments are closed.
            UserError: An environment ended the process (exit, abort). No environment steps any
                more.
        """
        N = self.num_agents
        actions_at = address(actions, (steps, N, self.spec.action.heads), FLOAT32, "actions")
        all_shapes = tuple((steps + 1, *shape) for shape in self._reset_shapes)
        rows_at = row_addresses(out, self.spec, all_shapes)
        seconds = (ctypes.c_double * 2)()
        notes = (Span * spans)()
        began, clock = time.perf_counter(), time.clock_gettime(time.CLOCK_MONOTONIC)
        handle = self._handle.address()
        if self._library.puffer_collect(handle, steps, *act, actions_at, *rows_at, notes, spans):
            raise RuntimeError("a group is stepping already; wait for all of them first")
        self._handle.held[-1] = actions, out, notes
        count = self._handle.wait_for_step(self._library.puffer_collected, handle, seconds)
        self._handle.held[-1] = None
        offset = began - clock  # between perf_counter and the clock of the spans
        times = [(n.thread, n.first, n.begin + offset, n.end + offset) for n in notes[:count]]
        return Collected(seconds[0], seconds[1], times)

    def log(self) -> dict[str, float]:
        """Return mean metrics of the episodes that ended since the last call, and their number.

        The number is ``n``. The result is {} if no episode ended. May be called from any thread at
        any time: each group is read between two of its steps.

        Raises:
            UserError: The environment's my_log sets more than 256 keys.
        """
        return read_means(self.spec.name, self._library.puffer_log, self._handle.address())

    def episodes(self) -> list[dict[str, float]]:
        """Return mean metrics of the episodes that ended since the last call, by environment.

        If this is called after every step, the records of environments with one agent are single
        episodes.

        Returns:
            One record per environment where an episode ended since the last call of ``episodes`` or
            ``log``, in the environments' order. A record has the keys of ``my_log``, as means over
            the environment's episodes; their number ``n``; and the environment's index ``env``.

        Raises:
            UserError: The environment's my_log sets more than 256 keys.
        """
        records = []
        env = ctypes.c_int(0)
        next_log = partial(self._library.puffer_next_log, self._handle.address(), ctypes.byref(env))
        while record := read_means(self.spec.name, next_log):
            records.append({**record, "env": float(env.value)})
            env.value += 1
        return records

    def state(self) -> np.ndarray | None:
        """Return the state of all environments as bytes, or None without a MY_STATE macro.

        Waits for steps in progress. The bytes don't depend on the number of threads and groups.
        They contain the episodes that ``log`` hasn't reported.

        Returns:
            (bytes,) uint8, for ``restore``.
        """
        packed = self.snapshot()
        return None if packed is None else packed()

    def snapshot(self) -> Callable[[], np.ndarray] | None:
        """Copy all environments' current state now, and leave its checksum for later.

        Returns a function that adds the checksum.
        """
        handle = self._handle.address()
        size = self._library.puffer_save(handle, None, -1)
        if size < 0:
            return None
        while True:  # A step in another thread may change the size in between.
            body = np.empty(size, np.uint8)
            size = self._library.puffer_save(handle, body.ctypes.data, len(body))
            if size <= len(body):
                return partial(pack_state, self._identity, body[:size])

    def restore(self, state: np.ndarray) -> None:
        """Restore all environments from a result of ``state``, bit for bit, without a reset.

        Waits for steps in progress. The numbers of threads and groups may differ from those of the
        saved run. Writes no rows: the caller restores its copy of the last rows.

        Raises:
            UserError: The state is damaged, or belongs to another environment, other sources,
                parameters, agents or kind of machine. The environments are unchanged then, except
                if a my_load_state failed: reset the environments after that.
        """
        handle = self._handle.address()
        body = unpack_state(state, self._identity, self._resumable)
        text = ctypes.create_string_buffer(TEXT_BYTES)
        if self._library.puffer_load(handle, body.ctypes.data, len(body), text, len(text)):
            raise UserError(
                f"{self.spec.name}: {text.value.decode(errors='replace')}",
                "resume without the state: the environments start new episodes",
            )

    def render(self, env: int = 0) -> bool:
        """Render an environment in its window. The first call opens the window.

        Call it once after every step, always from the same thread; on macOS from the main thread.
        Most environments wait for the next frame. Waits for steps in progress. ``close`` closes the
        window.

        Args:
            env: 0 ≤ env < num_environments.

        Returns:
            True, or False if the window was closed or Escape pressed. Don't render again then.

        Raises:
            IndexError: There is no such environment.
            UserError: The environment can't be drawn (``can_render``), or not on this thread.
        """
        handle = self._handle.address()
        if not 0 <= env < self.num_environments:
            raise IndexError(f"environment {env}, expected 0 to {self.num_environments - 1}")
        if not self.can_render:
            reason = "raylib isn't installed" if self._draws else "its c_render doesn't use raylib"
            raise UserError(
                f"{self.spec.name} can't open a window: {reason}",
                INSTALL_HINT if self._draws else "make pictures instead: draw.py in its folder",
            )
        if sys.platform == "darwin" and threading.current_thread() is not threading.main_thread():
            raise UserError("macOS draws windows on the main thread only", "call render() there")
        return not self._library.puffer_render(handle, env)

    def set_bot_policy(self, policy: int) -> None:
        """Choose the scripted opponent of every environment, one of PufferLib 5.0's bots.

        Waits for steps in progress. PufferLib resets the environments afterwards.

        Args:
            policy: Number of the opponent in the environment.

        Raises:
            UserError: The environment has no opponents (no PUF_HAS_BOT_POLICY), or ended the
                process.
        """
        if self._library.puffer_set_bot_policy(self._handle.address(), policy):
            raise UserError(
                f"{self.spec.name} has no scripted opponents",
                "an environment that has some defines PUF_HAS_BOT_POLICY and puf_set_bot_policy",
            )

    def declared_policies(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the index of each agent's environment, and the policy that plays the agent."""
        environments, policies = np.zeros((2, self.num_agents), np.int32)
        none = self._library.puffer_seats(
            self._handle.address(), environments.ctypes.data, policies.ctypes.data
        )
        return environments, None if none else policies

    def set_tags(self, tags: np.ndarray) -> None:
        """Set each environment's tag for self-play. Environments of 4.0 need MY_USES_TAGS."""
        tags = np.ascontiguousarray(tags, np.int32)
        if tags.shape != (self.num_environments,):
            raise ValueError(f"tags: expected ({self.num_environments},), found {tags.shape}")
        self._library.puffer_set_tags(self._handle.address(), tags.ctypes.data)

    def busy_seconds(self) -> float:
        """Return the thread-seconds spent in environment steps since creation."""
        return float(self._library.puffer_busy_seconds(self._handle.address()))

    def close(self) -> None:
        """Close the environments after steps in progress, and free their memory.

        Calling ``close`` twice is harmless. After an exception of a signal handler it waits at most
        half a second; the memory of a step that is still in progress then is never freed.
        """
        self._handle.close()

    def __enter__(self) -> "NativeVec":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_handle"):  # unset if __init__ failed early
            self.close()

    def _open(self, group: int) -> int:
        """Check that a group's index is valid. Returns the address of the open C environments."""
        address = self._handle.address()
        if not 0 <= group < self.num_groups:
            raise IndexError(f"group {group}, expected 0 to {self.num_groups - 1}")
        return address
