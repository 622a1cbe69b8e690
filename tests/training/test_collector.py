"""Rollouts beside training: what that must not change, and how it stops, fails and goes on."""

import gc
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import wait
from typing import Any, NamedTuple

import gymnasium
import mlx.core as mx
import native_envs
import numpy as np
import oracles
import pytest
from oracles import named
from running import learned
from stepping import gym_vec
from watching import acting, functions, replace_functions

from puffer_mlx import config, vec
from puffer_mlx.errors import UserError
from puffer_mlx.ops import take_rows
from puffer_mlx.profiling.timeline import ROLLOUT, TRAIN, Trace
from puffer_mlx.rollout import acting as acting_module
from puffer_mlx.rollout.buffer import RolloutBuffer
from puffer_mlx.training import collector as collector_module
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.vec.native.c_functions import OpenHandle

Before = Callable[[str, int], None]  # gets "send" or "wait", and the group

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
    """A trainer. Its environments are behind ``before`` if that is given."""
    c = configure(name, overlap, *more, epochs=epochs)
    made = environments(c, name)
    return Trainer(c, Through(made, before) if before else made)


class Through:
    """Other environments, with something before every call; not more than the contract."""

    def __init__(self, inner: Any, before: Before) -> None:
        self.inner, self.before = inner, before
        self.spec, self.num_agents = inner.spec, inner.num_agents
        self.num_groups, self.finals = inner.num_groups, inner.finals
        self.num_environments, self.unread = inner.num_environments, inner.unread
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


class FailingOnce:
    """Raises at the n-th send since it was made; notes which threads send."""

    def __init__(self, n: int) -> None:
        self.left = n
        self.threads: set[str] = set()

    def __call__(self, call, group):
        self.threads.add(threading.current_thread().name)
        self.left -= call == "send"
        if call == "send" and self.left == 0:
            raise Failure("the environment broke")


def copies(rollout: collector_module.Rollout) -> dict[str, np.ndarray]:
    fields = rollout.buffer.fields
    return {name: np.array(array) for name, array in fields.items() if array is not None}


def watch_rollouts(trainer: Trainer) -> list[dict[str, np.ndarray]]:
    """Copies of every rollout, taken when training takes it: then nothing is under way."""
    seen, take = [], trainer.collector.take

    def watched(*wait):
        rollout = take(*wait)
        seen.append(copies(rollout))
        return rollout

    trainer.collector.take = watched  # type: ignore
    return seen


def check_same(one: Any, other: Any) -> None:
    """Trees of arrays, bit for bit."""
    mine, theirs = dict(named(one)), dict(named(other))
    assert mine.keys() == theirs.keys()
    different = [n for n in mine if np.array(mine[n]).tobytes() != np.array(theirs[n]).tobytes()]
    assert not different


def told(logs: dict[str, float]) -> dict[str, float]:
    """What of a record depends on the seed only; the deviation isn't found in every epoch."""
    return {k: v for k, v in learned(logs).items() if k != "loss/first_ratio_error"}


def outcome(trainer: Trainer) -> dict[str, Any]:
    return {"weights": trainer.weights, **trainer.state().arrays}


# ---- what it computes ----------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "reset"), [("squared", False), ("relay", True)])
def test_without_updates_rollouts_are_those_of_a_serial_run(name, reset):
    """Every field of every buffer, and what the environments report of it."""
    more = ["--train.learning-rate", "0", f"--reset-state={reset}"]
    found = []
    for overlap in (False, True):
        trainer = start(name, overlap, *more, epochs=12)
        rollouts = watch_rollouts(trainer)
        logs = [{k: v for k, v in r.items() if k.startswith("env/")} for r in trainer]
        found.append((rollouts, logs))
    (serial, serial_logs), (overlapped, overlapped_logs) = found
    assert serial_logs == overlapped_logs
    assert len(serial) == len(overlapped) == 12
    for one, other in zip(serial, overlapped, strict=True):
        check_same(one, other)
    assert len({one["observations"].tobytes() for one in serial}) > 6
    if name != "coded":
        assert sum(record.get("env/n", 0) for record in serial_logs) > 4


