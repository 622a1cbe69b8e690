"""Gymnasium's environments that fail: one message, and no process is left."""

import contextlib
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gym_faults
import gymnasium
import numpy as np
import psutil
import pytest
from stepping import alike, gym_vec, played, send, started, step

from puffer_mlx.errors import UserError
from puffer_mlx.vec import instances, pool
from puffer_mlx.vec.gym.installed import has_vectorised_versions
from puffer_mlx.vec.python_vec import PythonVec

TESTS = Path(__file__).parents[1]
HERE = TESTS / "envs" / "python"
Faulty, FaultyWalks = gym_faults.Faulty, gym_faults.FaultyWalks
Walk, Walks = gym_faults.Walk, gym_faults.Walks
NEEDS_1_1 = pytest.mark.skipif(not has_vectorised_versions(), reason="needs Gymnasium 1.1")

STAY = np.ones((4, 1), np.float32)


def make(fault: str, backend: str, **keywords) -> PythonVec:
    """Make four environments in two groups; the fourth has a fault, usually in its third step."""
    env = {"fault": fault, "who": 3, **keywords.pop("env", {})}
    usual = {"name": "faulty", "total_agents": 4, "num_buffers": 2, "backend": backend}
    return gym_vec(Faulty, **{**usual, "env": env, **keywords})


def play(vec: PythonVec, steps: int = 12) -> None:
    rows = started(vec)
    for _ in range(steps):
        step(vec, rows, 1)


def processes() -> set[int]:
    """Return the ids of this process's child processes, also ended ones."""
    running = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "resource_tracker" not in " ".join(process.cmdline()):
                running.add(process.pid)
    return running


@pytest.fixture(scope="module")
def server():
    """Return the ids of processes that outlive environments: the fork server."""
    before = processes()
    with make("none", "async", env={"at": -1}):
        running = processes()
    assert len(running - before) >= 4
    return processes()


@pytest.fixture
def nothing_left(server):
    """Assert after each test that no environment process is left."""
    yield
    assert processes() <= server


@pytest.mark.parametrize(
    ("fault", "backend", "message"),
    [
        (
            "raises",
            "sync",
            r"step: ZeroDivisionError.*\n(.*\n)*.*gym_faults\.py:\d+ in trip: raise",
        ),
        ("later reset", "async", "reset: ZeroDivisionError: tripped over a stone"),
        ("nan", "async", "returned observations of nan at position 1"),
        ("shape", "sync", r"an observation is float64 \(2,\), its space float64 \(3,\)"),
        ("short mask", "async", "gave an action mask of 2 numbers, expected 3"),
        ("exits", "async", r"step: SystemExit: 0\n(.*\n)*.*in exits: sys.exit"),
    ],
)
def test_fault_names_environment_and_seed(fault: str, backend: str, message: str, nothing_left):
    env = {"who": 43, "masked": "mask" in fault}
    with pytest.raises(UserError) as caught:
        play(make(fault, backend, seed=40, env=env))
    said = str(caught.value)
    assert re.search(rf"^faulty: environment 3 \(seed 43\) .*{message}", said), said
    assert "hint: " in said and "site-packages/gymnasium" not in said


@pytest.mark.parametrize(
    ("fault", "backend", "message"),
    [
        ("made", "sync", r"ZeroDivisionError: tripped(.*\n)*.*gym_faults\.py"),
        ("exits when made", "auto", "SystemExit: 0"),
        ("narrow", "async", r"its observation space is .*\(2,\).*0 .*\(3,\)"),
    ],
)
def test_fault_of_constructor_is_reported(fault, backend, message, tmp_path, nothing_left):
    """``narrow`` is the space of the second environment that is made, after the probe."""
    with pytest.raises(UserError, match=f"failed when it was made: {message}"):
        make(fault, backend, env={"path": str(tmp_path / "made")})


@NEEDS_1_1
def test_fault_of_vectorized_form_is_reported(nothing_left):
    vec = gym_vec(FaultyWalks, name="faulty", total_agents=4, num_buffers=2, backend="vector")
    said = r"faulty: an environment failed in step: ZeroDivision(.*\n)*.*in trip: raise"
    with pytest.raises(UserError, match=said):
        play(vec)


