"""The devices that act and train, the rule for ``auto``, and recomputed log-probabilities."""

from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import oracles
import pytest
from watching import functions, replace_functions

from puffer_mlx import config
from puffer_mlx.distributed.single_process import SingleProcess
from puffer_mlx.errors import UserError
from puffer_mlx.policy.policy import configured_policy
from puffer_mlx.training import placement
from puffer_mlx.training import trainer as trainer_module
from puffer_mlx.training.placement import (
    Acting,
    Placement,
    broadcast_from_rank0,
    choose_placement,
    placement_notes,
)
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
    """Stub of the module ``mlx.core`` with some attributes replaced."""

    def __getattr__(self, name):
        return getattr(mx, name)


def placement_arguments(trainer: Any) -> Any:
    """Return the first two arguments of ``choose_placement`` for a trainer."""
    return Acting(trainer.config, trainer.vec, trainer.policy), trainer.weights


def placed(arguments: Any, before: dict[str, Any] | None = None) -> Placement:
    given, weights = arguments
    return choose_placement(given, weights, before or {})


# ---- typed and resumed placements ----------------------------------------------------------------


def test_without_a_gpu_it_acts_on_the_cpu():
    found = start("--train.rollout-device=auto").placement
    assert (found.learner, found.rollout, found.reason) == (CPU, CPU, "")
    assert (
        not found.needs_recompute
        and not found.overlap
        and placement_notes(configure(), found) == []
    )


def test_a_missing_gpu_is_an_error():
    trainer = start()
    trainer.config.train.rollout_device = "gpu"
    with pytest.raises(UserError) as caught:
        placed(placement_arguments(trainer))
    assert "train.rollout_device is gpu, but this build of MLX has no GPU" in caught.value.message
    assert "--train.rollout-device cpu" in caught.value.hint


@pytest.mark.parametrize(
    ("rollout", "one_kernel", "acting", "recomputes"),
    [
        (GPU, False, "bf16", False),
        (CPU, False, "fp32", True),
        (GPU, True, "fp32", True),  # the rollout kernel's only precision
    ],
)
def test_log_probs_are_recomputed_where_acting_and_training_differ(
    rollout, one_kernel, acting, recomputes
):
    found = Placement(GPU, rollout, precision="bf16", one_kernel=one_kernel)
    assert (found.acting_precision, found.needs_recompute) == (acting, recomputes)


@pytest.fixture
def on_a_gpu(monkeypatch):
    """Let placement see a GPU as MLX's default device; return ``choose_placement``'s arguments."""
    arguments = placement_arguments(start())
    monkeypatch.setattr(placement, "mx", Fake(gpu=mx.gpu, default_device=lambda: GPU))
    monkeypatch.setattr(placement, "has_gpu", lambda: True)
    monkeypatch.setattr(placement, "make_actor", lambda *_: True)
    return arguments


@pytest.mark.parametrize(
    ("rollout", "overlap", "before", "expected"),
    [
        # The typed device wins over the saved one.
        ("cpu", True, {"rollout_device": "gpu"}, CPU),
        ("gpu", False, {"rollout_device": "cpu"}, GPU),
        # A resumed run acts where it did,
        ("auto", False, {"rollout_device": "cpu"}, CPU),
        ("auto", True, {"rollout_device": "gpu"}, GPU),
        # except where it can't: these environments are Python's.
        ("auto", False, {"rollout_device": "gpu-kernel"}, CPU),
    ],
)
def test_where_a_run_acts_while_a_gpu_trains(on_a_gpu, rollout, overlap, before, expected):
    train = on_a_gpu[0].config.train
    train.rollout_device, train.overlap = rollout, overlap
    found = placed(on_a_gpu, before)
    assert (found.learner, found.rollout, found.overlap) == (GPU, expected, overlap)
    assert bool(found.reason) == (rollout == "auto")