@pytest.mark.parametrize(("name", "reset"), [("coded", False), ("breakout", True)])
def test_the_weights_that_act_are_those_before_the_last_update(name, reset):
    """A serial run whose rollouts are given the older weights by hand is the overlapped one.

    So the lag is one update, and threads and streams change nothing else.
    """
    overlapped, by_hand, newest = (
        start(name, overlap, f"--reset-state={reset}") for overlap in (True, False, False)
    )
    rollouts, expected, other = map(watch_rollouts, (overlapped, by_hand, newest))
    began = before = overlapped.weights
    for epoch in range(E):
        now = overlapped.weights
        by_hand.queue.start_next(before)
        newest.weights = now
        logs = told(overlapped.step())
        assert logs == told(by_hand.step())
        check_same(rollouts[-1], expected[-1])
        check_same(overlapped.weights, by_hand.weights)
        newest.step()
        same = np.array_equal(rollouts[-1]["values"], other[-1]["values"])
        assert same == (epoch == 0), "the case is too easy"
        before = now
    check_same(outcome(overlapped), outcome(by_hand))
    moved = [np.array(w["encoder"]["weight"]) for w in (began, overlapped.weights)]
    assert np.abs(moved[1] - moved[0]).max() > 1e-3


def test_evaluation_after_an_overlapped_run_acts_by_the_last_weights():
    trainer = start("coded", True)
    assert len(list(trainer)) == E and trainer.collector.begun is None  # none for a sixth epoch
    assert trainer.vec.steps == [E * T, E * T]
    rollouts = watch_rollouts(trainer)
    evaluation = list(trainer.evaluate())
    assert len(evaluation) == len(rollouts) == E // 2
    weights = {
        part: [{"weight": oracles.f64(layer["weight"])} for layer in w]
        if isinstance(w, list)
        else {"weight": oracles.f64(w["weight"])}
        for part, w in trainer.weights.items()
    }
    for rollout in rollouts:
        _, values = oracles.policy(weights, rollout["observations"][:T])
        np.testing.assert_allclose(rollout["values"], values, rtol=0, atol=1e-5)


# ---- buffers -------------------------------------------------------------------------------------

ARRIVING = ("observations", "rewards", "terminals", "masks")


class Watch:
    """Which buffer is written and which is trained on at any time; and what training reads.

    Training sleeps now and then, and reads again whatever it gathers: ``check`` compares that with
    what the environments sent.
    """

    def __init__(self, trainer: Any, sleep: Callable[[], None]) -> None:
        self.trainer, self.sleep = trainer, sleep
        self.writing: Any = None
        self.reading: Any = None
        self.both = 0  # minibatches with a rollout beside them
        self.kept: list[tuple[np.ndarray, dict[str, mx.array]]] = []
        learner = trainer.learner
        acting(trainer, self.collect)
        self._prepare, learner.prepare = learner.prepare, self.prepare
        self._steps = functions(trainer)
        replace_functions(trainer, gather=self.gather, gradients=self.gradients)

    def collect(self, collect, buffer, *arguments):
        assert buffer is not self.reading
        self.writing = buffer
        try:
            return collect(buffer, *arguments)
        finally:
            self.writing = None

    def prepare(self, rollout, *arguments):
        update = self._prepare(rollout, *arguments)
        submit, wait = update.submit, update.wait

        def submitted():
            assert self.writing is not rollout.buffer
            self.reading = rollout.buffer
            submit()

        def waited():
            try:
                return wait()
            finally:
                self.reading = None

        update.submit, update.wait = submitted, waited
        return update

    def gather(self, fields, rows):
        self.both += self.writing is not None
        written = self.reading.fields
        read = {n: take_rows(a, rows, T) for n, a in written.items() if a is not None}
        minibatch = self._steps.gather(fields, rows)
        observations, actions, masks, not_done, *_ = minibatch
        read |= {"seen": observations, "done": actions, "legal": masks, "ended": 1 - not_done}
        self.kept.append((np.array(rows), {n: a for n, a in read.items() if a is not None}))
        self.sleep()
        return minibatch

    def gradients(self, *arguments):
        self.sleep()
        return self._steps.gradients(*arguments)

    def check(self, epoch: int, rollout: dict[str, np.ndarray]) -> None:
        """Each row is one agent's, of this epoch's times, and whole."""
        environments, k = self.trainer.vec.inner, epoch * T + np.arange(T)
        sent = np.concatenate([np.stack(sent[-2 * T :]) for sent in environments.sent], axis=1)
        first = len(environments.sent[0]) - len(environments.sent[0][-2 * T :])
        for agents, read in self.kept:
            read = {name: np.array(array) for name, array in read.items()}
            for name in "actions", "logprobs", "values":  # the policy's: as when it was taken
                assert np.array_equal(read[name], rollout[name][:, agents]), name
            assert np.array_equal(read["actions"], sent[k - first][:, agents])
            for t, step in enumerate(k):
                expected = dict(zip(ARRIVING, environments.rows(agents, step), strict=True))
                for name, array in expected.items():
                    assert np.array_equal(read[name][t], np.float32(array)), (name, step)
            assert np.array_equal(read["seen"], read["observations"])
            assert np.array_equal(read["done"], read["actions"].reshape(read["done"].shape))
            assert np.array_equal(read["legal"], read["masks"].reshape(read["legal"].shape))
            assert np.array_equal(read["ended"], read["terminals"])
        self.kept = []