class Old(gymnasium.Env):
    """Environment with the API of gym before 0.26, which must be refused."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, paired: bool) -> None:
        self.paired = paired

    def reset(self, **keywords):
        return (np.zeros(2, np.float32), {}) if self.paired else np.zeros(2, np.float32)

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, {}


class NoSeed(Old):
    def reset(self):  # type: ignore
        return super().reset()


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (Old(True), "step: it returned 4 values, expected 5(.*\n)*.*terminated, truncated"),
        (Old(False), "reset: it returned an observation alone(.*\n)*.*return observation, info"),
        (NoSeed(True), "reset: it doesn't take seed(.*\n)*.*seed=None, options=None"),
    ],
)
def test_environment_written_for_gym_gets_advice(made: Old, message: str):
    with pytest.raises(UserError, match=rf"old: environment 0 \(seed 0\) failed in {message}"):
        play(gym_vec(lambda: made, name="old", total_agents=1, backend="sync"), 1)


def test_close_that_fails_is_reported_in_one_line(nothing_left, capfd, monkeypatch):
    class Unclosed(Walk):
        """A walk whose ``close`` fails once it has stepped."""

        used = False

        def step(self, action):
            self.used = True
            return super().step(action)

        def close(self):
            if self.used:
                raise RuntimeError("the simulator doesn't answer\nsecond line")

    monkeypatch.setattr(instances, "_printed_lines", set())
    with gym_vec(Unclosed, name="late", total_agents=4, num_buffers=2, backend="async") as vec:
        play(vec, 1)
    said = "close() of an environment failed, which is ignored: RuntimeError: the simulator"
    assert capfd.readouterr() == ("", f"puffer_mlx: late: {said} doesn't answer\n")


# ---- Results -------------------------------------------------------------------------------------


def replace(place: int, value: Any) -> Any:
    """Return a function that replaces one item of a step's or reset's result."""
    return lambda *result: (*result[:place], value, *result[place + 1 :])


def changed(base: Any, step_change: Any, reset_change: Any = None) -> PythonVec:
    """Make vectorized walks whose step and reset results are changed by functions."""

    class Changed(base):
        def reset(self, **keywords):
            result = super().reset(**keywords)
            return reset_change(*result) if reset_change else result

        def step(self, action):
            result = super().step(action)
            return step_change(*result) if step_change else result

    if base is Walks and not has_vectorised_versions():
        pytest.skip("needs Gymnasium 1.1")
    backend = "vector" if base is Walks else "sync"
    env = {"size": 99, "limit": 5}
    return gym_vec(
        Changed, name="w", total_agents=3, backend=backend, env=env, final_observations=True
    )


@pytest.mark.parametrize(
    ("base", "change"),
    [
        (Walk, lambda s, r, end, cut, i: (s, np.array([[r]], "f4"), np.array([end]), [cut], i)),
        (Walk, lambda s, r, end, cut, i: [s, np.int64(r), end or None, int(cut), None]),
        (Walks, lambda s, r, end, cut, i: (s, r[:, None], False, cut[:, None], i)),
        (Walks, lambda s, r, end, cut, i: (s, list(r), list(end), list(cut), None)),
    ],
    ids=["arrays", "lists and None", "columns", "lists of all"],
)
def test_results_of_other_types_are_accepted(base: Any, change: Any):
    with changed(base, change, lambda s, _: (s, None)) as ours, changed(base, None) as plain:
        assert alike(played(ours, 9), played(plain, 9))


WRONG = {  # base, changes of step and reset, message
    "rewards": (Walk, replace(1, np.zeros(2)), None, r"a reward of float64 \(2,\), expected one"),
    "complex": (Walk, replace(1, 1j), None, "a reward of 1j, expected one number"),
    "info": (Walk, replace(4, [1]), None, r"an info of \[1\], expected a dict"),
    "nothing": (Walk, lambda *_: None, None, "failed in step: it returned None, expected obs"),
    "reset": (Walk, None, lambda *_: None, "failed in reset: it returned None, expected obs"),
    "all ends": (Walks, replace(2, np.zeros((3, 2))), None, r"terminated of float64 \(3, 2\)"),
    "all infos": (Walks, replace(4, 7), None, "an info of 7, expected a dict"),
    "four": (Walks, lambda *all: all[:4], None, "failed in step: it returned 4 values, expec"),
}


@pytest.mark.parametrize("how", WRONG)
def test_wrong_result_is_reported(how: str):
    base, step_change, reset_change, message = WRONG[how]
    environment = r"an environment" if base is Walks else r"environment 0 \(seed 0\)"
    with pytest.raises(UserError, match=rf"^w: {environment} .*{message}"):
        play(changed(base, step_change, reset_change), 1)


# ---- Processes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("killed", r"died: its process was killed by SIGKILL\n.*memory"),
        ("leaves well", "died: its process ended with exit code 0"),
        ("closes descriptors", r"died: its process lost its connection to this one\n.*closerange"),
    ],
)
def test_process_that_dies_is_reported(fault: str, message: str, nothing_left, capfd):
    vec = make(fault, "async")
    with pytest.raises(UserError, match=rf"environment 3 \(seed 3\) {message}"):
        play(vec)
    with pytest.raises(RuntimeError, match="closed"):
        vec.wait(0)
    assert capfd.readouterr().err == ""


def test_process_that_hangs_is_reported_with_its_line(nothing_left, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(pool, "_CLOSE_TIMEOUT", 0.1)
    vec = make("hangs", "async", timeout=1.0, env={"path": str(tmp_path / "pid")})
    said = r"environment 3 \(seed 3\) hangs: nothing came back for 1 seconds(.*\n)*"
    with pytest.raises(UserError, match=rf"{said}.*gym_faults\.py:\d+ in hangs: time\.sleep") as e:
        play(vec)
    assert "raise vec.timeout" in str(e.value)
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text().split()[0]))


def test_info_that_can_not_be_pickled_is_ignored(nothing_left):
    with make("lost", "async") as vec:
        play(vec)


def test_close_ends_a_process_that_ignores_sigterm(nothing_left, tmp_path: Path, monkeypatch):
    """It sleeps in a step."""
    monkeypatch.setattr(pool, "_CLOSE_TIMEOUT", 0.1)
    vec = make("stubborn", "async", env={"path": str(tmp_path / "pid"), "at": 1})
    send(vec, started(vec), STAY)
    while not (tmp_path / "pid").is_file():
        time.sleep(0.01)
    vec.close()
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text().split()[0]))


# ---- From outside --------------------------------------------------------------------------------


def test_processes_ignore_signals_that_their_parent_handles(nothing_left):
    """A terminal and a batch system signal every process."""
    with make("none", "async", env={"at": -1}) as vec:
        play(vec, 1)
        others = psutil.Process().children(recursive=True)  # the fork server, too
        for other in others:
            for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
                other.send_signal(number)
        play(vec, 5)
        for other in others:
            assert other.status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("fault", ["ends a program", "ends a fork"])
def test_sigterm_ends_children_of_an_environment(fault: str, nothing_left):
    with make(fault, "async", timeout=30.0) as vec:
        play(vec)


class Interrupted(Walk):
    """Walk environment that sends Ctrl-C to the main process in its third step."""

    def step(self, action):
        if self.steps == 2:
            parent = multiprocessing.parent_process()
            os.kill(parent.pid or 0 if parent else os.getpid(), signal.SIGINT)
            time.sleep(0.1)
        return super().step(action)


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_step_interrupted_by_ctrl_c_is_complete(backend: str, nothing_left):
    """All rows are written, and nothing is closed."""
    with gym_vec(Interrupted, name="walk", total_agents=1, backend=backend) as vec:
        rows = started(vec)
        step(vec, rows, 1)
        step(vec, rows, 1)
        with pytest.raises(KeyboardInterrupt):
            step(vec, rows, 1)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        vec.wait(0)
        assert rows.observations[0, 1] == 3  # steps
        assert step(vec, rows, 1).observations[0, 1] == 4


def test_ctrl_c_ends_a_step_that_hangs(nothing_left):
    """After half a second."""

    class Hangs(Walk):
        def step(self, action):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(20)
            raise AssertionError("it was held back")

    with gym_vec(Hangs, name="walk", total_agents=1, backend="sync") as vec:
        rows = started(vec)
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            step(vec, rows, 2)
        assert 0.4 < time.monotonic() - began < 10
        with pytest.raises(RuntimeError, match="closed"):
            vec.wait(0)


# ---- Programs ------------------------------------------------------------------------------------

START = f"""
import sys
sys.path += {[str(HERE), str(TESTS)]!r}
from gym_faults import Faulty, Walk
from stepping import started, step
from puffer_mlx.vec.gym.make import GymFactory
from puffer_mlx.vec.python_vec import PythonVec
"""
UNCLOSED = """
class Mine(Walk):
    def step(self, action):
        seen, _, *rest = super().step(action)
        return seen, 7.0, *rest

