"""Rollouts that are collected during training: results, failures, interrupts and resuming."""

import gc
import time
from collections.abc import Callable
from concurrent.futures import wait
from functools import cache, partial
from typing import Any, NamedTuple

import mlx.core as mx
import native_envs
import numpy as np
import oracles
import pytest
from oracles import named
from running import learned
from watching import acting, functions, replace_functions

from puffer_mlx import config, vec
from puffer_mlx.rollout.buffer import RolloutBuffer
from puffer_mlx.training import collector as collector_module
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.vec.native.c_functions import OpenHandle

Before = Callable[[str, int], None]  # is called with "send" or "wait", and the group

T, E = 4, 5  # steps of a rollout, epochs of a run
AGENTS = {"coded": 8, "squared": 8, "breakout": 8, "relay": 12}  # groups of six fill relay's
OPTIONS = f"""
    --device cpu --policy.hidden-size 8 --policy.num-layers 2 --vec.num-buffers 2
    --train.horizon {T} --train.minibatch-size 16 --train.learning-rate 0.02 --vec.seed 5
""".split()
pytestmark = pytest.mark.usefixtures("uncompiled")


def configure(name: str, overlap: bool, *more: str, epochs: int = E) -> config.Config:
    known = name if name in ("squared", "breakout") else "squared"
    size = ["--env.size", "3"] if known == "squared" else []
    agents = AGENTS[name]
    numbers = ["--vec.total-agents", agents, "--train.total-timesteps", epochs * agents * T]
    given = [*OPTIONS, *size, *map(str, numbers), f"--train.overlap={overlap}", *more]
    return config.load(known, given)


def environments(c: config.Config, name: str) -> Any:
    if name == "coded":
        return oracles.SmallVec(c.vec.total_agents, 2, (3, 2), masked=True)
    if name == "relay":
        counts = {"total_agents": c.vec.total_agents, "num_buffers": 2, "num_threads": 2}
        return native_envs.make("relay", seed=5, **counts)
    return vec.make(c, 2)


def start(
    name: str, overlap: bool, *more: str, epochs: int = E, before: Before | None = None
) -> Any:
    """Return a new trainer; ``before`` is called before each send and wait of environments."""
    c = configure(name, overlap, *more, epochs=epochs)
    made = environments(c, name)
    return Trainer(c, Through(made, before) if before else made)


class Through:
    """Wraps environments to call a function before each send and wait."""

    def __init__(self, inner: Any, before: Before) -> None:
        self.inner, self.before = inner, before
        self.spec, self.num_agents = inner.spec, inner.num_agents
        self.num_groups, self.final_observations = inner.num_groups, inner.final_observations
        self.num_environments, self.unused = inner.num_environments, inner.unused
        self.description = inner.description
        self.reset, self.log, self.state = inner.reset, inner.log, inner.state
        self.restore, self.close = inner.restore, inner.close
        self.busy_seconds = inner.busy_seconds

    def send(self, group, actions, out):
        self.before("send", group)
        self.inner.send(group, actions, out)

    def wait(self, group):
        self.before("wait", group)
        self.inner.wait(group)


class Failure(Exception):
    pass


class RaisingAt:
    """Callback that raises an error at the n-th call of one environment method."""

    def __init__(self, method: str, n: int, error: type[BaseException]) -> None:
        self.method = method
        self.left = n
        self.error = error

    def __call__(self, method: str, group: int) -> None:
        self.left -= method == self.method
        if method == self.method and self.left == 0:
            raise self.error


def once(function: Callable[..., Any], n: int, error: BaseException) -> Callable[..., Any]:
    """Wrap a function so that its n-th call raises an error."""
    left = [n]

    def call(*arguments, **how):
        left[0] -= 1
        if not left[0]:
            raise error
        return function(*arguments, **how)

    return call


def copies(rollout: collector_module.Rollout) -> dict[str, np.ndarray]:
    fields = rollout.buffer.fields
    return {name: np.array(array) for name, array in fields.items() if array is not None}


def watch_rollouts(trainer: Trainer) -> list[dict[str, np.ndarray]]:
    """Return a list that gets a copy of each rollout when training takes it."""
    seen, take = [], trainer.collector.take

    def watched(*wait):
        rollout = take(*wait)
        seen.append(copies(rollout))
        return rollout

    trainer.collector.take = watched  # type: ignore
    return seen


def assert_same(one: Any, other: Any) -> None:
    """Assert that two trees of arrays have the same bits."""
    mine, theirs = dict(named(one)), dict(named(other))
    assert mine.keys() == theirs.keys()
    different = [n for n in mine if np.array(mine[n]).tobytes() != np.array(theirs[n]).tobytes()]
    assert not different