@pytest.mark.parametrize("overlap", [False, True])
def test_no_buffer_is_torn_in_epochs_of_random_length(overlap):
    """Both halves sleep at random, so each is the longer one at times, in all orders."""
    epochs = 150 if overlap else 30
    rng = {name: np.random.default_rng(i) for i, name in enumerate(("environments", "training"))}

    def sleep(name, share):
        if rng[name].random() < share:
            time.sleep(rng[name].uniform(0, 0.002))

    more = ["--policy.reset-on-terminal", "True", "--policy.num-layers", "1"]
    before = lambda *_: sleep("environments", 0.1)  # noqa: E731
    trainer = start("coded", overlap, *more, epochs=epochs, before=before)
    rollouts = watch_rollouts(trainer)
    watch = Watch(trainer, lambda: sleep("training", 0.3))
    for epoch in range(epochs):
        trainer.step()
        watch.check(epoch, rollouts.pop())
    assert trainer.vec.inner.steps == [epochs * T, epochs * T]
    assert (watch.both > epochs / 4) if overlap else not watch.both


def test_both_halves_work_at_the_same_time(tmp_path):
    """As the timeline shows it; one after the other without overlap."""
    epochs = 12
    for overlap in (False, True):
        path = tmp_path / f"{overlap}.json"
        before = lambda *_: time.sleep(0.001)  # noqa: E731
        trainer = start("coded", overlap, epochs=epochs, before=before)
        trainer.profiler.trace = Trace(path, 1, epochs)
        real = functions(trainer)

        def gradients(*arguments, real=real):
            time.sleep(0.002)
            return real.gradients(*arguments)

        replace_functions(trainer, gradients=gradients)
        list(trainer)
        trainer.profiler.close()
        events = json.loads(path.read_text())["traceEvents"]
        rows = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
        spans = {ROLLOUT: [], TRAIN: []}
        for event in events:
            waits = event["name"] in ("train_wait", "eval_idle")
            if event["ph"] == "X" and not waits and rows[event["tid"]] in spans:
                begin = event["ts"]
                spans[rows[event["tid"]]].append((begin, begin + event["dur"]))
        marks = [e["ts"] for e in events if e["name"].startswith("epoch ")]
        assert len(marks) == epochs - 1 and spans[ROLLOUT] and spans[TRAIN]
        shared = [
            max(begin, b)
            for begin, end in spans[TRAIN]
            for b, e in spans[ROLLOUT]
            if min(end, e) - max(begin, b) > 1  # a microsecond: times are rounded
        ]
        epochs_shared = set(np.searchsorted(marks, shared).tolist())
        # the last epoch has no next rollout
        assert len(epochs_shared) >= epochs - 3 if overlap else not shared


