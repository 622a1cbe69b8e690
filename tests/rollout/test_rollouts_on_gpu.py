"""Whole rollouts in one launch, which runs as C++, beside environments and policies of the host."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from emulated_run import emulated_gpu
from mlx.utils import tree_map
from oracles import named
from watching import everything

from puffer_mlx import config
from puffer_mlx.config import Policy, Torch
from puffer_mlx.errors import UserError
from puffer_mlx.policy import rollout_on_gpu as kernels
from puffer_mlx.policy.policy import make_policy
from puffer_mlx.policy.rollout_on_gpu import EnvOutputs
from puffer_mlx.ppo import update
from puffer_mlx.profiling.phases import PhaseTimer
from puffer_mlx.rollout import in_steps
from puffer_mlx.rollout import on_gpu as on_gpu_rollouts
from puffer_mlx.rollout.acting import choose_acting
from puffer_mlx.rollout.buffer import RolloutBuffer
from puffer_mlx.rollout.on_gpu import (
    BufferOnGPU,
    EnvironmentsOnGPU,
    RolloutsOnGPU,
    rollouts_in_one_launch,
    rollouts_in_steps,
)
from puffer_mlx.rollout.seats import seats_in_blocks
from puffer_mlx.system.backend import building_for
from puffer_mlx.training import collectors, placement, trainer
from puffer_mlx.training.learner import Update
from puffer_mlx.training.placement import Acting, Placement
from puffer_mlx.vec.native.make import find_environment
from puffer_mlx.vec.native.vec import NativeVec

CPU = mx.Device(mx.cpu)
N, T, GROUPS = 18, 24, 2  # a block that isn't full
LONG = ("craftax_classic", "g2048")  # an episode takes some 150 steps
TIMER = PhaseTimer("", enabled=False)
SETTINGS = {  # that let episodes end soon; of breakout, that the ball falls at once
    "squared": {"size": 5},
    "memory": {"length": 3},
    "g2048": {},
    "connect4": {"opponent_skill": 0.7},
    "catch": {"balls": 1, "ball_speed": 8},
    "cartpole": {},
    "cartpole_continuous": {},
    "breakout": {"frameskip": 40},
    "craftax_classic": {},
}
SEATS = {"soccer": 4, "connect4_two": 2, "rock_paper_scissors": 2}  # of an environment
SEVERAL = {"soccer": {}, "connect4_two": {"opening_stones": 20}, "rock_paper_scissors": {}}


def opened(name: str, agents: int, groups: int, env: dict[str, Any]) -> NativeVec:
    folder = find_environment(name)
    return NativeVec(
        folder, total_agents=agents, num_buffers=groups, num_threads=1, env=env, seed=7
    )


def environments(name: str) -> NativeVec:
    return opened(
        name,
        N * SEATS.get(name, 1),
        GROUPS,
        {**config.load(name).env, **(SETTINGS | SEVERAL)[name]},
    )


def streams() -> list[Any]:
    return [mx.default_stream(mx.cpu)]


class Run:
    """Environments, a policy, and a way of acting: on a GPU, or through MLX on the host.

    On a GPU in one launch, or ``in_steps``.
    """

    def __init__(
        self,
        name: str,
        whole: bool,
        network: str = "MinGRU",
        precision: str = "",
        in_steps: bool = False,
        opponents: int = 0,
        width: int = 0,
    ) -> None:
        self.agents = n = N * SEATS.get(name, 1)
        vec = environments(name)
        seats = seats_in_blocks(vec, opponents, 0.17) if opponents else None
        width = width or (32 if precision else 8)
        settings = Policy(hidden_size=width, num_layers=2, reset_on_terminal=True)
        self.policy = make_policy(vec.spec, settings, Torch(network=network))
        weights = [self.policy.init(mx.random.key(k)) for k in range(1 + opponents)]
        self.weights: Any = weights if opponents else weights[0]
        with building_for("cuda", lambda *_, **__: []):
            kernel: Any = rollouts_in_one_launch(self.policy, vec, T, precision, seats)
            assert kernel is None or bool(precision) == (kernel.rows(N) is not None)
        if in_steps:
            kernel = rollouts_in_steps(self.policy, vec, T, "", seats)
        assert kernel is not None or not whole
        self.vec: Any = EnvironmentsOnGPU(vec, kernel) if whole and kernel else vec
        buffer = BufferOnGPU if whole else RolloutBuffer
        self.buffer: Any = buffer(vec.spec, T, n, GROUPS)
        self.buffer.reset(self.vec)
        self.states = [self.policy.initial_state(n // GROUPS) for _ in range(GROUPS)]
        if whole:
            self.way: Any = RolloutsOnGPU(self.vec.kernel, streams, TIMER)
        else:
            given = self.policy, vec, streams, TIMER
            self.way = choose_acting(CPU, "fp32", *given, seats)

    def rollout(self, seed: int) -> dict[str, np.ndarray]:
        """The rollout's fields, of T steps."""
        self.buffer.begin(self.buffer)
        noise = self.policy.distribution.noise(mx.random.key(seed), (T, self.agents))
        mx.eval(noise, self.states)
        given = self.buffer, self.vec, self.weights, self.states, noise
        self.states = self.way.collect(*given)
        fields = self.buffer.fields.items()
        return {name: np.array(a)[:T] for name, a in fields if a is not None}


