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
from puffer_mlx.vec.gym.installed import has_own_vector_forms
from puffer_mlx.vec.python_vec import PythonVec

TESTS = Path(__file__).parents[1]
HERE = TESTS / "envs" / "python"
Faulty, FaultyWalks = gym_faults.Faulty, gym_faults.FaultyWalks
Walk, Walks = gym_faults.Walk, gym_faults.Walks
NEEDS_1_1 = pytest.mark.skipif(not has_own_vector_forms(), reason="needs Gymnasium 1.1")

OWN = r"gym_faults\.py:\d+ in trip: raise ZeroDivisionError\(\"tripped over a stone\"\)"
STAY = np.ones((4, 1), np.float32)


def make(fault: str, backend: str, **keywords) -> PythonVec:
    """Make four environments in two groups; number 3 fails in its third step."""
    env = {"fault": fault, "who": 3, **keywords.pop("env", {})}
    usual = {"name": "faulty", "total_agents": 4, "num_buffers": 2, "backend": backend}
    return gym_vec(Faulty, **{**usual, "env": env, **keywords})


def play(vec: PythonVec, steps: int = 12) -> None:
    rows = started(vec)
    for _ in range(steps):
        step(vec, rows, 1)


def processes() -> set[int]:
    """Return the processes of environments, running or not collected."""
    running = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "resource_tracker" not in " ".join(process.cmdline()):
                running.add(process.pid)
    return running


def children(vec: PythonVec) -> list:
    return [process for env in vec._envs for process in env.processes]  # type: ignore


@pytest.fixture(scope="module")
def server():
    """Return the processes that stay until the end: the fork server."""
    before = processes()
    with make("none", "async", env={"at": -1}):
        running = processes()
    assert len(running - before) >= 4
    return processes()


@pytest.fixture
def nothing_left(server):
    """Check that no process is left."""
    yield
    assert processes() <= server


FAULTS = {
    "raises": r"failed in step: ZeroDivisionError: tripped over a stone",
    "later reset": r"failed in reset: ZeroDivisionError: tripped over a stone",
    "nan": r"returned observations of nan at position 1",
    "infinite": r"returned a reward of inf",
    "shape": r"failed in step: an observation is float64 \(2,\), its space float64 \(3,\)",
    "short mask": r"gave an action mask of 2 numbers, expected 3",
    "exits": r"failed in step: SystemExit: 0\n(.*\n)*.*in exits: sys.exit",
    "made again": r"failed when it was made: ZeroDivisionError",
    "narrow": r"failed when it was made: its observation space is .*\(2,\).*0 .*\(3,\)",
}
WITHOUT_PROCESSES = ("raises", "infinite", "shape")


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_names_environment_and_seed(fault: str, nothing_left, tmp_path: Path):
    """The environment with seed 43 fails, or the second that is made after the probe."""
    backend = "sync" if fault in WITHOUT_PROCESSES else "async"
    again = fault in ("made again", "narrow")
    number = 0 if again else 3
    env = {"who": 43, "masked": "mask" in fault, "path": str(tmp_path / "made") if again else ""}
    with pytest.raises(UserError) as caught:
        play(make(fault, backend, seed=40, env=env))
    said, named = str(caught.value), rf"^faulty: environment {number} \(seed {40 + number}\) "
    assert re.search(named + FAULTS[fault], said), said
    assert bool(re.search(OWN, said)) == ("ZeroDivision" in FAULTS[fault])
    assert "hint: " in said and "site-packages/gymnasium" not in said


OLD = {  # habits of gym before 0.26 -> method, message, hint
    "four values": ("step", "it returned 4 values, expected 5", "terminated, truncated"),
    "of two numbers": ("reset", "it returned an observation alone", "return observation, info"),
    "no seed": ("reset", "it doesn't take seed", "seed=None, options=None"),
}


