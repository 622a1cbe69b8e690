"""Where a run acts, how that is measured, and old log-probabilities where it acts elsewhere."""

import json
import math
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import oracles
import pytest
from oracles import named
from watching import functions, replace_functions

from puffer_mlx import config
from puffer_mlx.errors import UserError
from puffer_mlx.machines.single_process import SingleProcess
from puffer_mlx.ops.cpu_extension import threads
from puffer_mlx.policy.policy import configured_policy
from puffer_mlx.rollout import acting
from puffer_mlx.rollout.act_functions import compile_act
from puffer_mlx.rollout.on_gpu import RolloutSpec, rollouts_in_one_launch
from puffer_mlx.training import placement
from puffer_mlx.training import trainer as trainer_module
from puffer_mlx.training.placement import PATIENCE, Acting, Placement, as_on_first, notes, place
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.vec.native.make import find_environment
from puffer_mlx.vec.native.vec import NativeVec

CPU, GPU = mx.Device(mx.cpu), mx.Device(mx.gpu)
T, N, S = 4, 10, 4  # segments don't divide the agents
OPTIONS = f"""
    --device cpu --env.size 3 --policy.hidden-size 8 --policy.num-layers 2
    --vec.total-agents {N} --vec.num-buffers 2 --train.horizon {T} --train.minibatch-size {S * T}
    --train.learning-rate 0.02 --train.total-timesteps {6 * N * T}
""".split()
pytestmark = pytest.mark.usefixtures("uncompiled")


def configure(*more: str) -> config.Config:
    return config.load("squared", [*OPTIONS, *more])


def start(*more: str) -> Any:
    return Trainer(configure(*more), oracles.SmallVec(N, 2, (3, 2), masked=True))


class Fake(SimpleNamespace):
    """``mlx.core`` with something else here and there."""

    def __getattr__(self, name):
        return getattr(mx, name)


def parts(trainer: Any) -> Any:
    """What ``place`` and ``_calibrate`` get of a trainer."""
    run = compile_act(trainer.policy)
    return Acting(trainer.config, trainer.vec, trainer.policy, run), trainer.weights


def placed(arguments: Any, before: dict[str, Any] | None = None) -> Placement:
    given, weights = arguments
    return place(given, weights, before or {})


# ---- what is asked for ---------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", ["auto", "cpu"])
def test_without_a_gpu_it_acts_on_the_cpu_and_measures_nothing(monkeypatch, wanted):
    def measured(*_):
        raise AssertionError("measured")

    monkeypatch.setattr(placement, "_calibrate", measured)
    monkeypatch.setattr(placement, "_cached", measured)
    found = start(f"--train.rollout-device={wanted}").placement
    assert (found.learner, found.rollout, found.reason) == (CPU, CPU, "")
    assert not found.away and not found.overlap and notes(configure(), found) == []


def test_a_gpu_that_is_not_there():
    trainer = start()
    trainer.config.train.rollout_device = "gpu"
    with pytest.raises(UserError) as caught:
        placed(parts(trainer))
    assert "train.rollout_device is gpu, but this build of MLX has no GPU" in caught.value.message
    assert "--train.rollout-device cpu" in caught.value.hint


@pytest.mark.parametrize(
    ("learner", "rollout", "one_kernel", "precision", "acts_in", "away"),
    [
        *((CPU, CPU, False, kind, kind, False) for kind in ("fp32", "bf16")),
        *((GPU, GPU, False, kind, kind, False) for kind in ("fp32", "fp16")),
        *((GPU, CPU, False, kind, "fp32", True) for kind in ("fp32", "bf16")),
        (CPU, GPU, False, "fp16", "fp32", True),
        (GPU, GPU, True, "fp32", "fp32", False),
        (GPU, GPU, True, "bf16", "fp32", True),  # the kernel knows no other
        (CPU, CPU, True, "bf16", "bf16", False),
    ],
)
def test_what_it_acts_in(learner, rollout, one_kernel, precision, acts_in, away):
    found = Placement(learner, rollout, precision=precision, one_kernel=one_kernel)
    assert (found.acting_precision, found.away) == (acts_in, away)