BY_ROWS = "memory", "cartpole", "cartpole_continuous", "breakout", "squared", "connect4"
WAYS = [*zip(SETTINGS, cycle(["MinGRU", "LSTM", "MinGRU", "GRU", "MLP"]), cycle([""]))]


STEPS = [(name, network, "steps") for name, network, _ in WAYS]


def assert_alike(ours: Run, host: Run, form: str, rollouts: int, name: str) -> None:
    """Rollouts of kernels of a form beside the host's: whole numbers are the same to the bit."""
    rounded, ends = name == "cartpole_continuous", 0.0  # actions are rounded as features are
    for seed in range(rollouts):
        with emulated_gpu() as gpu:
            found = ours.rollout(seed)
        expected = host.rollout(seed)
        assert {each for each in gpu.names if each.startswith(form)}
        assert form.startswith("step_") or len(gpu.names) <= 2
        ends += found["terminals"].sum()
        for field in ("actions", "observations", "rewards", "terminals", "masks"):
            if field in expected and rounded:
                np.testing.assert_allclose(found[field], expected[field], 0, 1e-4, err_msg=field)
            elif field in expected:
                np.testing.assert_array_equal(found[field], expected[field], field)
        for field in ("logprobs", "values"):
            np.testing.assert_allclose(found[field], expected[field], 0, 2e-4, err_msg=field)
        for state, other in zip(named(ours.states), named(host.states), strict=True):
            np.testing.assert_allclose(state[1], other[1], 0, 2e-4)
        assert ours.vec.log() == pytest.approx(host.vec.log(), rel=1e-5)
    assert ends > 0, "no episode ended"
    if not rounded:
        np.testing.assert_array_equal(ours.vec.state(), host.vec.state())


@pytest.mark.parametrize(
    ("name", "network", "precision"),
    [*WAYS, *((name, "MinGRU", "fp32") for name in BY_ROWS), *STEPS],
)
def test_rollouts_are_the_hosts(name, network, precision):
    """In blocks of few agents, of many by matrix units, and in a few launches a step."""
    in_steps = precision == "steps"
    precision = "" if in_steps else precision
    ours, host = Run(name, True, network, precision, in_steps), Run(name, False, network, precision)
    form = "step_" if in_steps else "rows_" if precision else "rollout_"
    assert_alike(ours, host, form, 10 if name in LONG else 2, name)


@pytest.mark.parametrize(("form", "precision"), [("rollout", ""), ("rows", "fp32"), ("step", "")])
def test_hidden_observations_are_the_hosts(form, precision, monkeypatch):
    """Observations that Breakout can leave at 0."""
    monkeypatch.setitem(SETTINGS, "breakout", {"frameskip": 40, "hide_balls_and_width": 1})
    ours = Run("breakout", True, "MinGRU", precision, form == "step")
    host = Run("breakout", False, "MinGRU", precision)
    assert_alike(ours, host, f"{form}_", 2, "breakout")
    assert not np.array(ours.buffer.fields["observations"])[..., 8:10].any()