print("run")
vec = PythonVec(GymFactory("mine", Mine), total_agents=2, backend="async")
print(*step(vec, started(vec), 1).rewards)
"""
HANGING = """
env = {"fault": sys.argv[2], "at": 1, "who": 1, "path": sys.argv[1]}
vec = PythonVec(GymFactory("faulty", Faulty, env), total_agents=3, backend="async")
with vec:
    rows = started(vec)
    print("pids", *(process.pid for process in vec._envs[0].processes), flush=True)
    while True:
        step(vec, rows, 1)
"""


def test_program_ends_without_closing_and_ctrl_c_does_not_reach_processes(tmp_path: Path):
    """Each process sends itself a Ctrl-C when it starts."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "if 'multiprocessing' in ' '.join(sys.orig_argv):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
    )
    (tmp_path / "script.py").write_text(START + UNCLOSED)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "run\n7.0 7.0\n")
    assert "Interrupt" not in done.stderr


@pytest.mark.parametrize(
    ("number", "fault"), [(signal.SIGINT, "hangs"), (signal.SIGKILL, "hangs in c")]
)
def test_processes_end_with_their_parent(number: signal.Signals, fault: str, tmp_path: Path):
    words = [sys.executable, "-c", START + HANGING, str(tmp_path / "pid"), fault]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()[1:]]
        assert len(pids) == 3
        while not (tmp_path / "pid").is_file():
            time.sleep(0.01)
        if number == signal.SIGINT:  # as a terminal does: to all of them
            os.killpg(parent.pid, number)
        else:
            parent.kill()
        _, said = parent.communicate(timeout=60)
    deadline = time.monotonic() + 20
    while any(map(psutil.pid_exists, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(psutil.pid_exists, pids))
    assert said.count("Traceback") == (number == signal.SIGINT), said
