"""Whole rollouts of a GPU, whose kernels run as C++ here, compared with those of the host."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from types import SimpleNamespace
from typing import Any
from unittest import mock

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
from puffer_mlx.rollout.policy_assignment import assign_in_blocks
from puffer_mlx.system.backend import building_for
from puffer_mlx.training import collectors, placement, trainer
from puffer_mlx.training.learner import Update
from puffer_mlx.training.placement import Acting, Placement
from puffer_mlx.vec.native.make import find_environment
from puffer_mlx.vec.native.vec import NativeVec

CPU = mx.Device(mx.cpu)
N, T, GROUPS = 18, 24, 2  # a block is not full
TIMER = PhaseTimer("", enabled=False)

SETTINGS = {  # for short episodes
    "squared": {"size": 5},
    "memory": {"length": 3},
    "g2048": {},
    "connect4": {"opponent_skill": 0.7},
    "catch": {"balls": 1, "ball_speed": 8},
    "cartpole": {},
    "cartpole_continuous": {},
    "breakout": {"frameskip": 40},
    "craftax_classic": {},
    "soccer": {},
    "connect4_two": {"opening_stones": 20},
    "rock_paper_scissors": {},
}
PLAYERS = {"soccer": 4, "connect4_two": 2, "rock_paper_scissors": 2}  # agents per environment
ROLLOUTS = {"craftax_classic": 10, "g2048": 10, "soccer": 3}  # until an episode ends


def opened(name: str, agents: int, groups: int, env: dict[str, Any]) -> NativeVec:
    counts: Any = {"total_agents": agents, "num_buffers": groups, "num_threads": 1}
    return NativeVec(find_environment(name), **counts, env=env, seed=7)


def environments(name: str) -> NativeVec:
    env = {**config.load(name).env, **SETTINGS[name]}
    return opened(name, N * PLAYERS.get(name, 1), GROUPS, env)


def streams() -> list[Any]:
    return [mx.default_stream(mx.cpu)]


class Run:
    """Collects rollouts of a policy in environments, on an emulated GPU or on the host.

    form: ``rollout`` (one launch, in blocks of few agents), ``step`` (a few launches per step),
        ``fp32`` or ``bf16`` (one launch, in blocks of many by matrix units); empty: the host.
    """

    def __init__(
        self, name: str, form: str, network: str = "MinGRU", opponents: int = 0, width: int = 8
    ) -> None:
        self.agents = n = N * PLAYERS.get(name, 1)
        vec = environments(name)
        assignment = assign_in_blocks(vec, opponents, 0.17) if opponents else None
        settings = Policy(hidden_size=width, num_layers=2, reset_on_terminal=True)
        self.policy = make_policy(vec.spec, settings, Torch(network=network))
        weights = [self.policy.init(mx.random.key(k)) for k in range(1 + opponents)]
        self.weights: Any = weights if opponents else weights[0]
        self.buffer: Any = (BufferOnGPU if form else RolloutBuffer)(vec.spec, T, n, GROUPS)
        self.vec: Any = vec
        if form:
            self.vec = EnvironmentsOnGPU(vec, self.kernel(vec, form, assignment))
            self.way: Any = RolloutsOnGPU(self.vec.kernel, streams, TIMER)
        else:
            self.way = choose_acting(CPU, "fp32", self.policy, vec, streams, TIMER, assignment)
        self.buffer.reset(self.vec)
        self.states = [self.policy.initial_state(n // GROUPS) for _ in range(GROUPS)]

    def kernel(self, vec: NativeVec, form: str, assignment: Any) -> Any:
        if form == "step":
            return rollouts_in_steps(self.policy, vec, T, "", assignment)
        precision = form if form != "rollout" else ""
        with building_for("cuda", lambda *_, **__: []):
            kernel: Any = rollouts_in_one_launch(self.policy, vec, T, precision, assignment)
            assert bool(precision) == (kernel.rows(N) is not None)
        return kernel

    def rollout(self, seed: int) -> dict[str, np.ndarray]:
        """Collect a rollout of T steps, and return its fields by name."""
        self.buffer.begin(self.buffer)
        noise = self.policy.distribution.noise(mx.random.key(seed), (T, self.agents))
        mx.eval(noise, self.states)
        given = self.buffer, self.vec, self.weights, self.states, noise
        self.states = self.way.collect(*given)
        fields = self.buffer.fields.items()
        return {name: np.array(a)[:T] for name, a in fields if a is not None}


def compared(name: str, form: str, network: str = "MinGRU", opponents: int = 0) -> Run:
    """Compare rollouts on an emulated GPU with the host's; return the GPU's run."""
    width = 32 if form == "fp32" else 8
    ours, host = (Run(name, each, network, opponents, width) for each in (form, ""))
    rounded, ends = name == "cartpole_continuous", 0.0  # actions differ by rounding
    for seed in range(ROLLOUTS.get(name, 2)):
        with emulated_gpu() as gpu:
            found = ours.rollout(seed)
        expected = host.rollout(seed)
        kernel = "rows_" if form == "fp32" else f"{form}_"
        assert any(each.startswith(kernel) for each in gpu.names)
        assert form == "step" or len(gpu.names) <= 2
        ends += found["terminals"].sum()
        for field in ("actions", "observations", "rewards", "terminals", "masks"):
            if field in expected:
                atol = 1e-4 if rounded else 0
                np.testing.assert_allclose(found[field], expected[field], 0, atol, err_msg=field)
        for field in ("logprobs", "values"):
            np.testing.assert_allclose(found[field], expected[field], 0, 2e-4, err_msg=field)
        for state, other in zip(named(ours.states), named(host.states), strict=True):
            np.testing.assert_allclose(state[1], other[1], 0, 2e-4)
        assert ours.vec.log() == pytest.approx(host.vec.log(), rel=1e-5)
    assert ends > 0, "no episode ended"
    if not rounded:
        np.testing.assert_array_equal(ours.vec.state(), host.vec.state())
    return ours


def launched(name: str, **given: Any) -> list[mx.array]:
    """Stand in for a kernel: return zeros that depend on all its inputs."""
    total = mx.concatenate(
        [array.astype(mx.float32).reshape(-1) for array in given["inputs"]]
    ).sum()
    outputs = zip(given["output_shapes"], given["output_dtypes"], strict=True)
    return [mx.zeros(shape).astype(dtype) + (0 * total).astype(dtype) for shape, dtype in outputs]


@pytest.mark.parametrize("network", ["MinGRU", "MLP"])
def test_rollouts_after_the_first_are_one_compiled_function(network, monkeypatch):
    """The first one verifies kernels, which isn't possible while a function is compiled."""
    traced = []
    launch = RolloutsOnGPU._in_one_launch
    monkeypatch.setattr(
        RolloutsOnGPU, "_in_one_launch", lambda *given: traced.append(1) or launch(*given)
    )
    run = Run("cartpole", "rollout", network)
    initial = run.states
    with building_for("cuda", launched):
        for seed in range(4):
            run.states = initial
            run.rollout(seed)
    assert len(traced) == 2