@pytest.mark.parametrize("how", OLD)
def test_environment_written_for_gym_gets_advice(how: str, nothing_left):
    size = 2 if how == "of two numbers" else 3  # which unpacks as an observation and an info

    class Old(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (size,))
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, **keywords):
            seen = np.zeros(size, np.float32)
            return (seen, {}) if how == "four values" else seen

        def step(self, action):
            return np.zeros(size, np.float32), 0.0, False, {}

    class NoSeed(Old):
        def reset(self):  # type: ignore
            return np.zeros(size, np.float32)

    def old():
        made = NoSeed() if how == "no seed" else Old()
        return gymnasium.wrappers.TimeLimit(made, 5) if how != "four values" else made

    method, said, hint = OLD[how]
    message = rf"old: environment 0 \(seed 0\) failed in {method}: {said}"
    with pytest.raises(UserError, match=message) as caught:
        play(gym_vec(old, name="old", total_agents=4, num_buffers=2, backend="sync"), 1)
    assert hint in str(caught.value).partition("hint: ")[2]


class Unclosed(Walk):
    """A walk whose ``close`` fails once it has stepped."""

    used = False

    def step(self, action):
        self.used = True
        return super().step(action)

    def close(self):
        if self.used:
            raise RuntimeError("the simulator doesn't answer\nsecond line")


class UnclosedWalks(Walks):
    def close(self, **_):
        sys.exit(3)


FAILING_CLOSE = {
    "async": (Unclosed, "RuntimeError: the simulator doesn't answer"),
    "vector": (UnclosedWalks, "SystemExit: 3"),
}


@pytest.mark.parametrize("backend", ["async", pytest.param("vector", marks=NEEDS_1_1)])
def test_close_that_fails_is_reported_in_one_line(backend: str, nothing_left, capfd, monkeypatch):
    factory, said = FAILING_CLOSE[backend]
    monkeypatch.setattr(instances, "_REPORTED", set())
    with gym_vec(factory, name="late", total_agents=4, num_buffers=2, backend=backend) as vec:
        rows = started(vec)
        step(vec, rows, 1)
    line = f"puffer_mlx: late: close() of an environment failed, which is ignored: {said}\n"
    assert capfd.readouterr() == ("", line)


def unchanged(*result):
    return result


def returning(base: Any, step: Any = unchanged, reset: Any = unchanged) -> dict[str, Any]:
    """Return settings of walks whose results are changed by functions."""

    class Changed(base):
        def reset(self, **keywords):
            return reset(*super().reset(**keywords))

        def step(self, action):
            return step(*super().step(action))

    vectorized = base is Walks
    if vectorized and not has_own_vector_forms():
        pytest.skip("needs Gymnasium 1.1")
    backend = "vector" if vectorized else "sync"
    return {"constructor": Changed, "name": "w", "total_agents": 3, "backend": backend}


TAKEN = {  # base, change of (observation, reward, terminated, truncated, info)
    "arrays": (Walk, lambda s, r, end, cut, i: (s, np.array([r]), np.array([end]), [cut], i)),
    "float32": (Walk, lambda s, r, end, cut, i: (s, np.array([[r]], "f4"), np.bool_(end), cut, i)),
    "lists": (Walk, lambda s, r, end, cut, i: [s, [r], int(end), int(cut), i]),
    "nothing": (Walk, lambda s, r, end, cut, i: (s, np.int64(r), end or None, cut or None, None)),
    "all (n, 1)": (Walks, lambda s, r, end, cut, i: (s, r[:, None], end[:, None], cut, i)),
    "all lists": (Walks, lambda s, r, end, cut, i: (s, list(r), list(end), list(cut), None)),
    "one end for all": (Walks, lambda s, r, end, cut, i: (s, r, False, cut, i)),
}


@pytest.mark.parametrize("how", TAKEN)
def test_results_of_other_types_are_accepted(how: str):
    def history(*changes):
        env = {"size": 99, "limit": 5}
        with gym_vec(**returning(*changes), env=env, finals=how != "arrays") as vec:
            return played(vec, 9)

    base, change = TAKEN[how]
    assert alike(history(base, change, lambda s, _: (s, None)), history(base))