def metrics_of(logs: dict[str, float]) -> dict[str, float]:
    """Return the metrics of an epoch that depend on the seed only and are always reported."""
    return {k: v for k, v in learned(logs).items() if k != "loss/first_ratio_error"}


def outcome(trainer: Trainer) -> dict[str, Any]:
    return {"weights": trainer.weights, **trainer.state().arrays}


# ---- results -------------------------------------------------------------------------------------


def finish_rollouts_before_training(trainer: Any) -> None:
    """Let a trainer finish each rollout before the concurrent update begins."""
    start_next = trainer.queue.start_next

    def started(weights):
        start_next(weights)
        trainer.collector.settle()

    trainer.queue.start_next = started


@pytest.mark.parametrize(("name", "reset"), [("coded", False), ("breakout", True)])
def test_an_overlapped_run_is_a_serial_one_whose_acting_weights_are_one_update_old(name, reset):
    overlapped, by_hand, newest = (
        start(name, overlap, f"--reset-state={reset}") for overlap in (True, False, False)
    )
    finish_rollouts_before_training(overlapped)
    rollouts, expected, other = map(watch_rollouts, (overlapped, by_hand, newest))
    began = before = overlapped.weights
    for epoch in range(E):
        now = overlapped.weights
        by_hand.queue.start_next(before)
        newest.weights = now
        logs = metrics_of(overlapped.step())
        assert logs == metrics_of(by_hand.step())
        assert_same(rollouts[-1], expected[-1])
        assert_same(overlapped.weights, by_hand.weights)
        newest.step()
        same = np.array_equal(rollouts[-1]["values"], other[-1]["values"])
        assert same == (epoch == 0), "the case is too easy"
        before = now
    assert_same(outcome(overlapped), outcome(by_hand))
    moved = [np.array(w["encoder"]["weight"]) for w in (began, overlapped.weights)]
    assert np.abs(moved[1] - moved[0]).max() > 1e-3


def test_an_evaluation_after_an_overlapped_run_acts_by_the_last_weights():
    trainer = start("coded", True)
    assert len(list(trainer)) == E and trainer.vec.steps == [E * T, E * T]
    used = []

    def collect(real, buffer, environments, weights, *more):
        used.append(weights)
        return real(buffer, environments, weights, *more)

    acting(trainer, collect)
    assert len(list(trainer.evaluate())) == len(used) == E // 2
    for weights in used:
        assert_same(weights, trainer.weights)


def test_overlap_takes_the_memory_of_a_second_buffer_and_the_weights():
    used = {}
    for overlap in (False, True):
        gc.collect()
        before = mx.get_active_memory()
        trainer = start("squared", overlap, "--policy.hidden-size", "64", epochs=100)
        used[overlap] = [mx.get_active_memory() - before for _ in trainer]
        buffer = sum(a.nbytes for a in trainer.collector.buffer.fields.values() if a is not None)
        weights = sum(w.nbytes for _, w in named(trainer.weights))
        del trainer
    for readings in used.values():  # the minimum, because a reading may be too high
        assert min(readings[70:]) <= min(readings[5:30]) + 1024
    more = min(used[True][5:]) - min(used[False][5:])
    assert 0 < more <= buffer + weights + 32768, (more, buffer, weights)


# ---- failures and interrupts of overlapped runs --------------------------------------------------


def nothing(call: str, group: int) -> None:
    pass


class Whole(NamedTuple):
    """Results of an undisturbed training run: records, weights of each epoch, final state."""

    records: list[dict[str, float]]
    weights: list[Any]  # before every epoch, and at the end
    end: dict[str, Any]


@cache
def undisturbed(name: str, before: Before | None = nothing) -> Whole:
    trainer = start(name, True, before=before)
    records, weights = [], [trainer.weights]
    for logs in trainer:
        records.append(metrics_of(logs))
        weights.append(trainer.weights)
    return Whole(records, weights, outcome(trainer))


def collects(trainer: Trainer) -> bool:
    """Return True if the trainer's other thread is collecting a rollout."""
    future = trainer.collector._future
    return future is not None and not future.done()


def assert_resumes(
    trainer: Trainer, name: str, whole: Whole, before: Before | None = nothing
) -> None:
    """Assert that a trainer and its resumed copy both end as the undisturbed run did."""
    assert not collects(trainer)
    assert_same(trainer.weights, whole.weights[trainer.epoch])
    other = start(name, True, before=before)
    assert other.restore(trainer.weights, trainer.state()) and other.epoch == trainer.epoch
    for going in (other, trainer):
        epoch = going.epoch
        assert [metrics_of(logs) for logs in going] == whole.records[epoch:]
        assert_same(outcome(going), whole.end)


