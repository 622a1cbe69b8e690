"""Environments in C that end the process, use a large stack, or hang."""

import re
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_envs import OURS, Stepper
from running import ROOT, command, only, run, started

from puffer_mlx.errors import UserError
from puffer_mlx.system.signals import STOPPING_MESSAGE
from puffer_mlx.vec.native import compiling
from puffer_mlx.vec.native.vec import NativeVec

FAULTY = OURS / "faulty"
NAMES = re.findall(r"^    ([A-Z_]+),", (FAULTY / "faulty.h").read_text(), re.MULTILINE)


def make(fault: str, total_agents: int = 8, **keywords: Any) -> NativeVec:
    env = {"fault": NAMES.index(fault)}
    return NativeVec(FAULTY, total_agents=total_agents, env=env, **keywords)


def step(vec: NativeVec, steps: int) -> Stepper:
    """Step environments several times while their agents stay in place; return the stepper."""
    stepper = Stepper(vec)
    for _ in range(steps):
        stepper.step(np.ones((vec.num_agents, 1), np.float32))
    return stepper


# ---- exit ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "agents", "message"),
    [
        ("EXIT_IN_STEP", 32, r"environments? .* called exit\(3\) while it was stepped"),
        ("ABORT_IN_STEP", 1, r"environment 0 called abort\(\) while it was stepped"),
        ("EXIT_IN_RESET", 1, r"environment 0 called exit\(4\) while it was reset"),  # _exit, there
    ],
)
def test_exit_is_reported_and_ends_stepping(fault: str, agents: int, message: str):
    groups = 4 if agents > 1 else 1
    with make(fault, agents, num_buffers=groups, num_threads=3) as vec:
        for _ in range(2):  # and again
            with pytest.raises(UserError, match=rf"faulty: .*{message}") as caught:
                step(vec, 10)
            assert "above" in caught.value.hint
        assert vec.state() is None  # half a step can't be gone on with
        assert vec.log() == {}


def test_reason_is_complete_while_a_thread_writes_it(monkeypatch: pytest.MonkeyPatch):
    """Waiting returns after a tenth of a second, and the reason is complete after half a second."""
    header = ROOT / "tests" / "c" / "slow_ending.h"
    monkeypatch.setattr(
        compiling, "_COMPILE_FLAGS", [*compiling._COMPILE_FLAGS, "-include", str(header)]
    )
    with make("EXIT_IN_STEP", 1) as vec, pytest.raises(UserError, match=r"called exit\(3\) while"):
        step(vec, 10)


def test_exit_in_close_is_ignored():
    with make("EXIT_IN_CLOSE") as vec:
        step(vec, 3)


def training(fault: str) -> tuple[object, ...]:
    """Return arguments of the train command in which the faulty 9th step is in epoch 2."""
    return (
        *(FAULTY, "--env.fault", NAMES.index(fault), "--device", "cpu"),
        *("--train.horizon", 8, "--train.minibatch-size", 512),
        *("--train.total-timesteps", 10 * 512),
    )


def test_run_that_an_environment_ends_is_saved(tmp_path: Path):
    """The environment ends in the second epoch. The weights of the first are saved."""
    done = run("train", *training("EXIT_IN_STEP"), cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert re.search(r"error: faulty: .*called exit\(3\) while it was stepped", done.stderr)
    assert "Traceback" not in done.stderr
    assert only(tmp_path, "checkpoints/faulty/*/0*/weights.safetensors").stat().st_size > 1000


@pytest.mark.parametrize("fault", ["CRASH_IN_STEP", "RECURSION_IN_RESET"])
def test_crash_is_reported_as_that_of_an_environment(fault: str, tmp_path: Path):
    """In a thread of the pool, and in the main thread while environments are reset."""
    done = run("train", *training(fault), cwd=tmp_path)
    assert done.returncode == -signal.SIGSEGV
    said, hint = done.stderr.splitlines()[-2:]
    assert said.startswith("error: an environment's C code crashed") and "check-env" in hint


# ---- what never ends, and what is deep ----------------------------------------------------------

START = f'''
import contextlib, signal, sys
import numpy as np
sys.path[:0] = {[str(Path(__file__).parent), str(ROOT / "tests")]!r}
from stepping import address_of, times_of
from test_native_ends import make, step

def interrupted(work, vec):
    """Ctrl-C while a step is waited for, once."""
    def handle(number, frame):
        if frame.f_code.co_name == "wait_for_step":
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise KeyboardInterrupt
    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    try:
        with vec:
            work()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
'''


def python(code: str, **how) -> tuple[int, str, str]:
    """Run Python code in a new process. Returns the exit status, the output and the errors."""
    words = [sys.executable, "-c", START + textwrap.dedent(code)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, **how)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "work",
    [
        "stepper = step(vec, 8); work = lambda: stepper.step(1)",
        "at, rows = address_of(lambda *_: None), times_of(vec, 20)\n"
        "work = lambda: vec.collect(20, at, np.ones((20, 8, 1), np.float32), rows)",
    ],
    ids=["step", "rollout"],
)
def test_step_that_hangs_can_be_interrupted(work: str):
    code = f'vec = make("HANG_IN_STEP", num_threads=2)\n{work}\ninterrupted(work, vec)'
    status, out, err = python(code)
    assert (status, out) == (0, "interrupted\n"), err
    assert "puffer_mlx: faulty: a step doesn't end; its memory isn't freed" in err


def test_training_that_hangs_is_saved_and_ended_by_two_signals(tmp_path: Path):
    with started(command("train", *training("HANG_IN_STEP")), tmp_path) as process:
        process.wait_for_error("faulty hangs")
        process.popen.send_signal(signal.SIGINT)
        process.wait_for_error(STOPPING_MESSAGE)
        process.popen.send_signal(signal.SIGINT)
        code, out, err = process.end()
    assert code == 128 + signal.SIGINT, err
    assert "Traceback" not in err and err.endswith("stopped\n")
    assert "\nsaved checkpoints/" in out
    assert only(tmp_path, "checkpoints/faulty/*/0*/weights.safetensors").stat().st_size > 1000


def test_interrupted_rollout_ends_with_its_step():
    """The policy's memory may be freed afterwards, so no thread may still act."""
    done = python(
        """
        import time
        import native_envs
        vec = native_envs.make("relay", total_agents=6, env={"length": 7, "sleep_ms": 20})
        acting = []
        def act(*_):
            acting.append(1)
            time.sleep(0.9)  # longer than a step is waited for
            acting.pop()
        at, rows = address_of(act), times_of(vec, 12)
        def collect():
            try:
                vec.collect(12, at, np.zeros((12, 6, 2), np.float32), rows)
            finally:
                print(len(acting), "act")
        interrupted(collect, contextlib.nullcontext())
        native_envs.Stepper(vec).step(np.zeros((6, 2), np.float32))  # of use as before
        vec.close()
        """
    )
    assert done == (0, "0 act\ninterrupted\n", "")


def test_threads_have_a_stack_as_large_as_the_main_one():
    """Linux gives threads as much as ``ulimit -s`` says, macOS 512 KiB."""

    def little() -> None:
        resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, resource.RLIM_INFINITY))

    done = python('step(make("DEEP_STACK"), 2)', preexec_fn=little)
    assert done == (0, "", "")