RESET = "failed in reset: it returned "


def replace(place: int, value: Any) -> Any:
    """Return a change of one part of a result."""
    return lambda *result: (*result[:place], value, *result[place + 1 :])


RESET = "failed in reset: it returned "
WRONG = {  # base, changes of step and reset, message
    "rewards": (Walk, replace(1, np.zeros(2)), unchanged, r"a reward of float64 \(2,\), expected"),
    "none": (Walk, replace(1, None), unchanged, "a reward of None, expected one number"),
    "complex": (Walk, replace(1, 1j), unchanged, "a reward of 1j, expected one number"),
    "ends": (Walk, replace(2, np.zeros(3)), unchanged, r"terminated of float64 \(3,\), expected"),
    "info": (Walk, replace(4, [1]), unchanged, r"an info of \[1\], expected a dict"),
    "nothing": (Walk, lambda *_: None, unchanged, "failed in step: it returned None, expected obs"),
    "no reset": (Walk, unchanged, lambda *_: None, f"{RESET}None, expected observation"),
    "all rewards": (Walks, replace(1, np.zeros(2)), unchanged, r"rewards of float64 \(2,\), exp"),
    "all ends": (Walks, replace(2, np.zeros((3, 2))), unchanged, r"terminated of float64 \(3, 2\)"),
    "all infos": (Walks, replace(4, 7), unchanged, "an info of 7, expected a dict"),
    "four": (Walks, lambda *all: all[:4], unchanged, "failed in step: it returned 4 values, expec"),
    "two alone": (Walks, unchanged, lambda s, _: s[:2], f"{RESET}an observation alone"),
}


@pytest.mark.parametrize("how", WRONG)
def test_wrong_result_is_reported(how: str):
    base, step_change, reset_change, message = WRONG[how]
    environment = r"an environment" if base is Walks else r"environment 0 \(seed 0\)"
    with pytest.raises(UserError, match=rf"^w: {environment} .*{message}"):
        play(gym_vec(**returning(base, step_change, reset_change)), 1)


@NEEDS_1_1
def test_fault_of_vectorized_form_is_reported(nothing_left):
    vec = gym_vec(FaultyWalks, name="faulty", total_agents=4, num_buffers=2, backend="vector")
    with pytest.raises(UserError, match="faulty: an environment failed in step: ZeroDivision") as e:
        play(vec)
    assert "in trip: raise" in str(e.value)


@pytest.mark.parametrize(("fault", "backend"), [("made", "sync"), ("exits when made", "auto")])
def test_fault_of_constructor_is_reported(fault: str, backend: str):
    said = "SystemExit: 0" if "exits" in fault else "ZeroDivisionError: tripped"
    with pytest.raises(UserError, match=f"failed when it was made: {said}") as caught:
        make(fault, backend)
    assert "gym_faults.py" in str(caught.value)


def test_info_that_can_not_be_pickled_is_ignored(nothing_left):
    with make("lost", "async") as vec:
        play(vec)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("killed", r"died: its process was killed by SIGKILL\n.*memory"),
        ("leaves well", r"died: its process ended with exit code 0"),
        ("closes descriptors", r"died: its process lost its connection to this one\n.*closerange"),
        ("interrupts", r"failed in its process: KeyboardInterrupt\n(.*\n)*.* in interrupts: raise"),
    ],
)
def test_process_that_dies_is_reported(fault: str, message: str, nothing_left, capfd):
    vec = make(fault, "async")
    with pytest.raises(UserError, match=rf"environment 3 \(seed 3\) {message}"):
        play(vec)
    vec.close()
    vec.close()
    with pytest.raises(RuntimeError, match="closed"):
        vec.wait(0)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("fault", ["hangs", "deaf"])