@pytest.fixture
def on_a_gpu(monkeypatch):
    """A GPU that is MLX's default device, as far as ``place`` knows; nothing is computed there."""

    arguments = parts(start())
    monkeypatch.setattr(placement, "mx", Fake(gpu=mx.gpu, default_device=lambda: GPU))
    monkeypatch.setattr(placement, "has_gpu", lambda: True)
    seconds: dict[str, float] = {"cpu": 0.001, "gpu": 0.003}
    calls = []

    def measured(*_):
        calls.append(1)
        return seconds, False

    monkeypatch.setattr(placement, "_cached", measured)
    return arguments, seconds, calls


@pytest.mark.parametrize(
    ("rollout", "overlap", "faster", "before", "expected"),
    [
        ("auto", False, "cpu", {}, (CPU, 1)),
        ("auto", False, "gpu", {}, (GPU, 1)),
        ("auto", True, "cpu", {}, (CPU, 1)),
        # What is asked for is done, whatever is faster and was before.
        ("cpu", False, "gpu", {}, (CPU, 0)),
        ("cpu", True, "gpu", {"rollout_device": "gpu"}, (CPU, 0)),
        ("gpu", False, "cpu", {"rollout_device": "cpu"}, (GPU, 0)),
        # A run that goes on does what it did.
        ("auto", False, "gpu", {"rollout_device": "cpu"}, (CPU, 0)),
        ("auto", True, "cpu", {"rollout_device": "gpu"}, (GPU, 0)),
        # Unless it can't: these environments are Python's.
        ("auto", False, "cpu", {"rollout_device": "gpu-kernel"}, (CPU, 1)),
        ("auto", True, "gpu", {"rollout_device": "gpu-kernel"}, (GPU, 1)),
    ],
)
def test_where_a_gpu_trains(on_a_gpu, rollout, overlap, faster, before, expected):
    arguments, seconds, calls = on_a_gpu
    train = arguments[0].config.train
    seconds.update({"cpu": 9.0, "gpu": 9.0} | {faster: 0.001})
    train.rollout_device, train.overlap = rollout, overlap
    found = placed(arguments, before)
    assert (found.rollout, len(calls)) == expected
    assert (found.learner, found.overlap) == (GPU, overlap)
    assert bool(found.reason) == (rollout == "auto")


@pytest.mark.parametrize("possible", [True, False, "too large"])
def test_a_resumed_run_says_what_it_does_now(on_a_gpu, monkeypatch, possible):
    """Not what it did on another machine, or with other settings."""
    arguments, _, _ = on_a_gpu
    whole: Any = SimpleNamespace(form="in one launch")
    monkeypatch.setattr(placement, "rollouts_on_gpu", lambda *_: whole if possible else None)
    monkeypatch.setattr(placement, "_too_large", lambda *_: 10**12 * (possible == "too large"))
    arguments[0].config.train.rollout_device = "auto"
    found = placed(arguments, {"rollout_device": "gpu-kernel"})
    if possible is True:
        assert found.whole is whole and found.rollout_device == "gpu-kernel"
        assert found.reason == "rollouts and environments on the GPU, as before"
    else:
        assert found.whole is None and found.rollout_device == "cpu"
        assert found.reason == (
            "rollouts on the CPU: a step of all agents takes 1.00 ms, on the GPU 3.00 ms;"
            " environments can't be stepped by this GPU, as they were before"
        )


@pytest.mark.parametrize(("wanted", "overlap"), [("auto", True), ("cpu", False)])
def test_a_checkpoint_says_where_it_acted(monkeypatch, wanted, overlap):
    """So a trainer that goes on from it needn't measure, and acts in the same way."""
    more = f"--train.rollout-device={wanted}", f"--train.overlap={overlap}"
    first, given = start(*more), []
    first.step()
    state = first.state()
    assert state.numbers["rollout_device"] == "cpu"

    def asked(*arguments):
        given.append(arguments[-1])
        return place(*arguments)

    monkeypatch.setattr(trainer_module, "place", asked)
    environments = oracles.SmallVec(N, 2, (3, 2), masked=True)
    trainer = Trainer(configure(*more), environments, like=state)
    assert given == [state.numbers]
    assert trainer.placement.overlap is overlap
    assert trainer.restore(first.weights, state)