@pytest.mark.parametrize("form", ["rollout", "step"])
@pytest.mark.parametrize("opponents", [0, 2])
@pytest.mark.parametrize(
    ("name", "network"), [*zip(SEVERAL, ["MinGRU", "LSTM", "MLP"], strict=True)]
)
def test_agents_of_one_environment_and_opponents(name, network, opponents, form):
    """Opponents have weights of their own."""
    ours = Run(name, True, network, in_steps=form == "step", opponents=opponents)
    host = Run(name, False, network, opponents=opponents)
    assert_alike(ours, host, f"{form}_", 3 if name == "soccer" else 2, name)


@pytest.mark.parametrize(("name", "rows"), [("connect4", 32), ("cartpole_continuous", 16)])
def test_weights_from_memory_change_nothing(name, rows, monkeypatch):
    """To the bit: two layers that a block has room for beside its agents, or a tile of them."""
    monkeypatch.setattr(kernels, "ROWS_OF_A_BLOCK", (rows,))
    runs = [Run(name, True, precision="bf16", width=128) for _ in range(2)]

    def rollout(run, seed, room, kept):
        monkeypatch.setattr(kernels, "shared_pool_limits", lambda: (512, room))
        assert run.vec.kernel.rows(N)["KEPT"] == kept
        with emulated_gpu():
            return run.rollout(seed)

    for seed in range(2):
        expected = rollout(runs[0], seed, 10**6, 2)
        found = rollout(runs[1], seed, 232448, 0)
        for field, array in expected.items():
            np.testing.assert_array_equal(found[field], array, field)
        for state, other in zip(*(named(run.states) for run in runs), strict=True):
            np.testing.assert_array_equal(np.array(state[1]), np.array(other[1]))


@pytest.mark.parametrize(("steps", "in_steps"), [(1, False), (7, False), (7, True)])
def test_steps_of_a_launch_change_nothing(steps, in_steps):
    """To the bit; connect4 has masks and a player that draws."""
    whole, parts = (Run("connect4", True, in_steps=in_steps) for _ in range(2))
    parts.way.steps = steps
    for seed in range(2):
        with emulated_gpu():
            expected, found = whole.rollout(seed), parts.rollout(seed)
        assert found.keys() == expected.keys()
        for field, array in expected.items():
            np.testing.assert_array_equal(found[field], array, field)
        for state, other in zip(named(parts.states), named(whole.states), strict=True):
            np.testing.assert_array_equal(np.array(state[1]), np.array(other[1]))
        assert parts.vec.log() == pytest.approx(whole.vec.log(), rel=1e-6)
    np.testing.assert_array_equal(parts.vec.state(), whole.vec.state())


class Watchdog:
    """A kernel of which launches of more than some steps are ended, as macOS does."""

    def __init__(self, kernel: Any, most: int) -> None:
        self._kernel, self._most = kernel, most
        self.launches: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def launch(self, horizon: int, *given: Any) -> Any:
        self.launches.append(horizon)
        if horizon > self._most:
            raise RuntimeError(
                "[METAL] Command buffer execution failed: Impacting Interactivity"
                " (0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity)"
            )
        return self._kernel.launch(horizon, *given)


