"""A walk that goes wrong, in the way it is told to, for one seed and in one step."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np
from gym_walk import Walk, Walks
from gymnasium import spaces


def trip() -> None:
    raise ZeroDivisionError("tripped over a stone")


class Faulty(Walk):
    """Environment with a chosen fault that occurs when ``seed == who`` and ``steps == at``."""

    def __init__(self, fault: str, who: int = 2, at: int = 3, path: str = "", **keywords) -> None:
        super().__init__(**keywords)
        self.fault, self.who, self.at, self.path, self.seed = fault, who, at, path, None
        if fault == "made":
            trip()
        if fault == "exits when made":
            sys.exit(0)
        if fault == "narrow":
            if os.path.exists(path):
                self.observation_space = spaces.Box(-1, 1, (2,))
            self.write_pid()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        self.seed = self.seed if seed is None else seed
        found = super().reset(seed=seed)
        if self.seed == self.who and self.fault == "later reset" and self.episode > 1:
            trip()
        return found

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict]:
        seen, reward, over, late, info = super().step(action)
        if self.seed != self.who or self.steps != self.at:
            return seen, reward, over, late, info
        return getattr(self, self.fault.replace(" ", "_"))(seen, reward, over, late, info)

    def later_reset(self, *found: Any) -> tuple:
        return found

    def raises(self, *_: Any) -> tuple:
        trip()
        return ()

    def nan(self, seen: Any, *rest: Any) -> tuple:
        seen[1] = np.nan
        return seen, *rest

    def shape(self, seen: Any, *rest: Any) -> tuple:
        return seen[:2], *rest

    def short_mask(self, *found: Any) -> tuple:
        return *found[:-1], {"action_mask": np.ones(2, np.int8)}

    def killed(self, *_: Any) -> tuple:
        os.kill(os.getpid(), signal.SIGKILL)
        return ()

    def leaves_well(self, *_: Any) -> tuple:
        os._exit(0)

    def exits(self, *_: Any) -> tuple:
        sys.exit(0)

    def hangs(self, *_: Any) -> tuple:
        self.write_pid()
        while True:
            time.sleep(0.05)

    def closes_descriptors(self, *found: Any) -> tuple:
        os.closerange(3, 256)
        return found

    def hangs_in_c(self, *_: Any) -> tuple:
        self.write_pid()
        ctypes.PyDLL(None).sleep(600)  # keeps Python's lock
        return ()

    def ends_a_program(self, *found: Any) -> tuple:
        with subprocess.Popen(["sleep", "600"]) as program:
            program.terminate()
        return found

    def ends_a_fork(self, *found: Any) -> tuple:
        if not (child := os.fork()):
            time.sleep(600)
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)
        return found

    def stubborn(self, *found: Any) -> tuple:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return self.hangs(*found)

    def lost(self, *found: Any) -> tuple:
        return *found[:-1], {"lock": lambda: None}

    def write_pid(self) -> None:
        if self.path:
            with open(self.path, "a") as file:
                print(os.getpid(), file=file, flush=True)


class FaultyWalks(Walks):
    """Vector environment with a fault in its step number ``at``."""

    def __init__(self, num_envs: int, at: int = 3) -> None:
        super().__init__(num_envs)
        self.at, self.count = at, 0

    def step(self, actions: np.ndarray) -> tuple:
        self.count += 1
        if self.count == self.at:
            trip()
        return super().step(actions)