@pytest.mark.parametrize(
    ("device", "overlap", "cores", "expected"),
    [
        *((CPU, 0, 8, 8), (GPU, 0, 16, 16), (CPU, 1, 8, 4), (CPU, 1, 3, 1), (CPU, 1, 1, 1)),
        *((GPU, 1, 16, 12), (GPU, 1, 10, 8), (GPU, 1, 2, 2)),
    ],
)
def test_training_beside_a_rollout_has_cores_of_its_own(
    monkeypatch, device, overlap, cores, expected
):
    monkeypatch.setattr(placement, "threads", lambda: cores)
    monkeypatch.setattr(placement, "mx", Fake(cpu=CPU, default_device=lambda: device))
    assert placement.rollout_cores(configure("--train.overlap", str(overlap))) == expected


@pytest.mark.parametrize(
    ("learner", "rollout", "more", "cores", "words"),
    [
        (GPU, GPU, ["--train.overlap", "1"], 8, ["one GPU does both halves"]),
        (GPU, CPU, ["--train.overlap", "1"], 8, []),
        (CPU, CPU, ["--train.overlap", "1"], 8, ["each half has its own part of 8 cores"]),
        (CPU, CPU, ["--train.overlap", "1"], 1, ["one core does both halves"]),
        (CPU, CPU, ["--train.precision", "bf16"], 8, ["train.precision bf16: CPUs compute in fp"]),
        (GPU, GPU, ["--train.precision", "bf16"], 8, []),
    ],
)
def test_switches_that_can_not_help_are_noted(monkeypatch, learner, rollout, more, cores, words):
    monkeypatch.setattr(placement, "threads", lambda: cores)
    c = configure(*more)
    overlap, kind = placement.overlaps(c), c.train.precision
    found = notes(c, Placement(learner, rollout, overlap, kind))
    assert len(found) == len(words)
    for line, expected in zip(found, words, strict=True):
        assert expected in line and "\n" not in line
    reason = Placement(learner, rollout, overlap, kind, "because")
    assert notes(c, reason) == ["because", *found]


# ---- what is measured ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cpu", "gpu", "overlap", "chosen"),
    [
        (1.0, 1.0, False, "cpu"),
        (1.01, 1.0, False, "gpu"),
        (1.0, 2.0, True, "cpu"),
        (PATIENCE, 1.0, True, "cpu"),  # the slower one, which leaves the GPU to training
        (PATIENCE + 0.01, 1.0, True, "gpu"),
    ],
)
def test_the_device_of_less_seconds(cpu, gpu, overlap, chosen):
    seconds = {"cpu": cpu / 1000, "gpu": gpu / 1000}
    device, reason = placement._choose(seconds, overlap)
    assert device == {"cpu": CPU, "gpu": GPU}[chosen]
    other = {"cpu": "gpu", "gpu": "cpu"}[chosen]
    expected = (
        f"rollouts on the {chosen.upper()}: a step of all agents takes"
        f" {1000 * seconds[chosen]:.2f} ms, on the {other.upper()} {1000 * seconds[other]:.2f} ms"
    )
    if chosen == "cpu" and cpu > gpu:
        expected += ", which overlaps with training"
    assert reason == expected


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(placement, "cache_directory", lambda: tmp_path / "cache")
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


def measurements() -> tuple[Callable[[], dict[str, float]], list[int]]:
    """A measurement that comes out differently every time, and its calls."""
    calls: list[int] = []

    def measure():
        calls.append(1)
        return {"cpu": float(len(calls)), "gpu": 0.5}

    return measure, calls


SPEC = oracles.SmallVec(N, 2).spec