@pytest.mark.parametrize("possible", [True, "too large"])
def test_a_resumed_run_reports_its_present_placement(on_a_gpu, monkeypatch, possible):
    arguments = on_a_gpu
    whole: Any = SimpleNamespace(form="in one launch")
    monkeypatch.setattr(placement, "rollouts_on_gpu", lambda *_: whole)
    monkeypatch.setattr(placement, "rollouts_agree", lambda *_: True)
    monkeypatch.setattr(placement, "_missing_memory", lambda *_: 10**12 * (possible == "too large"))
    arguments[0].config.train.rollout_device = "auto"
    found = placed(arguments, {"rollout_device": "gpu-kernel"})
    if possible is True:
        assert found.gpu_rollouts is whole and found.rollout_device == "gpu-kernel"
        assert found.reason == "rollouts and environments on the GPU, as before"
    else:
        assert found.gpu_rollouts is None and found.rollout_device == "cpu"
        assert found.reason.startswith("rollouts on the CPU: a step of 10 agents takes 0.0 million")
        assert found.reason.endswith("; this GPU can't step the environments as before")


def test_a_checkpoint_contains_the_rollout_device(monkeypatch):
    first = start("--train.rollout-device=auto")
    first.step()
    state = first.state()
    assert state.values["rollout_device"] == "cpu"
    given = []
    monkeypatch.setattr(
        trainer_module,
        "choose_placement",
        lambda *all: given.append(all[-1]) or choose_placement(*all),
    )
    environments = oracles.SmallVec(N, 2, (3, 2), masked=True)
    Trainer(configure("--train.rollout-device=auto"), environments, resume_state=state)
    assert given == [state.values]


@pytest.mark.parametrize(("device", "expected"), [(CPU, 4), (GPU, 6)])
def test_overlapped_training_keeps_cores_for_itself(monkeypatch, device, expected):
    monkeypatch.setattr(placement, "count_cores", lambda: 8)
    monkeypatch.setattr(placement, "mx", Fake(cpu=CPU, default_device=lambda: device))
    found = [placement.rollout_cores(configure(f"--train.overlap={i}")) for i in (0, 1)]
    assert found == [8, expected]


@pytest.mark.parametrize(
    ("device", "more", "cores", "expected"),
    [
        (GPU, "--train.overlap=1", 8, "alternate on one GPU"),
        (CPU, "--train.overlap=1", 8, "rollout and training share 8 cores"),
        (CPU, "--train.overlap=1", 1, "one core for rollout and training"),
        (CPU, "--train.precision=bf16", 8, "train.precision bf16: CPUs compute in fp"),
    ],
)
def test_options_that_can_not_help_are_noted(monkeypatch, device, more, cores, expected):
    monkeypatch.setattr(placement, "count_cores", lambda: cores)
    c = configure(more)
    chosen = device, device, placement.overlaps(c), c.train.precision, "because"
    reason, note = placement_notes(c, Placement(*chosen))
    assert reason == "because" and expected in note and "\n" not in note


# ---- the rule ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hidden", "cores", "in_c", "expected", "reason"),
    [
        (8, 16, True, "cpu", "million operations, at most 12.8 for each of 16 cores"),
        (512, 2, True, "gpu", "million operations, more than 12.8 for each of 2 cores"),
        (8, 16, False, "gpu", "the policy has no C implementation"),
    ],
)
def test_a_policy_acts_on_the_cores_while_its_operations_fit_them(
    on_a_gpu, monkeypatch, hidden, cores, in_c, expected, reason
):
    given, _ = on_a_gpu
    given.config.train.rollout_device = "auto"
    monkeypatch.setattr(placement, "rollout_threads", lambda *_: cores)
    monkeypatch.setattr(placement, "make_actor", lambda *_: in_c or None)
    weights = {"one": mx.zeros((hidden * hidden * 10,))}
    found = choose_placement(given, weights, {})
    assert found.rollout_device == expected and reason in found.reason