def assert_equal(expected: dict, found: dict, one: Run, other: Run) -> None:
    """Assert that two rollouts and the recurrent states after them have the same bits."""
    assert found.keys() == expected.keys()
    for field, array in expected.items():
        np.testing.assert_array_equal(found[field], array, field)
    for state, same in zip(named(one.states), named(other.states), strict=True):
        np.testing.assert_array_equal(np.array(state[1]), np.array(same[1]))


ALONE = [name for name in SETTINGS if name not in PLAYERS]
NETWORKS = cycle(["MinGRU", "LSTM", "MinGRU", "GRU", "MLP"])
WAYS = [(name, network, "rollout") for name, network in zip(ALONE, NETWORKS, strict=False)]
WAYS += [(name, "MinGRU", "fp32") for name in ("memory", "cartpole_continuous", "connect4")]
WAYS += [("connect4", "GRU", "step"), ("cartpole_continuous", "LSTM", "step")]


@pytest.mark.parametrize(("name", "network", "form"), WAYS)
def test_rollouts_are_the_hosts(name, network, form):
    compared(name, form, network)


@pytest.mark.parametrize("form", ["rollout", "fp32", "step"])
def test_observations_that_breakout_hides_are_0(form, monkeypatch):
    monkeypatch.setitem(SETTINGS, "breakout", {"frameskip": 40, "hide_balls_and_width": 1})
    ours = compared("breakout", form)
    assert not np.array(ours.buffer.fields["observations"])[..., 8:10].any()