def test_memory_is_a_buffer_and_the_weights_more():
    used = {}
    for overlap in (False, True):
        gc.collect()  # what tests before left, so that nothing of it is freed meanwhile
        before = mx.get_active_memory()
        for _ in range(50):
            time.sleep(0.01)
            before = min(before, mx.get_active_memory())
        trainer = start("squared", overlap, "--policy.hidden-size", "64", epochs=200)
        used[overlap] = [mx.get_active_memory() - before for _ in trainer]
        buffer = sum(a.nbytes for a in trainer.collector.buffer.fields.values() if a is not None)
        weights = sum(w.nbytes for _, w in named(trainer.weights))
        del trainer
    # A reading may be too high: threads may be about to free something. The least of many is
    # off by a few numbers at most; what grows by 8 bytes an epoch is seen.
    for readings in used.values():
        assert min(readings[150:]) <= min(readings[5:50]) + 1024
    more = min(used[True][5:]) - min(used[False][5:])
    assert 0 < more <= buffer + weights + 32768, (more, buffer, weights)


# ---- what stops it -------------------------------------------------------------------------------


def nothing(call: str, group: int) -> None:
    pass


class Whole(NamedTuple):
    """A run that nothing stops."""

    records: list[dict[str, float]]
    weights: list[Any]  # before every epoch, and at the end
    end: dict[str, Any]


def undisturbed(name: str, before: Before | None = nothing) -> Whole:
    trainer = start(name, True, before=before)
    records, weights = [], [trainer.weights]
    for logs in trainer:
        records.append(told(logs))
        weights.append(trainer.weights)
    return Whole(records, weights, outcome(trainer))


def check_goes_on(
    trainer: Trainer, name: str, whole: Whole, before: Before | None = nothing
) -> None:
    """Nothing is under way. A new trainer goes on from the state as the whole run did, and so does
    the trainer itself."""
    assert not trainer.collector.in_progress
    check_same(trainer.weights, whole.weights[trainer.epoch])
    other = start(name, True, before=before)
    assert other.restore(trainer.weights, trainer.state()) and other.epoch == trainer.epoch
    for going in (other, trainer):
        epoch = going.epoch
        assert [told(logs) for logs in going] == whole.records[epoch:]
        check_same(outcome(going), whole.end)


@pytest.mark.parametrize(("name", "at"), [("coded", "first"), ("relay", "last")])
def test_an_environment_that_breaks_beside_training(name, at):
    """It shows at the step that needs the rollout, and the next one begins it again."""
    whole = undisturbed(name)
    sends = 2 * T  # of a rollout
    n = {"first": 2 * sends + 1, "last": 3 * sends}[at]
    fails = FailingOnce(n)
    trainer = start(name, True, before=fails)
    assert [told(trainer.step()) for _ in range(2)] == whole.records[:2]
    with pytest.raises(Failure):
        trainer.step()
    assert trainer.epoch == 2
    check_goes_on(trainer, name, whole)
    assert fails.threads == {"collector"}  # the second attempt too: streams are a thread's own


@pytest.mark.parametrize(("name", "after"), [("squared", False), ("relay", True)])
def test_a_rollout_in_c_that_breaks_beside_training(name, after):
    """Before its first step, or after its last one."""
    whole = undisturbed(name, before=None)
    trainer = start(name, True)
    collect, left = trainer.vec.collect, [3]

    def breaks(*arguments):
        left[0] -= 1
        if after or left[0]:
            collected = collect(*arguments)
        if not left[0]:
            raise Failure
        return collected

    trainer.vec.collect = breaks
    for _ in range(2):
        trainer.step()
    with pytest.raises(Failure):
        trainer.step()
    check_goes_on(trainer, name, whole, before=None)
    assert left[0] < -1  # not by other means