def test_a_shipped_environment_rolls_out_on_the_gpu_that_trains(monkeypatch):
    c = config.load("connect4", ["--vec.total-agents", "1024", "--vec.num-buffers", "1"])
    with NativeVec(find_environment("connect4"), total_agents=1024, env=c.env) as vec:
        policy = configured_policy(vec.spec, c)
        weights = policy.init(mx.random.key(0))
        monkeypatch.setattr(placement, "mx", Fake(gpu=mx.gpu, default_device=lambda: GPU))
        monkeypatch.setattr(placement, "rollouts_agree", lambda *_: True)
        found = placed((Acting(c, vec, policy), weights))
    assert found.rollout_device == "gpu-kernel" and found.reason and not found.overlap


# ---- old log-probabilities -----------------------------------------------------------------------


def copies(fields: Any) -> dict[str, np.ndarray]:
    return {name: np.array(array) for name, array in fields.items() if array is not None}


def watch_fields(trainer: Any) -> list[tuple[dict[str, np.ndarray], dict[str, np.ndarray]]]:
    """Return a list that gets each rollout's fields before and after they are recomputed."""
    steps, seen = functions(trainer), []

    def recompute(fields, weights, states):
        result = steps.recompute(fields, weights, states)
        assert result["logprobs"] is not fields["logprobs"]
        read = {name: np.array(a) for name, a in result.items() if a is not None}
        seen.append((copies(fields), read))
        return result

    replace_functions(trainer, recompute=recompute)
    return seen


@pytest.mark.parametrize(
    ("network", "reset", "overlap"), [("MinGRU", False, 1), ("LSTM", False, 0), ("MLP", True, 1)]
)
def test_recomputed_log_probs_are_those_of_the_acting_weights_and_states(
    monkeypatch, network, reset, overlap
):
    """Both compute in fp32 here, so both log-probabilities are equal up to rounding."""
    monkeypatch.setattr(Placement, "needs_recompute", property(lambda _: True))
    more = [f"--reset-state={reset}", "--torch.network", network, f"--train.overlap={overlap}"]
    trainer = start(*more, "--policy.reset-on-terminal", "True")
    read = watch_fields(trainer)
    list(trainer)
    assert len(read) == 6
    for stored, ours in read:
        acted = ours["logprobs"] - np.log(ours.get("lag", 1.0))  # lag: of the present policy to it
        assert acted.shape == (T, N)
        np.testing.assert_allclose(acted, stored["logprobs"], rtol=0, atol=1e-5)
    assert np.abs(read[-1][0]["logprobs"] - read[0][0]["logprobs"]).max() > 0.01


@pytest.mark.parametrize(("kind", "reset"), [("bf16", True), ("fp16", False)])
def test_first_ratios_are_1_with_recomputed_log_probs_of_low_precision(monkeypatch, kind, reset):
    monkeypatch.setattr(Placement, "acting_precision", "fp32")
    errors = {}
    for recomputed in (True, False):
        monkeypatch.setattr(Placement, "needs_recompute", property(lambda _, r=recomputed: r))
        trainer = start(f"--train.precision={kind}", f"--reset-state={reset}")
        logs = [trainer.step() for _ in range(2)]
        errors[recomputed] = logs[1]["loss/first_ratio_error"]
        if reset:
            assert "loss/first_ratio_error" in logs[0]
    epsilon = {"bf16": 2**-8, "fp16": 2**-11}[kind]
    assert errors[True] < 1e-6
    assert epsilon / 50 < errors[False] < 16 * epsilon


def test_ranks_choose_again_after_one_has_refused_a_kernel():
    class One(SingleProcess):
        size = 2
        differ = iter([True, False])

        def agree_on_disabled(self) -> bool:
            return next(self.differ)

    found = iter([Placement(GPU, GPU), Placement(GPU, CPU)])
    assert broadcast_from_rank0(One(), configure(), lambda _: next(found)).rollout == CPU