def test_a_measurement_is_made_once_for_each_configuration(cache, monkeypatch):
    measure, calls = measurements()
    assert placement._cached(configure(), SPEC, measure) == ({"cpu": 1.0, "gpu": 0.5}, False)
    assert placement._cached(configure(), SPEC, measure) == ({"cpu": 1.0, "gpu": 0.5}, True)
    others = [
        (configure("--policy.hidden-size", "16"), SPEC),
        (configure("--vec.num-buffers", "1"), SPEC),
        (configure("--torch.network", "LSTM"), SPEC),
        (configure("--train.precision", "bf16"), SPEC),
        (configure(), oracles.SmallVec(N, 2, (3, 2)).spec),
    ]
    for count, (c, spec) in enumerate(others, 2):
        found, cached = placement._cached(c, spec, measure)
        assert (found["cpu"], cached) == (count, False)
    # of whole rollouts, environments are measured, too
    for count, more in enumerate([[], ["--train.horizon", "8"], ["--env.size", "5"]], 7):
        assert placement._cached(configure(*more), SPEC, measure, None, "a form")[0]["cpu"] == count
    monkeypatch.setattr(placement, "threads", lambda: 99)  # another machine
    assert not placement._cached(configure(), SPEC, measure)[1]
    for name, value in (("version_text", lambda: "of tomorrow"), ("WAYS", placement.WAYS + 1)):
        monkeypatch.setattr(placement, name, value)
        assert not placement._cached(configure(), SPEC, measure)[1]
    # what doesn't matter: learning, and how long
    assert placement._cached(configure("--train.gamma", "0.5", "--seed", "9"), SPEC, measure)[1]
    assert len(calls) == len(others) + 7
    names = [path.name for path in cache.iterdir()]
    assert len(names) == len(calls) and all(name.endswith(".json") for name in names)


def test_a_damaged_measurement_is_made_again(cache):
    measure, calls = measurements()
    placement._cached(configure(), SPEC, measure)
    (path,) = cache.iterdir()
    damaged = "", "half a fi", "[]", "3", '{"cpu": 1}', '{"cpu": "fast", "gpu": 1}', "null"
    for count, text in enumerate(damaged, 2):
        path.write_text(text)
        expected = {"cpu": float(count), "gpu": 0.5}
        assert placement._cached(configure(), SPEC, measure) == (expected, False), text
        assert json.loads(path.read_text()) == expected
    assert len(calls) == 1 + len(damaged)


def test_a_cache_that_can_not_be_written_costs_a_measurement(cache):
    cache.rmdir()
    cache.write_text("a file")
    measure, calls = measurements()
    for _ in range(2):
        found, cached = placement._cached(configure(), SPEC, measure)
        assert found["gpu"] == 0.5 and not cached
    assert len(calls) == 2 and cache.read_text() == "a file"


@pytest.fixture
def two(monkeypatch):
    """Both devices are the CPU; the second is taken for a GPU."""
    names = iter(("cpu", "gpu") * 9)
    monkeypatch.setattr(placement, "mx", Fake(gpu=mx.cpu, default_device=lambda: GPU))
    monkeypatch.setattr(placement, "kind", lambda _: next(names))