def breaking_send(trainer: Any, n: int) -> None:
    trainer.vec.before = RaisingAt("send", n, Failure)


def breaking_collect(trainer: Any, after: bool) -> None:
    """Let the third rollout that C collects fail, before or after its steps."""
    assert trainer.acts_in_c
    collect = trainer.vec.collect
    checked = once(lambda collected: collected, 3, Failure())
    if after:
        trainer.vec.collect = lambda *arguments: checked(collect(*arguments))
    else:
        trainer.vec.collect = once(collect, 3, Failure())


def breaking_update(trainer: Any, function: str, n: int) -> None:
    broken = once(getattr(functions(trainer), function), n, Failure())
    replace_functions(trainer, **{function: broken})


@pytest.mark.parametrize(
    ("name", "breaking", "epoch"),
    [
        # The first or the last of the third rollout's 2 T sends fails.
        ("coded", partial(breaking_send, n=4 * T + 1), 2),
        ("relay", partial(breaking_send, n=6 * T), 2),
        ("squared", partial(breaking_collect, after=False), 2),
        ("relay", partial(breaking_collect, after=True), 2),
        ("coded", partial(breaking_update, function="targets", n=4), 1),
        ("squared", partial(breaking_update, function="gradients", n=7), 3),
    ],
    ids=lambda value: getattr(getattr(value, "func", None), "__name__", value),
)
def test_what_breaks_in_an_overlapped_run_is_repeated(name, breaking, epoch):
    before = None if breaking.func is breaking_collect else nothing
    whole = undisturbed(name, before)
    trainer = start(name, True, before=before)
    breaking(trainer)
    with pytest.raises(Failure):
        list(trainer)
    assert trainer.epoch == epoch
    assert_resumes(trainer, name, whole, before)