@pytest.mark.parametrize(
    ("name", "network", "opponents", "form"),
    [
        ("soccer", "MinGRU", 2, "rollout"),
        ("soccer", "MinGRU", 0, "step"),
        ("connect4_two", "LSTM", 0, "rollout"),
        ("connect4_two", "LSTM", 2, "step"),
        ("rock_paper_scissors", "MLP", 0, "step"),
    ],
)
def test_agents_of_one_environment_may_have_different_policies(name, network, opponents, form):
    compared(name, form, network, opponents)


@pytest.mark.parametrize(("name", "rows"), [("connect4", 32), ("cartpole_continuous", 16)])
def test_weights_from_memory_change_no_bit(name, rows, monkeypatch):
    """Shared memory contains two layers, or a tile of them."""
    monkeypatch.setattr(kernels, "MATRIX_BLOCK_SIZES", (rows,))
    runs = [Run(name, "bf16", width=128) for _ in range(2)]

    def rollout(run, seed, room, layers):
        monkeypatch.setattr(kernels, "shared_pool_limits", lambda: (512, room))
        assert run.vec.kernel.rows(N)["KEPT"] == layers
        with emulated_gpu():
            return run.rollout(seed)

    for seed in range(2):
        expected = rollout(runs[0], seed, 10**6, 2)
        found = rollout(runs[1], seed, 232448, 0)
        assert_equal(expected, found, *runs)


@pytest.mark.parametrize("form", ["rollout", "step"])
def test_the_steps_per_launch_change_no_bit(form):
    """connect4 has masks and a random player."""
    whole, parts = (Run("connect4", form) for _ in range(2))
    parts.way.steps = 7
    for seed in range(2):
        with emulated_gpu():
            expected, found = whole.rollout(seed), parts.rollout(seed)
        assert_equal(expected, found, whole, parts)
        assert parts.vec.log() == pytest.approx(whole.vec.log(), rel=1e-6)
    np.testing.assert_array_equal(parts.vec.state(), whole.vec.state())


class Watchdog:
    """Stands in for macOS: ends kernel launches of more than ``most`` steps."""

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