def test_a_rollout_that_was_ended_is_made_again():
    whole, ended = Run("connect4", True), Run("connect4", True)
    ended.way._kernel = watchdog = Watchdog(ended.way._kernel, T // 4)
    for seed in range(2):
        with emulated_gpu():
            expected, found = whole.rollout(seed), ended.rollout(seed)
        for field, array in expected.items():
            np.testing.assert_array_equal(found[field], array, field)
    assert watchdog.launches == [T, *[T // 4] * 8]  # the next rollout begins with the short ones


def test_a_rollout_that_is_always_ended_is_one_message():
    run = Run("connect4", True)
    before = run.vec.state()
    run.way._kernel = watchdog = Watchdog(run.way._kernel, 0)
    with emulated_gpu(), pytest.raises(UserError) as caught:
        run.rollout(0)
    assert watchdog.launches == [T, T // 4]
    assert "macOS ended the GPU's rollout twice" in str(caught.value)
    assert "hint: --train.launch-steps 1; or set AGX_RELAX_CDM_CTXSTORE" in str(caught.value)
    np.testing.assert_array_equal(run.vec.state(), before)


@pytest.mark.parametrize(("backend", "name"), [("metal", "breakout"), ("cuda", "connect4")])
def test_texts(backend, name):
    run, host = Run(name, True), Run(name, False)
    kernel = run.way._kernel

    def launch(weights, states, noise, structs, *arrived):
        first = EnvOutputs(*arrived, *([None] if len(arrived) == 3 else []))
        return [
            a for a in kernel.launch(T, weights, states, noise, structs, first) if a is not None
        ]

    noise = run.policy.distribution.noise(mx.random.key(0), (T, N))
    packed = kernel.step.weights(run.weights), kernel.step.state(*run.states)
    arrived = [array for array in run.buffer.last if array is not None]
    given = *packed, noise, run.vec.structs, *arrived
    with emulated_gpu(backend=backend, checked=True):
        played = launch(*given)
    expected = host.rollout(0)
    np.testing.assert_array_equal(np.array(played[0]), expected["observations"])
    assert len(played) == (10 if name == "connect4" else 9)


# ---- Training ------------------------------------------------------------------------------------

OPTIONS = """
    --device cpu --policy.hidden-size 8 --policy.num-layers 1 --vec.total-agents 16
    --vec.num-buffers 2 --train.horizon 8 --train.minibatch-size 64 --train.replay-ratio 1
    --train.learning-rate 0.02 --reset-state 0
"""
EPOCHS = 4


def configured(name: str = "connect4", *options: str):
    steps = str(EPOCHS * 16 * 8)
    return config.load(name, [*OPTIONS.split(), "--train.total-timesteps", steps, *options])


@pytest.fixture
def on_gpu(monkeypatch, request):
    """Trainers roll out on a GPU that is the CPU; the parameter: overlapped, or ``steps``.

    In one launch, or in a few launches a step.
    """
    asked = getattr(request, "param", False)
    overlap = asked is True

    def place(given, *_):
        about = given.vec, given.config.train.horizon, "", given.seats
        if asked == "steps":
            whole = rollouts_in_steps(given.policy, *about)
        else:
            whole = rollouts_in_one_launch(given.policy, *about)
        return Placement(CPU, CPU, overlap, gpu_rollouts=whole)

    monkeypatch.setattr(trainer, "place", place)


SELF_PLAY = "--vec.num-policies", "2", "--vec.hist-policy-percent", "0.5"


def make_trainer(name: str = "connect4", *options: str) -> trainer.Trainer:
    given = configured(name, *options)
    return trainer.Trainer(given, opened(given.env_name, 16, 2, given.env))


@pytest.mark.parametrize(
    ("on_gpu", "name"),
    [(way, name) for way in (False, "steps") for name in ("connect4", "connect4_two-selfplay")],
    indirect=["on_gpu"],
)
def test_training_is_the_hosts(on_gpu, monkeypatch, name):
    options = SELF_PLAY if name.endswith("selfplay") else ()
    with emulated_gpu():
        ours = make_trainer(name, *options)
        logs = [*ours]
    monkeypatch.undo()
    host = make_trainer(name, *options)
    expected = [*host]
    theirs = dict(named(host.weights))
    for name, array in named(ours.weights):
        np.testing.assert_allclose(np.array(array), np.array(theirs[name]), 0, 3e-4, err_msg=name)
    for record, other in zip(logs, expected, strict=True):
        keys = {key for key in other if key.startswith(("env/", "selfplay/"))}
        assert keys and {key: record[key] for key in keys} == pytest.approx(
            {key: other[key] for key in keys}, rel=1e-5
        )


@pytest.mark.parametrize("on_gpu", [False, True], indirect=True)
def test_a_rollout_is_waited_for_in_sampled_epochs_alone(on_gpu):
    """Where it is not, it counts as long as the last one that was, and training as much less."""
    waited = []
    with emulated_gpu():
        ours = make_trainer()
        collect = ours.collector.acting.collect

        def observed(*arguments: Any) -> Any:
            waited.append(ours.collector.acting.waits)  # type: ignore
            return collect(*arguments)

        ours.collector.acting.collect = observed  # type: ignore
        for record in ours:
            assert record["env/n"] > 0 and record["perf/train"] >= 0
            if not ours.collector.overlap:
                assert record["perf/rollout"] + record["perf/train"] <= record["perf/epoch"]
    assert waited == ([True] * EPOCHS if ours.collector.overlap else [False, True, False, False])


def test_on_a_mac_every_rollout_is_waited_for(on_gpu, monkeypatch):
    """Or an end by macOS would be told to whoever trains."""
    with emulated_gpu():
        assert make_trainer().collector.launches_ahead
        monkeypatch.setattr(collectors, "backend", lambda: "metal")
        assert not make_trainer().collector.launches_ahead


@pytest.mark.parametrize(
    ("asked", "seconds", "launches"),
    [
        *(("0", 1e-6, [4, 4, 8]), ("0", 0.016, [4, 4, 2, 2, 2, 2]), ("0", 1, [4, 4, *[1] * 8])),
        *(("3", 0, [3, 3, 2]), ("99", 0, [8])),
    ],
)
def test_train_launch_steps(on_gpu, monkeypatch, asked, seconds, launches):
    """On a Mac, where 0 is measured, by a clock for which a launch takes so long."""
    clock = SimpleNamespace(perf_counter=iter([0, 9, 0, seconds]).__next__)  # 9: it is compiled
    monkeypatch.setattr(on_gpu_rollouts, "time", clock)
    monkeypatch.setattr(on_gpu_rollouts, "backend", lambda: "metal")
    monkeypatch.setattr(on_gpu_rollouts, "kernel_substitute", lambda: None)
    with emulated_gpu():
        ours = make_trainer("connect4", "--train.launch-steps", asked)
        ours.collector.acting._kernel = watchdog = Watchdog(ours.collector.acting._kernel, 99)  # type: ignore
        ours.step()
    assert watchdog.launches == launches


@pytest.mark.parametrize(
    ("on_gpu", "name"),
    [
        *((each, "connect4") for each in (False, True, "steps")),
        *((each, "connect4_two-selfplay") for each in (True, "steps")),
    ],
    indirect=["on_gpu"],
)
def test_resume_is_exact(on_gpu, name):
    given = name, *(SELF_PLAY if name.endswith("selfplay") else ())
    with emulated_gpu():
        whole = make_trainer(*given)
        for _ in whole:
            pass
        first = make_trainer(*given)
        first.step()
        first.step()
        weights, state = first.weights, first.state()
        second = make_trainer(*given)
        assert second.restore(weights, state)
        for _ in second:
            pass
    theirs = dict(named(whole.weights))
    for name, array in named(second.weights):
        np.testing.assert_array_equal(np.array(array), np.array(theirs[name]), name)
    for name, array in second.state().arrays.items():
        np.testing.assert_array_equal(np.array(array), np.array(whole.state().arrays[name]), name)


@pytest.mark.parametrize("on_gpu", [False, "steps"], indirect=True)
def test_a_checkpoint_goes_to_the_host_and_back(on_gpu, monkeypatch):
    with emulated_gpu():
        first = make_trainer()
        first.step()
        weights, state = first.weights, first.state()
    monkeypatch.undo()
    host = make_trainer()
    assert host.restore(weights, state)
    host.step()
    expected = np.array(host.collector.buffer.observations)[:8]
    with emulated_gpu():
        first.step()
    np.testing.assert_array_equal(np.array(first.last_buffer.observations), expected)


# ---- The next rollout is launched before losses are read -----------------------------------------


def serial_trainer() -> trainer.Trainer:
    """One that waits for each rollout, and launches it when its epoch begins."""
    serial = make_trainer()
    serial.collector.launches_ahead = False
    return serial


def assert_same(run: trainer.Trainer, other: trainer.Trainer) -> None:
    ours, theirs = everything(run), everything(other)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if ours[name] != theirs[name]] == []


def results(record: dict[str, float]) -> dict[str, float]:
    return {key: x for key, x in record.items() if key.startswith(("env/", "loss/", "epoch"))}


def test_what_is_seen_of_an_epoch_is_that_epochs(on_gpu):
    """Records, weights and checkpoints, though the next rollout is under way."""
    with emulated_gpu():
        ours, serial = make_trainer(), serial_trainer()
        for k, expected in enumerate(serial):
            assert results(ours.step()) == results(expected)
            assert (ours.queue.rollout is not None) == (k in (1, 2))  # 1 is profiled, 3 is the last
            np.testing.assert_array_equal(np.array(ours.recorded), np.array(serial.recorded))
            assert_same(ours, serial)


def test_a_rollout_is_launched_before_the_losses_are_read(on_gpu, monkeypatch):
    done = []
    with emulated_gpu():
        ours = make_trainer()
        for part, name in (ours.collector.acting, "collect"), (ours.learner.health, "check"):
            inner = getattr(part, name)
            monkeypatch.setattr(part, name, lambda *a, f=inner, n=name: done.append(n) or f(*a))
        list(ours)
    first, profiled = ["collect", "check"], ["collect", "collect", "check"]
    assert done == [*first, *profiled, "collect", "check", "check"]


def test_training_on_it_is_built_then(on_gpu, monkeypatch):
    """And built again where the learning rate was changed meanwhile."""
    monkeypatch.setattr(update, "device_memory", lambda: 2**30)
    with emulated_gpu():
        ours, serial = make_trainer(), serial_trainer()
        for run in ours, serial:
            run.step()
            run.step()
            run.schedules = {"learning_rate": lambda part: 0.5}
        assert ours.prepared and ours.prepared.is_graph and not serial.queue.rollout
        assert results(ours.step()) == results(serial.step())
        assert_same(ours, serial)


@pytest.mark.parametrize("options", [(), ("--train.lr-schedule", "adaptive")])
def test_each_step_may_come_from_another_thread(on_gpu, monkeypatch, options):
    """Also where the training on the next rollout was built by the thread before."""
    monkeypatch.setattr(update, "device_memory", lambda: 2**30)
    prepared, submitted, submit = [], [], Update.submit
    monkeypatch.setattr(Update, "submit", lambda one: submitted.append(one) or submit(one))

    def in_new_thread(call: Callable[[], Any]) -> Any:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(call).result()

    with emulated_gpu():
        ours, serial = (make_trainer("connect4", *options) for _ in range(2))
        in_new_thread(lambda: [np.array(array) for array in ours.state().arrays.values()])
        for expected in serial:
            assert results(in_new_thread(ours.step)) == results(expected)
            prepared.append(ours.prepared)
            in_new_thread(lambda: [np.array(array) for array in ours.state().arrays.values()])
        assert_same(ours, serial)
    graphs = [one for one in prepared if one is not None and one.is_graph]
    assert bool(graphs) == (not options)
    assert submitted  # Only the thread that prepared an update can evaluate its arrays.
    assert not any(one is other for one in prepared for other in submitted)


@pytest.mark.parametrize("how", ["weights", "a failure", "an evaluation"])
def test_a_rollout_is_taken_back(on_gpu, monkeypatch, how):
    """As if it had never been launched, wherever the newest weights come from."""

    def failing(*_: Any) -> Any:
        raise UserError("no", "")

    with emulated_gpu():
        ours, serial = make_trainer(), serial_trainer()
        for run in ours, serial:
            run.step()
            run.step()
            if how == "weights":
                run.weights = tree_map(lambda w: w * 0.5, run.weights)
            elif how == "an evaluation":
                list(run.evaluate())
            else:
                with monkeypatch.context() as patch, pytest.raises(UserError):
                    patch.setattr(run.learner.health, "check", failing)
                    run.step()
        if how != "a failure":  # there the serial one's environments are where its rollout ended
            assert_same(ours, serial)
        records = [(run.step(), run.step()) for run in (ours, serial)]
        assert_same(ours, serial)
    for record, other in zip(*records, strict=True):
        assert results(record) == results(other)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("failing", ["commit", "fill"])
def test_a_rollout_that_fails_is_made_again(on_gpu, monkeypatch, failing, ahead):
    """The environments have its first state still, wherever an interrupt comes."""

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    with emulated_gpu():
        ours, undisturbed = serial_trainer(), serial_trainer()
        ours.collector.launches_ahead = ahead
        for run in ours, undisturbed:
            run.step()
        owner = EnvironmentsOnGPU if failing == "commit" else BufferOnGPU
        inner = getattr(owner, failing)
        for after in False, True:  # the call that is interrupted was made, or wasn't
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                calls = (inner, interrupted) if after else (interrupted,)
                patch.setattr(owner, failing, lambda *a, c=calls: [each(*a) for each in c])
                ours.step()
            assert_same(ours, undisturbed)
        records = [[results(each) for each in run] for run in (ours, undisturbed)]
        assert records[0] == records[1]
        assert_same(ours, undisturbed)


@pytest.mark.parametrize("is_set", [False, True])
def test_an_interrupt_at_the_end_of_a_rollout(on_gpu, monkeypatch, is_set):
    """Environments, rows and recurrent states are those of its start, all of them."""

    def interrupted(collector: Any, name: str, value: Any) -> None:
        if is_set or name != "states":
            object.__setattr__(collector, name, value)
        if name == "states":
            raise KeyboardInterrupt

    with emulated_gpu():
        ours, undisturbed = serial_trainer(), serial_trainer()
        for run in ours, undisturbed:
            run.step()
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(collectors.DeviceCollector, "__setattr__", interrupted)
            ours.step()
        assert results(ours.step()) == results(undisturbed.step())
        assert_same(ours, undisturbed)


# ---- What can't be -------------------------------------------------------------------------------


def refused(name: str, *options: str) -> str:
    asked = "--train.rollout-device", "gpu-kernel", *options
    given = config.load(name, [*OPTIONS.split(), *asked])
    with opened(name, 16, 1, given.env) as vec:
        policy = trainer.configured_policy(vec.spec, given)
        with pytest.raises(UserError) as caught:
            placement.place(Acting(given, vec, policy), None, {})
    return str(caught.value)


def test_what_no_kernel_does(monkeypatch):
    no_gpu = "train.rollout_device is gpu-kernel, but this build of MLX has no GPU"
    assert no_gpu in refused("squared")
    monkeypatch.setattr(placement, "has_gpu", lambda: True)
    assert "training is on the CPU" in refused("squared")
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu))
    assert "the rules of target compile for a CPU alone" in refused("target")
    monkeypatch.setattr(in_steps, "FEWEST", 17)
    monkeypatch.setattr(kernels, "FEWEST", 17)
    assert "there are 16 environments, expected at least 8" in refused("squared")


def test_rollouts_that_do_not_fit_the_gpus_memory(monkeypatch):
    """512 channels are acted by in steps; 16 agents for 8 steps of 121 bytes, and structs."""
    monkeypatch.setattr(placement, "has_gpu", lambda: True)
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu))
    monkeypatch.setattr(placement, "device_memory", lambda: 40_000)
    said = refused("squared", "--policy.hidden-size", "512")
    assert "16 agents for 8 steps need 0.0 GB at least, and the GPU has 0.0 GB" in said
    assert "fewer vec.total_agents" in said