def test_measuring_both_devices_changes_nothing_else(two):
    trainer, other = start(), start()
    random: Any = mx.random.state
    environments, key = trainer.vec.state(), np.array(random[0])
    before = [np.array(a) for a in trainer.collector.buffer.fields.values()]
    began = time.perf_counter()
    seconds = placement._calibrate(*parts(trainer))
    wall = time.perf_counter() - began
    assert set(seconds) == {"cpu", "gpu"}
    assert min(seconds.values()) > 0
    assert placement.STEPS * sum(seconds.values()) < wall < 2 * (placement.BUDGET + 1)
    np.testing.assert_array_equal(trainer.vec.state(), environments)
    np.testing.assert_array_equal(random[0], key)
    for array, kept in zip(trainer.collector.buffer.fields.values(), before, strict=True):
        np.testing.assert_array_equal(array, kept)
    list(trainer)
    list(other)
    for (_, one), (_, two) in zip(named(trainer.weights), named(other.weights), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize(
    ("name", "one_launch", "chosen"),
    [
        *(("squared", 4.0, "gpu-kernel"), ("breakout", 6.0, "gpu"), ("g2048", 4.0, "gpu-kernel")),
        ("squared", None, "gpu"),
    ],
)
def test_all_ways_are_measured_with_their_environments(two, monkeypatch, name, one_launch, chosen):
    """Planted seconds a step: acting 3 on the CPU and 1 on the GPU, environments 4 beside them.

    None: MLX can't make the kernel.
    """
    clock = [0.0]

    def takes(seconds):
        def collect(_, buffer, environments, weights, states, noise):
            acting = next(seconds)
            if acting is None:
                raise RuntimeError("not on this GPU")
            moving = 4.0 if isinstance(environments, NativeVec) else 0.0
            if moving:
                actions = np.zeros((environments.num_agents, 1), np.float32)
                environments.send(0, actions, buffer.rows.part(1, slice(None)))
                environments.wait(0)
            clock[0] += buffer.horizon * (acting + moving)
            return states

        return collect

    host = (seconds for seconds in (3.0, 1.0) for _ in range(2))  # the first call compiles
    monkeypatch.setattr(placement, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(acting.ActingInC, "collect", takes(host))
    monkeypatch.setattr(acting.RolloutsOnGPU, "collect", takes(iter([one_launch] * 2)))
    monkeypatch.setattr(placement, "_cached", lambda config, spec, measure, *_: (measure(), False))
    monkeypatch.setattr(placement, "has_gpu", lambda: True)
    c = config.load(name)
    c.policy.hidden_size, c.torch.encoder = 8, "DefaultEncoder"
    c.vec.total_agents, c.vec.num_buffers = 16, 1
    with NativeVec(find_environment(name), total_agents=16, env=c.env) as vec:
        policy = configured_policy(vec.spec, c)
        weights, before = policy.init(mx.random.key(0)), vec.state()
        found = placed((Acting(c, vec, policy, compile_act(policy)), weights))
        np.testing.assert_array_equal(vec.state(), before)
    measured = {"gpu-kernel": 4.0, "gpu": 5.0}[chosen]
    assert f"a step of all agents takes {1000 * measured:.0f}." in found.reason
    assert (found.whole is not None) == (chosen == "gpu-kernel")
    assert ("this GPU refuses" in found.reason) == (one_launch is None)


def test_what_no_cpu_can_reach_is_not_measured(two, monkeypatch):
    """Nor is the extension compiled for that."""
    monkeypatch.setattr(acting.ActingInC, "collect", lambda *_: time.sleep(1e-3))
    monkeypatch.setattr(acting.RolloutsOnGPU, "collect", lambda *_: time.sleep(1e-4))
    c = config.load("squared")
    c.policy.hidden_size, c.vec.total_agents, c.vec.num_buffers = 32, 16, 1
    with NativeVec(find_environment("squared"), total_agents=16, env=c.env) as vec:
        policy = configured_policy(vec.spec, c)
        weights = policy.init(mx.random.key(0))
        whole = rollouts_in_one_launch(policy, RolloutSpec(vec, c.train.horizon))
        given = Acting(c, vec, policy, compile_act(policy)), weights, whole
        n = sum(array.size for _, array in named(weights))
        least = 2 * 16 * n / threads() / placement.CORE
        assert placement.least_on_cpu(weights, 16) == pytest.approx(least)
        seen = []
        for core in (placement.CORE, 1.0):  # a launch takes longer than that, or not
            monkeypatch.setattr(placement, "CORE", core)
            seen.append(placement._calibrate(*given))
    assert math.isfinite(seen[0]["cpu"]) and seen[1]["cpu"] == math.inf
    seen[1]["gpu"] = 1.0
    _, reason = placement._choose(seen[1], False, whole)
    assert "on the CPU more by arithmetic alone" in reason


def test_auto_measures_once_and_then_remembers(cache, monkeypatch):
    """What a trainer does that trains on a GPU: the device that trains isn't the CPU."""
    calls = []

    def calibrate(*_):
        calls.append(1)
        return {"cpu": 0.001, "gpu": 0.003}

    arguments = parts(start())
    monkeypatch.setattr(placement, "_calibrate", calibrate)
    monkeypatch.setattr(placement, "mx", Fake(gpu=mx.gpu, default_device=lambda: GPU))
    found = placed(arguments)
    assert (found.learner, found.rollout) == (GPU, CPU) and found.away
    assert found.reason.startswith("rollouts on the CPU: a step of all agents takes 1.00 ms")
    again = placed(arguments)
    assert again.rollout == CPU and again.reason == f"{found.reason} (measured before)"
    assert len(calls) == 1


# ---- old log-probabilities -----------------------------------------------------------------------


def copies(buffer: Any) -> dict[str, np.ndarray]:
    return {name: np.array(array) for name, array in buffer.fields.items() if array is not None}


def watch_fields(trainer: Any) -> list[tuple[Any, dict[str, np.ndarray], dict[str, np.ndarray]]]:
    """Of every rollout: what it began from, its fields, and what training reads instead."""
    steps, seen = functions(trainer), []

    def recompute(fields, rollout):
        result = steps.recompute(fields, rollout)
        assert result["logprobs"] is not rollout.buffer.logprobs
        read = {name: np.array(a) for name, a in result.items() if a is not None}
        seen.append((rollout.start, copies(rollout.buffer), read))
        return result

    replace_functions(trainer, recompute=recompute)
    return seen


@pytest.mark.parametrize(
    ("network", "reset", "overlap"), [("MinGRU", False, 1), ("LSTM", False, 0), ("MLP", True, 1)]
)
def test_recomputed_ones_are_of_the_weights_and_states_that_acted(
    monkeypatch, network, reset, overlap
):
    """Both in fp32 here, so they are what the rollout stored, but for rounding."""
    monkeypatch.setattr(Placement, "away", property(lambda _: True))
    more = [f"--reset-state={reset}", "--torch.network", network, f"--train.overlap={overlap}"]
    trainer = start(*more, "--policy.reset-on-terminal", "True")
    read = watch_fields(trainer)
    list(trainer)
    assert len(read) == 6
    for _, stored, ours in read:
        acted = ours["logprobs"] - np.log(ours.get("lag", 1.0))  # lag: of the present policy to it
        assert acted.shape == (T, N)
        np.testing.assert_allclose(acted, stored["logprobs"], rtol=0, atol=1e-5)
    assert np.abs(read[-1][1]["logprobs"] - read[0][1]["logprobs"]).max() > 0.01


@pytest.mark.parametrize(("kind", "reset"), [("bf16", True), ("fp16", False)])
def test_acting_in_fp32_and_training_in_less(monkeypatch, kind, reset):
    """The first ratios are 1 again with log-probabilities of the training path, not with stored
    ones. Epoch 1 is one where that is checked whatever it costs."""
    monkeypatch.setattr(Placement, "acting_precision", "fp32")
    errors = {}
    for recomputed in (True, False):
        monkeypatch.setattr(Placement, "away", property(lambda _, r=recomputed: r))
        trainer = start(f"--train.precision={kind}", f"--reset-state={reset}")
        logs = [trainer.step() for _ in range(2)]
        errors[recomputed] = logs[1]["loss/first_ratio_error"]
        if reset:
            assert "loss/first_ratio_error" in logs[0]
    epsilon = {"bf16": 2**-8, "fp16": 2**-11}[kind]
    assert errors[True] < 1e-6
    assert epsilon / 50 < errors[False] < 16 * epsilon


@pytest.mark.parametrize("measured", [True, False])
def test_the_first_of_several_ranks_decides(measured):
    """Another one would have found something else, and doesn't ask."""
    said: list[str] = []

    class One(SingleProcess):
        size = 2

        def __init__(self, rank: int) -> None:
            self.rank = rank

        def first(self, text: str) -> str:
            said.append(text)
            return said[0]

    def on_first(asked: config.Config) -> Placement:
        assert (asked.train.rollout_device, asked.train.overlap) == ("auto", "auto")
        return Placement(GPU, CPU, True, reason="rollouts on the CPU", measured=measured)

    def on_other(asked: config.Config) -> Placement:
        assert (asked.train.rollout_device, asked.train.overlap) == ("cpu", True)
        return Placement(GPU, CPU, overlap=True)

    own = configure("--train.overlap", "auto", "--train.rollout-device", "auto")
    found = [as_on_first(One(0), own, on_first), as_on_first(One(1), own, on_other)]
    suffix = ", measured by rank 0 for all 2" if measured else ""
    assert found[0].reason == f"rollouts on the CPU{suffix}"
    assert not found[1].reason
    assert as_on_first(SingleProcess(), own, on_first).reason == "rollouts on the CPU"