@pytest.mark.parametrize("n", (2, 2 * E - 1))
def test_ctrl_c_while_waiting_for_a_rollout_loses_nothing(monkeypatch, n):
    """An odd wait is in ``take``, an even one in ``settle``."""
    whole = undisturbed("coded")
    trainer = start("coded", True, before=lambda *_: time.sleep(0.002))
    monkeypatch.setattr(collector_module, "wait", once(wait, n, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        list(trainer)
    assert trainer.epoch == n // 2
    assert_resumes(trainer, "coded", whole)


def test_after_a_broken_serial_update_the_saved_state_is_consistent():
    trainer = start("coded", False)
    trainer.step()
    broken = once(functions(trainer).gradients, 2, Failure())
    replace_functions(trainer, gradients=broken)
    with pytest.raises(Failure):
        trainer.step()
    state = trainer.state()
    other = start("coded", False)
    other.restore(trainer.weights, state)
    assert other.vec.steps == [2 * T, 2 * T]
    rollouts = watch_rollouts(other)
    other.step()
    expected = [other.vec.rows(np.arange(8), 2 * T + t)[0] for t in range(T)]
    np.testing.assert_array_equal(rollouts[0]["observations"][:T], np.asarray(expected, np.float32))


# ---- failures within a rollout -------------------------------------------------------------------

# With these options a value depends on the observations so far, and on nothing else.
STILL = "--train.learning-rate", "0", "--reset-state=False"


def check_rows_follow(rollouts: list[dict[str, np.ndarray]], whole: list[dict[str, np.ndarray]]):
    """Assert that the last rollout continues the undisturbed run, at most T steps later.

    Values are functions of the recurrent states. Observations don't depend on actions.
    """
    done, last = (len(rollouts) - 1) * T, rollouts[-1]
    seen, values = (
        np.concatenate([each[name][:T] for each in whole]) for name in ("observations", "values")
    )
    for agent in range(values.shape[1]):
        gaps = [
            gap
            for gap in range(T + 1)
            if np.array_equal(seen[done + gap :][:T, agent], last["observations"][:T, agent])
            and np.array_equal(values[done + gap :][:T, agent], last["values"][:, agent])
        ]
        assert gaps, f"agent {agent}"


@cache
def undisturbed_rollouts(name: str) -> list[dict[str, np.ndarray]]:
    trainer = start(name, False, *STILL, before=nothing)
    rollouts = watch_rollouts(trainer)
    list(trainer)
    return rollouts


@pytest.mark.parametrize(
    ("name", "method", "n", "error"),
    [
        ("coded", "send", 9, Failure),
        ("relay", "send", 13, KeyboardInterrupt),
        ("relay", "wait", 15, Failure),
        ("coded", "wait", 20, KeyboardInterrupt),
    ],
)
def test_after_a_failed_rollout_the_next_begins_where_environments_are(name, method, n, error):
    """The groups are at different steps when it fails."""
    trainer = start(name, False, *STILL, before=RaisingAt(method, n, error))
    rollouts = watch_rollouts(trainer)
    trainer.step()
    with pytest.raises(error):
        list(trainer)
    failed_at = trainer.epoch
    trainer.step()
    assert trainer.epoch == failed_at + 1 == len(rollouts)
    check_rows_follow(rollouts, undisturbed_rollouts(name))


@pytest.mark.parametrize(
    ("overlap", "n", "again"), [(False, 13, 1), (True, 4 * T + 5, 0), (True, 4 * T + 5, 2)]
)
def test_a_rollout_may_fail_twice_where_states_can_not_be_saved(overlap, n, again):
    """The next rollout begins where the environments are, however the failed ones ended."""
    trainer = start("coded", overlap, *STILL, before=RaisingAt("send", n, Failure))
    trainer.vec.state = lambda: None  # as Python environments do
    rollouts = watch_rollouts(trainer)
    with pytest.raises(Failure):
        list(trainer)
    if again:
        trainer.vec.before = RaisingAt("send", again, Failure)
        with pytest.raises(Failure):
            trainer.step()
    trainer.step()
    check_rows_follow(rollouts, undisturbed_rollouts("coded"))


def test_an_interrupt_while_a_rollout_marks_its_last_row_leaves_no_mark(monkeypatch):
    """The last row of a rollout is the first row of the next one."""
    mark_last = RolloutBuffer.mark_last

    def interrupted(buffer):
        mark_last(buffer)
        raise KeyboardInterrupt

    trainer = start("coded", False, *STILL, before=nothing)
    rollouts = watch_rollouts(trainer)
    trainer.step()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(RolloutBuffer, "mark_last", interrupted)
        trainer.step()
    trainer.step()
    assert rollouts[-1]["terminals"].min() >= 0
    check_rows_follow(rollouts, undisturbed_rollouts("coded"))


def start_in_c(sleep_ms: int) -> Trainer:
    counts = {"total_agents": AGENTS["relay"], "num_buffers": 2, "num_threads": 2}
    vec = native_envs.make("relay", seed=5, env={"length": 7, "sleep_ms": sleep_ms}, **counts)
    trainer = Trainer(configure("relay", False, *STILL), vec)
    assert trainer.acts_in_c
    return trainer


def test_an_interrupted_rollout_in_c_is_dropped_and_the_run_resumes(monkeypatch):
    """Each thread stops after its current step, so agents are at different steps."""
    trainer, whole = start_in_c(sleep_ms=5), start_in_c(sleep_ms=0)
    rollouts, undisturbed = watch_rollouts(trainer), watch_rollouts(whole)
    list(whole)
    trainer.step()
    wait_for_step = OpenHandle.wait_for_step

    def interrupted(handle, call, *arguments):
        monkeypatch.setattr(OpenHandle, "wait_for_step", wait_for_step)
        first = trainer.collector.buffer.views.terminals[1]
        while not np.any(first == 0):  # no agent has made a step
            time.sleep(0.001)
        return wait_for_step(handle, once(call, 1, KeyboardInterrupt()), *arguments)

    monkeypatch.setattr(OpenHandle, "wait_for_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trainer.step()
    other = start_in_c(sleep_ms=5)
    assert other.restore(trainer.weights, trainer.state())
    resumed = watch_rollouts(other)
    trainer.step()
    other.step()
    check_rows_follow(rollouts, undisturbed)
    assert_same(resumed[0], rollouts[-1])
    assert_same(outcome(other), outcome(trainer))


@pytest.mark.parametrize("overlap", [False, True])
def test_a_run_may_resume_with_overlap_switched(overlap):
    """It differs by the lag, but begins with the same environments."""
    trainer = start("relay", overlap)
    for _ in range(3):
        trainer.step()
    other = start("relay", not overlap)
    assert other.restore(trainer.weights, trainer.state())
    rollouts, expected = map(watch_rollouts, (other, trainer))
    logs = list(other)
    assert [record["epoch"] for record in logs] == [4, 5]
    assert all(np.isfinite(record["loss/total"]) for record in logs)
    trainer.step()
    first, wanted = rollouts[0]["observations"][0], expected[0]["observations"][0]
    np.testing.assert_array_equal(first, wanted)