def test_process_that_hangs_is_reported_with_its_line(
    fault: str, nothing_left, tmp_path: Path, monkeypatch
):
    """A deaf process swallows the question."""
    monkeypatch.setattr(pool, "_CLOSE_TIMEOUT", 0.1)
    vec = make(fault, "async", timeout=1.0, env={"path": str(tmp_path / "pid")})
    with pytest.raises(
        UserError, match=r"environment 3 \(seed 3\) hangs: nothing came back for 1 seconds"
    ) as caught:
        play(vec)
    where = re.search(r"gym_faults\.py:\d+ in hangs: time\.sleep", str(caught.value))
    assert bool(where) == (fault != "deaf")  # which swallows what asks it
    assert "raise vec.timeout" in str(caught.value)
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text().split()[0]))


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
    """Sends Ctrl-C to the main process in its third step."""

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


@pytest.mark.parametrize("count", [1, 2])
def test_ctrl_c_ends_a_step_that_hangs(count: int, nothing_left):
    """A second Ctrl-C ends it at once, a single one after half a second."""

    class Hangs(Walk):
        def step(self, action):
            for _ in range(count):
                os.kill(os.getpid(), signal.SIGINT)
            time.sleep(20)
            raise AssertionError("it was held back")

    with gym_vec(Hangs, name="walk", total_agents=1, backend="sync") as vec:
        rows = started(vec)
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            step(vec, rows, 2)
        assert count == 2 or 0.4 < time.monotonic() - began < 10
        with pytest.raises(RuntimeError, match="closed"):
            vec.wait(0)


def test_processes_ignore_ctrl_c_while_they_start(tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "if 'multiprocessing' in ' '.join(sys.orig_argv):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
    )
    (tmp_path / "script.py").write_text(SCRIPT)
    words = [sys.executable, str(tmp_path / "script.py"), str(HERE), str(TESTS)]
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout == "run\n7.0 7.0\n" and "Interrupt" not in done.stderr


SCRIPT = """
import sys
sys.path += sys.argv[1:]
from gym_walk import Walk
from stepping import started, step
from puffer_mlx.vec.gym.make import GymFactory
from puffer_mlx.vec.python_vec import PythonVec

class Mine(Walk):
    def step(self, action):
        seen, _, *rest = super().step(action)
        return seen, 7.0, *rest

print("run")
with PythonVec(GymFactory("mine", Mine), total_agents=2, backend="async") as vec:
    print(*step(vec, started(vec), 1).rewards)
"""


UNCLOSED = (
    SCRIPT.partition("with ")[0]
    + """
vec = PythonVec(GymFactory("mine", Mine), total_agents=2, backend="async")
print(*step(vec, started(vec), 1).rewards)
"""
)


def test_program_ends_without_closing_its_environments(tmp_path: Path):
    (tmp_path / "script.py").write_text(UNCLOSED)
    words = [sys.executable, str(tmp_path / "script.py"), str(HERE), str(TESTS)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "run\n7.0 7.0\n")


PROGRAM = """
import signal, sys
sys.path += sys.argv[2:4]
from gym_faults import Faulty
from stepping import started, step
from puffer_mlx.vec.gym.make import GymFactory
from puffer_mlx.vec.python_vec import PythonVec
signal.signal(signal.SIGINT, signal.default_int_handler)
env = {"fault": sys.argv[4], "at": 1, "who": 1, "path": sys.argv[1]}
with PythonVec(GymFactory("faulty", Faulty, env), total_agents=3, backend="async") as vec:
    rows = started(vec)
    print("pids", *(process.pid for process in vec._envs[0].processes), flush=True)
    while True:
        step(vec, rows, 1)
"""


@pytest.mark.parametrize(
    ("number", "fault"), [(signal.SIGINT, "hangs"), (signal.SIGKILL, "hangs in c")]
)
def test_processes_end_with_their_parent(number: signal.Signals, fault: str, tmp_path: Path):
    words = [sys.executable, "-c", PROGRAM, str(tmp_path / "pid"), str(HERE), str(TESTS), fault]
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
    if number == signal.SIGINT:
        assert said.count("Traceback") == 1 and said.rstrip().endswith("KeyboardInterrupt")
    else:
        assert "Traceback" not in said