def test_an_ended_rollout_is_repeated_in_shorter_launches():
    whole, ended = Run("connect4", "rollout"), Run("connect4", "rollout")
    ended.way._kernel = watchdog = Watchdog(ended.way._kernel, T // 4)
    for seed in range(2):
        with emulated_gpu():
            expected, found = whole.rollout(seed), ended.rollout(seed)
        assert_equal(expected, found, whole, ended)
    assert watchdog.launches == [T, *[T // 4] * 8]


def test_a_rollout_that_is_ended_twice_is_an_error_and_changes_no_environment():
    run = Run("connect4", "rollout")
    before = run.vec.state()
    run.way._kernel = watchdog = Watchdog(run.way._kernel, 0)
    with emulated_gpu(), pytest.raises(UserError) as caught:
        run.rollout(0)
    assert watchdog.launches == [T, T // 4]
    assert "macOS stopped the rollout on the GPU twice" in str(caught.value)
    assert "hint: --train.launch-steps 1; or set AGX_RELAX_CDM_CTXSTORE" in str(caught.value)
    np.testing.assert_array_equal(run.vec.state(), before)


@pytest.mark.parametrize(("backend", "name"), [("metal", "breakout"), ("cuda", "connect4")])
def test_the_kernels_text_of_each_backend_computes_the_hosts_observations(backend, name):
    """In memory whose bounds are checked."""
    run, host = (Run(name, form) for form in ("rollout", ""))
    kernel = run.way._kernel
    noise = run.policy.distribution.noise(mx.random.key(0), (T, N))
    packed = kernel.step.pack_weights(run.weights), kernel.step.pack_states(*run.states)
    first = EnvOutputs(*run.buffer.last)
    with emulated_gpu(backend=backend, checked=True):
        observations = kernel.launch(T, *packed, noise, run.vec.structs, first)[0]
        np.testing.assert_array_equal(np.array(observations), host.rollout(0)["observations"])


# ---- training ------------------------------------------------------------------------------------

OPTIONS = """
    --device cpu --policy.hidden-size 8 --policy.num-layers 1 --vec.total-agents 16
    --vec.num-buffers 2 --train.horizon 8 --train.minibatch-size 64 --train.replay-ratio 1
    --train.learning-rate 0.02 --reset-state 0
"""
EPOCHS = 4


def configured(name: str = "connect4", *options: str):
    steps = str(EPOCHS * 16 * 8)
    return config.load(name, [*OPTIONS.split(), "--train.total-timesteps", steps, *options])


SELF_PLAY = "--vec.num-policies", "2", "--vec.hist-policy-percent", "0.5"


@pytest.fixture
def on_gpu(monkeypatch, request):
    """Let trainers run rollouts on an emulated GPU.

    The parameter: True for overlap, or ``steps``.
    """
    asked = getattr(request, "param", False)
    overlap = asked is True

    def place(given, *_):
        about = given.vec, given.config.train.horizon, "", given.assignment
        if asked == "steps":
            whole = rollouts_in_steps(given.policy, *about)
        else:
            whole = rollouts_in_one_launch(given.policy, *about)
        return Placement(CPU, CPU, overlap, gpu_rollouts=whole)

    monkeypatch.setattr(trainer, "choose_placement", place)


def make_trainer(name: str = "connect4", *options: str) -> trainer.Trainer:
    if name.endswith("selfplay"):
        options = *options, *SELF_PLAY
    given = configured(name, *options)
    return trainer.Trainer(given, opened(given.env_name, 16, 2, given.env))


@pytest.mark.parametrize(
    ("on_gpu", "name"),
    [("steps", "connect4"), (False, "connect4_two-selfplay")],
    indirect=["on_gpu"],
)
def test_training_equals_the_hosts(on_gpu, monkeypatch, name):
    with emulated_gpu():
        ours = make_trainer(name)
        logs = [*ours]
    monkeypatch.undo()
    host = make_trainer(name)
    expected = [*host]
    for (key, array), (_, other) in zip(named(ours.weights), named(host.weights), strict=True):
        np.testing.assert_allclose(np.array(array), np.array(other), 0, 3e-4, err_msg=key)
    for record, other in zip(logs, expected, strict=True):
        keys = [key for key in other if key.startswith(("env/", "selfplay/"))]
        assert keys
        found, theirs = ([each[key] for key in keys] for each in (record, other))
        assert found == pytest.approx(theirs, rel=1e-5)


def test_a_mac_waits_for_each_rollout(on_gpu, monkeypatch):
    """On a Mac no rollout is launched ahead: training would report its failure as its own."""
    with emulated_gpu():
        assert make_trainer().collector.launches_ahead
        monkeypatch.setattr(collectors, "backend", lambda: "metal")
        assert not make_trainer().collector.launches_ahead


@pytest.mark.parametrize(
    ("asked", "seconds", "launches"), [("0", 0.016, [4, 4, 2, 2, 2, 2]), ("3", 0, [3, 3, 2])]
)
def test_launch_steps_are_measured_or_typed(on_gpu, monkeypatch, asked, seconds, launches):
    """On a Mac 0 means that the second launch is measured: the first one compiles."""
    clock = SimpleNamespace(perf_counter=iter([0, 9, 0, seconds]).__next__)
    monkeypatch.setattr(on_gpu_rollouts, "time", clock)
    monkeypatch.setattr(on_gpu_rollouts, "backend", lambda: "metal")
    monkeypatch.setattr(on_gpu_rollouts, "kernel_substitute", lambda: None)
    with emulated_gpu():
        ours = make_trainer("connect4", "--train.launch-steps", asked)
        acting: Any = ours.collector.acting
        acting._kernel = watchdog = Watchdog(acting._kernel, 99)
        ours.step()
    assert watchdog.launches == launches


@pytest.mark.parametrize(
    ("on_gpu", "name"),
    [(False, "connect4"), (True, "connect4_two-selfplay"), ("steps", "connect4")],
    indirect=["on_gpu"],
)
def test_a_resumed_run_is_the_whole_one(on_gpu, name):
    with emulated_gpu():
        whole, first, second = (make_trainer(name) for _ in range(3))
        list(whole)
        first.step()
        first.step()
        assert second.restore(first.weights, first.state())
        list(second)
    assert_same(second, whole)


def test_the_host_resumes_a_checkpoint_of_a_gpu(on_gpu, monkeypatch):
    with emulated_gpu():
        first = make_trainer()
        first.step()
        weights, state = first.weights, first.state()
        first.step()
    monkeypatch.undo()
    host = make_trainer()
    assert host.restore(weights, state)
    host.step()
    found = np.array(first.last_buffer.observations)
    np.testing.assert_array_equal(found, np.array(host.collector.buffer.observations)[:8])


# ---- the next rollout is launched before losses are read -----------------------------------------


def serial_trainer() -> trainer.Trainer:
    """Return a trainer that launches each rollout only at the start of its epoch."""
    serial = make_trainer()
    serial.collector.launches_ahead = False
    return serial


def assert_same(run: trainer.Trainer, other: trainer.Trainer) -> None:
    ours, theirs = everything(run), everything(other)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if ours[name] != theirs[name]] == []


def results(record: dict[str, float]) -> dict[str, float]:
    return {key: x for key, x in record.items() if key.startswith(("env/", "loss/", "epoch"))}


def test_metrics_weights_and_checkpoints_seen_after_an_epoch_belong_to_it(on_gpu):
    """The next rollout is in progress."""
    with emulated_gpu():
        ours, serial = make_trainer(), serial_trainer()
        for k, expected in enumerate(serial):
            assert results(ours.step()) == results(expected)
            assert (ours.queue.rollout is not None) == (k in (1, 2))  # 1 is profiled, 3 is the last
            np.testing.assert_array_equal(np.array(ours.recorded), np.array(serial.recorded))
            assert_same(ours, serial)


def test_an_update_that_was_built_then_is_rebuilt_for_another_learning_rate(on_gpu, monkeypatch):
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


def in_new_thread(call: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(call).result()


def test_each_step_may_be_called_by_another_thread(on_gpu, monkeypatch):
    """Only the thread that prepared an update can evaluate its arrays."""
    monkeypatch.setattr(update, "device_memory", lambda: 2**30)
    prepared, submitted, submit = [], [], Update.submit
    monkeypatch.setattr(Update, "submit", lambda one: submitted.append(one) or submit(one))
    with emulated_gpu():
        ours, serial = make_trainer(), make_trainer()
        for expected in serial:
            assert results(in_new_thread(ours.step)) == results(expected)
            prepared.append(ours.prepared)
            in_new_thread(lambda: [np.array(array) for array in ours.state().arrays.values()])
        assert_same(ours, serial)
    assert submitted and any(one is not None and one.is_graph for one in prepared)
    assert not any(one is other for one in prepared for other in submitted)


@pytest.mark.parametrize("how", ["weights", "a failure", "an evaluation"])
def test_a_launched_rollout_is_taken_back(on_gpu, monkeypatch, how):
    """Then the run is that of a trainer that launched none."""
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
                    patch.setattr(
                        run.learner.finite_check, "check", mock.Mock(side_effect=UserError(""))
                    )
                    run.step()
        if how != "a failure":  # the serial trainer's environments have stepped
            assert_same(ours, serial)
        for _ in range(2):
            assert results(ours.step()) == results(serial.step())
        assert_same(ours, serial)


@pytest.mark.parametrize(
    ("owner", "method", "before", "ahead"),
    [
        (EnvironmentsOnGPU, "commit", True, True),
        (EnvironmentsOnGPU, "commit", False, True),
        (BufferOnGPU, "fill", False, False),
        (collectors.DeviceCollector, "__setattr__", True, False),  # of its states
    ],
)
def test_an_interrupted_rollout_is_undone_and_repeated(
    on_gpu, monkeypatch, owner, method, before, ahead
):
    """``before``, or after the method; ``ahead``: whether rollouts are launched ahead."""
    real = getattr(owner, method)

    def interrupted(*arguments: Any) -> Any:
        is_target = method != "__setattr__" or arguments[1] == "states"
        if not (before and is_target):
            real(*arguments)
        if is_target:
            raise KeyboardInterrupt

    with emulated_gpu():
        ours, undisturbed = serial_trainer(), serial_trainer()
        ours.collector.launches_ahead = ahead
        for run in ours, undisturbed:
            run.step()
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(owner, method, interrupted)
            ours.step()
        assert [results(each) for each in ours] == [results(each) for each in undisturbed]
        assert_same(ours, undisturbed)


# ---- refusals and limits -------------------------------------------------------------------------


def placed(name: str, *options: str) -> Placement:
    given = configured(name, "--train.rollout-device", "gpu-kernel", *options)
    with opened(name, 16, 1, given.env) as vec:
        policy = trainer.configured_policy(vec.spec, given)
        return placement.choose_placement(Acting(given, vec, policy), None, {})


def refused(name: str, *options: str) -> str:
    with pytest.raises(UserError) as caught:
        placed(name, *options)
    return str(caught.value)


@pytest.fixture
def pretended(monkeypatch):
    monkeypatch.setattr(placement, "has_gpu", lambda: True)
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu))


def test_rollouts_without_a_gpu_are_refused(monkeypatch):
    said = "train.rollout_device is gpu-kernel, but this build of MLX has no GPU"
    assert said in refused("squared")
    monkeypatch.setattr(placement, "has_gpu", lambda: True)
    assert "training is on the CPU" in refused("squared")


def test_rollouts_without_a_kernel_or_memory_are_refused(pretended, monkeypatch):
    assert "target compiles only for a CPU" in refused("target")
    with monkeypatch.context() as patch:
        patch.setattr(in_steps, "MIN_ARRAY_SIZE", 17)
        patch.setattr(kernels, "MIN_ARRAY_SIZE", 17)
        assert "there are 16 environments, expected at least 8" in refused("squared")
    monkeypatch.setattr(placement, "device_memory", lambda: 40_000)
    said = refused("squared", "--policy.hidden-size", "512")
    assert "16 agents for 8 steps need 0.0 GB at least, and the GPU has 0.0 GB" in said
    assert "fewer vec.total_agents" in said


@pytest.mark.parametrize(
    ("name", "width", "form"),
    [
        ("squared", "8", "in one launch"),
        ("squared", "512", "in a few launches a step"),
        ("catch", "8", "in a few launches a step"),
    ],
)
def test_wide_policies_and_images_roll_out_in_steps(pretended, name, width, form):
    found = placed(name, "--policy.hidden-size", width)
    assert found.gpu_rollouts is not None and found.gpu_rollouts.description == form
    assert found.rollout_device == "gpu-kernel" and not found.overlap


def test_no_kernel_takes_more_elements_than_32_bits_count(monkeypatch):
    with environments("squared") as vec:
        policy = make_policy(vec.spec, Policy(hidden_size=8), Torch())
        assert rollouts_in_one_launch(policy, vec, T)
        monkeypatch.setattr(kernels, "MAX_ELEMENTS", (T + 1) * N * 121)
        assert rollouts_in_one_launch(policy, vec, T) is None