@pytest.mark.parametrize(
    ("name", "options", "form"),
    [
        ("squared", [], "in one launch"),
        ("squared", ["--policy.hidden-size", "512"], "in a few launches a step"),
        ("catch", [], "in a few launches a step"),
    ],
)
def test_which_form_a_policy_takes(monkeypatch, name, options, form):
    """Of 512 channels a block of threads has no room, and no kernel of ours reads images."""
    monkeypatch.setattr(placement, "has_gpu", lambda: True)
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu))
    given = configured(name, "--train.rollout-device", "gpu-kernel", *options)
    with opened(name, 16, 1, given.env) as vec:
        policy = trainer.configured_policy(vec.spec, given)
        found = placement.place(Acting(given, vec, policy), None, {})
    assert found.gpu_rollouts is not None and found.gpu_rollouts.form == form
    assert found.rollout_device == "gpu-kernel" and not found.overlap


def test_a_kernel_counts_in_32_bits(monkeypatch):
    with environments("squared") as vec:
        policy = make_policy(vec.spec, Policy(hidden_size=8), Torch())
        assert rollouts_in_one_launch(policy, vec, T)
        monkeypatch.setattr(kernels, "MAX_ELEMENTS", (T + 1) * N * 121)
        assert rollouts_in_one_launch(policy, vec, T) is None