def once(function: Callable[..., Any], n: int, error: BaseException) -> Callable[..., Any]:
    """The function, but its n-th call raises."""
    left = [n]

    def call(*arguments, **how):
        left[0] -= 1
        if not left[0]:
            raise error
        return function(*arguments, **how)

    return call


@pytest.mark.parametrize(
    ("name", "function", "error"),
    [("coded", "targets", Failure), ("squared", "gradients", KeyboardInterrupt)],
)
def test_training_that_breaks(name, function, error):
    """In the first minibatch of an epoch or its second, with the next rollout beside it."""
    whole = undisturbed(name)
    for n in (1, 4, 7):
        trainer = start(name, True, before=nothing)
        steps = functions(trainer)
        broken = {function: once(getattr(steps, function), n, error())}
        replace_functions(trainer, **broken)
        epoch = (n - 1) // 2
        assert [told(trainer.step()) for _ in range(epoch)] == whole.records[:epoch]
        with pytest.raises(error):
            trainer.step()
        assert trainer.epoch == epoch
        check_goes_on(trainer, name, whole)


@pytest.mark.parametrize("n", (1, 2, 2 * E - 1))
def test_ctrl_c_while_a_rollout_is_waited_for(monkeypatch, n):
    """In ``take`` (odd) or in ``settle``: the rollout is finished first, and isn't lost."""
    whole = undisturbed("coded")
    trainer = start("coded", True, before=lambda *_: time.sleep(0.002))  # so there is a wait
    monkeypatch.setattr(collector_module, "wait", once(wait, n, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        list(trainer)
    assert not trainer.collector.in_progress
    assert trainer.epoch == n // 2  # an epoch that only waits for the next rollout is trained
    check_goes_on(trainer, "coded", whole)


def test_ctrl_c_during_the_evaluation(monkeypatch):
    """No thread steps the environments when it is out: they may be closed then."""
    trainer = start("coded", True, before=lambda *_: time.sleep(0.002))
    list(trainer)
    monkeypatch.setattr(collector_module, "wait", once(wait, 1, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        list(trainer.evaluate())
    assert trainer.collector.begun is not None and not trainer.collector.in_progress


def test_training_that_breaks_without_overlap():
    """The rollout is lost; what is saved are environments and rows that belong together."""
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


# ---- a rollout that fails in the middle ----------------------------------------------------------

# With these a value depends on all observations before it, and on nothing else.
STILL = "--train.learning-rate", "0", "--reset-state=False"


class RaisingAt:
    """Raises an error at the n-th call of one method of the environments."""

    def __init__(self, method: str, n: int, error: type[BaseException]) -> None:
        self.method, self.left, self.error = method, n, error

    def __call__(self, method: str, group: int) -> None:
        self.left -= method == self.method
        if method == self.method and self.left == 0:
            raise self.error


def unsaved(trainer: Any) -> None:
    """Have the environments say that their state can't be saved, as those in Python do."""
    trainer.vec.state = lambda: None


def check_rows_follow(rollouts: list[dict[str, np.ndarray]], whole: list[dict[str, np.ndarray]]):
    """The last rollout has rows and values of an undisturbed run, up to T steps further on.

    Values show that the recurrent states are right, too.
    Nothing of these environments' observations depends on actions.
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


def undisturbed_rollouts(name: str) -> list[dict[str, np.ndarray]]:
    trainer = start(name, False, *STILL, before=nothing)
    rollouts = watch_rollouts(trainer)
    list(trainer)
    return rollouts


@pytest.mark.parametrize("error", [Failure, KeyboardInterrupt])
@pytest.mark.parametrize(("method", "n"), [("send", 9), ("send", 13), ("wait", 15), ("wait", 20)])
@pytest.mark.parametrize("name", ["coded", "relay"])
def test_a_failed_rollout_is_dropped_and_the_next_begins_with_what_is_there(name, method, n, error):
    """Acting through MLX, one group after the other, so the groups are at different steps."""
    trainer = start(name, False, *STILL, before=RaisingAt(method, n, error))
    rollouts = watch_rollouts(trainer)
    trainer.step()
    with pytest.raises(error):
        list(trainer)
    failed_at = trainer.epoch
    trainer.step()
    assert trainer.epoch == failed_at + 1 == len(rollouts)
    check_rows_follow(rollouts, undisturbed_rollouts(name))


@pytest.mark.parametrize("name", ["coded", "relay", "squared"])
def test_a_checkpoint_after_a_failed_rollout_goes_on_as_the_trainer_does(name):
    trainer = start(name, False, before=RaisingAt("send", 13, Failure))
    trainer.step()
    with pytest.raises(Failure):
        trainer.step()
    other = start(name, False, before=nothing)
    assert other.restore(trainer.weights, trainer.state()) and other.epoch == 1
    expected, found = ([told(logs) for logs in each] for each in (trainer, other))
    assert found == expected and len(found) == E - 1
    check_same(outcome(other), outcome(trainer))


@pytest.mark.parametrize("again", [1, 2])
def test_a_rollout_that_fails_twice(again):
    """Also where the second one fails before its first step."""
    trainer = start("coded", False, *STILL, before=RaisingAt("send", 13, Failure))
    rollouts = watch_rollouts(trainer)
    trainer.step()
    with pytest.raises(Failure):
        trainer.step()
    trainer.vec.before = RaisingAt("send", 2 * again - 1, Failure)
    with pytest.raises(Failure):
        trainer.step()
    trainer.step()
    check_rows_follow(rollouts, undisturbed_rollouts("coded"))


@pytest.mark.parametrize("is_marked", [False, True])
def test_an_interrupt_while_a_rollout_marks_its_last_row(monkeypatch, is_marked):
    """That row is the first of the next rollout, which must not contain the mark."""
    mark_last = RolloutBuffer.mark_last

    def interrupted(buffer):
        if is_marked:
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


@pytest.mark.parametrize("again", [0, 2, 3])
def test_failed_rollouts_beside_training_without_a_saved_state(again):
    """The next attempt begins where the environments are, also after a second failure."""
    trainer = start("coded", True, *STILL, before=RaisingAt("send", 2 * 2 * T + 5, Failure))
    unsaved(trainer)
    rollouts = watch_rollouts(trainer)
    for _ in range(2):
        trainer.step()
    with pytest.raises(Failure):
        trainer.step()
    if again:
        trainer.vec.before = RaisingAt("send", again, Failure)
        with pytest.raises(Failure):
            trainer.step()
    trainer.step()
    check_rows_follow(rollouts, undisturbed_rollouts("coded"))


def start_in_c(sleep_ms: int) -> Trainer:
    counts = {"total_agents": AGENTS["relay"], "num_buffers": 2, "num_threads": 2}
    vec = native_envs.make("relay", seed=5, env={"length": 7, "sleep_ms": sleep_ms}, **counts)
    trainer = Trainer(configure("relay", False, *STILL), vec)
    assert trainer.acts_in_c
    return trainer


def test_a_rollout_in_c_that_is_interrupted(monkeypatch):
    """Its threads stop after the steps that they are in, so agents are at different steps."""
    trainer, whole = start_in_c(sleep_ms=5), start_in_c(sleep_ms=0)
    rollouts, undisturbed = watch_rollouts(trainer), watch_rollouts(whole)
    list(whole)
    trainer.step()
    until_done = OpenHandle.until_done

    def interrupted(handle, call, *arguments):
        monkeypatch.setattr(OpenHandle, "until_done", until_done)
        first = trainer.collector.buffer.views.terminals[1]
        while not np.any(first == 0):  # until an agent has made a step
            time.sleep(0.001)
        return until_done(handle, once(call, 1, KeyboardInterrupt()), *arguments)

    monkeypatch.setattr(OpenHandle, "until_done", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trainer.step()
    other = start_in_c(sleep_ms=5)
    assert other.restore(trainer.weights, trainer.state())
    resumed = watch_rollouts(other)
    trainer.step()
    other.step()
    check_rows_follow(rollouts, undisturbed)
    check_same(resumed[0], rollouts[-1])
    check_same(outcome(other), outcome(trainer))


@pytest.mark.parametrize("overlap", [False, True])
def test_an_evaluation_after_training_that_broke(overlap):
    """It needs the memory of the rollout that was to be trained on, which is dropped."""
    trainer = start("coded", overlap)
    trainer.step()
    replace_functions(trainer, gradients=once(functions(trainer).gradients, 2, Failure()))
    with pytest.raises(Failure):
        trainer.step()
    assert trainer.queue.rollout is not None
    rollouts = watch_rollouts(trainer)
    evaluated = len(list(trainer.evaluate()))
    trained, prepare = [], trainer.learner.prepare

    def watched(rollout, *arguments):
        trained.append(copies(rollout))
        return prepare(rollout, *arguments)

    trainer.learner.prepare = watched
    trainer.step()
    assert 0 < evaluated < len(rollouts)
    check_same(trained[0], rollouts[evaluated])


class Counting(gymnasium.Env):
    """Observes how often it has stepped, and fails in one step if it is told to."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, fails_at: int = 0) -> None:
        self.fails_at = fails_at

    def observed(self) -> np.ndarray:
        return np.array([self.offset, self.steps / 100], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.steps, self.offset = 0, self.np_random.random()
        return self.observed(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict]:
        self.steps += 1
        if self.steps == self.fails_at:
            raise Failure("the environment broke")
        return self.observed(), 1.0, False, False, {}


def start_counting(fails_at: int = 0) -> Trainer:
    c = configure("coded", False, *STILL)
    how: dict[str, Any] = {"total_agents": 8, "num_buffers": 2, "backend": "sync"}
    return Trainer(c, gym_vec(Counting, name="counting", env={"fails_at": fails_at}, **how))


@pytest.mark.parametrize("in_c", [False, True])
def test_an_interrupt_between_steps_of_gymnasium(monkeypatch, in_c):
    if not in_c:
        monkeypatch.setattr(acting_module, "make_actor", lambda *_: None)
    trainer, whole = start_counting(), start_counting()
    assert trainer.acts_in_c == in_c
    rollouts, undisturbed = watch_rollouts(trainer), watch_rollouts(whole)
    list(whole)
    trainer.step()
    trainer.vec.send = once(trainer.vec.send, 6, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        trainer.step()
    trainer.step()
    check_rows_follow(rollouts, undisturbed)


def test_an_exception_in_a_step_of_gymnasium():
    """The environments are closed then; what was learned can be saved and goes on with new ones."""
    trainer = start_counting(fails_at=T + 2)
    trainer.step()
    with pytest.raises(UserError, match="the environment broke"):
        trainer.step()
    with pytest.raises(RuntimeError, match="counting: the environments are closed"):
        trainer.step()
    other = start_counting()
    assert not other.restore(trainer.weights, trainer.state())
    assert other.epoch == 1
    assert len(list(other)) == E - 1


@pytest.mark.parametrize("overlap", [False, True])
def test_going_on_with_overlap_changed(overlap):
    """Not identical, since the lag changes, but from the same weights and environments."""
    trainer = start("relay", overlap)
    for _ in range(3):
        trainer.step()
    other = start("relay", not overlap)
    assert other.restore(trainer.weights, trainer.state())
    rollouts, mine = map(watch_rollouts, (other, trainer))
    logs = list(other)
    assert [record["epoch"] for record in logs] == [4, 5]
    assert all(np.isfinite(record["loss/total"]) for record in logs)
    list(trainer)
    for name in ("observations", "masks"):  # both begin with what the environments last sent
        np.testing.assert_array_equal(mine[0][name][0], rollouts[0][name][0])
    # The lag is gone at once, or there is none before an update.
    same = [np.array_equal(a["values"], b["values"]) for a, b in zip(mine, rollouts, strict=True)]
    assert same == ([False, False] if overlap else [True, False])
