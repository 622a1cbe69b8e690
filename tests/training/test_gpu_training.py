"""Training with the kernels of a GPU, which run as C++ here, compared with training on the CPU."""

import importlib
from contextlib import nullcontext
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from emulated_run import emulated_gpu
from oracles import RandomVec, named
from watching import functions, replace_functions

from puffer_mlx import config
from puffer_mlx.ops.implementation import COMPARING_VARIABLE
from puffer_mlx.ppo import update
from puffer_mlx.ppo.loss import ppo_loss
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.vec import make

T, N, S, K, H, EPOCHS = 6, 16, 8, 3, 8, 2
OPTIONS = f"""
    --device cpu --policy.hidden-size {H} --policy.num-layers 2
    --vec.total-agents {N} --vec.num-buffers 2 --train.horizon {T} --train.minibatch-size {S * T}
    --train.replay-ratio 1.5 --train.learning-rate 0.02 --train.ent-coef 0.02
    --train.total-timesteps {EPOCHS * N * T}
"""
FIVE = tuple(
    ["--train.algorithm", "puffer5", "--reset-state", "0", "--policy.reset-on-terminal", "1"]
)
BOTH_CLIP = ("--train.clip-coef", "0.02", "--train.max-grad-norm", "0.3")


CASES = {  # action sizes, whether they are masked, options
    "discrete": ((3,), False, ()),
    "masked": ((3, 2), True, BOTH_CLIP),
    "LSTM, resets": ((4,), False, ("--torch.network", "LSTM", "--policy.reset-on-terminal", "1")),
    "torch's layout": ((3, 2), False, ("--policy.dialect", "torch")),
    "Adam": ((3,), False, ("--train.optimizer", "adam", "--train.learning-rate", "0.003")),
    "S": ((3,), False, ("--train.advantage", "S", "--torch.network", "GRU")),
    "5.0, masked": ((3, 2), True, (*FIVE, *BOTH_CLIP, "--train.vtrace", "1")),
    "5.0, continuous": ((1, 1), False, (*FIVE, "--train.vtrace", "1")),
    "5.0, MLP": ((3,), False, (*FIVE, "--torch.network", "MLP", "--train.vtrace-rho-clip", "0.5")),
    "5.0, bf16": (
        (1, 1),
        False,
        (*FIVE, "--train.precision", "bf16", "--train.one-launch", "0"),
    ),
    "5.0, fp16": ((3, 2), True, (*FIVE, "--train.precision", "fp16")),
}


def train(case: str) -> tuple[Trainer, list[dict[str, float]]]:
    sizes, masked, options = CASES[case]
    configured = config.load("squared", [*OPTIONS.split(), *options])
    trainer = Trainer(configured, RandomVec(N, sizes, masked))
    return trainer, list(trainer)


@pytest.mark.parametrize("case", CASES)
def test_weights_and_losses_equal_those_of_the_cpu(case):
    with emulated_gpu() as gpu:
        trainer, logs = train(case)
    plain, expected = train(case)
    assert gpu.names  # something was launched
    rounded = trainer.config.train.precision != "fp32"  # another order of sums, another rounding
    theirs = dict(named(plain.weights))
    for name, array in named(trainer.weights):
        bound = 2e-2 if rounded else 3e-4
        other = np.array(theirs[name])
        np.testing.assert_allclose(np.array(array), other, rtol=0, atol=bound, err_msg=name)
    for record, other in zip(logs, expected, strict=True):
        ours, others = (
            {key: value for key, value in r.items() if key.startswith("loss/")}
            for r in (record, other)
        )
        assert ours == pytest.approx(others, rel=1e-2 if rounded else 2e-3, abs=2e-4)


@pytest.mark.parametrize("network", ["MinGRU", "LSTM", "GRU"])
def test_acting_and_training_compute_the_same_policy(network):
    """States are carried between rollouts and are zeros after an episode's end."""
    options = *OPTIONS.split(), *FIVE, "--torch.network", network, "--train.one-launch", "0"
    configured = config.load("squared", [*options, "--train.minibatch-size", str(N * T)])
    with emulated_gpu() as gpu:
        trainer = Trainer(configured, RandomVec(N, (3,), False))
        errors = [trainer.step()["loss/first_ratio_error"] for _ in range(EPOCHS)]
    assert {f"{network.lower()}_{form}" for form in ("act", "forward")} <= gpu.names
    assert max(errors) < 1e-5
    terminals = np.array(trainer.collector.buffer.terminals)
    assert terminals[1:T].any(), "no episode ends within"
    assert all((np.array(array) != 0).any() for _, array in named(trainer.collector.states))


FORMS = {  # ways to compute a minibatch's gradients: whether a GPU is emulated, options
    "CPU": (False, ()),
    "CPU, a small network": (
        False,
        ("--train.algorithm", "ppo", "--torch.network", "MLP", "--train.optimizer", "adam"),
    ),
    "closed form": (True, ("--train.one-launch", "0")),
    "closed form, continuous": (True, ("--train.one-launch", "0", "--train.vtrace", "1", *FIVE)),
    "one launch": (True, ("--policy.hidden-size", "32", "--train.one-launch", "1")),
    "one launch, 5.0": (True, ("--policy.hidden-size", "32", "--train.one-launch", "1", *FIVE)),
}


def short_epochs(*options: str, env: str = "squared", epochs: int = 1) -> config.Config:
    given = config.load(env, [*OPTIONS.split(), *options])
    given.train.horizon = 8
    given.train.minibatch_size = 8 * S
    given.train.total_timesteps = epochs * 8 * N
    return given


def change_algorithm(monkeypatch, name: str, **changes: Any) -> None:
    """Replace fields of a training algorithm; its kernels remain in use."""
    monkeypatch.setenv(COMPARING_VARIABLE, "1")
    module = importlib.import_module(f"puffer_mlx.ppo.algorithms.{name}")
    make = module.make
    monkeypatch.setattr(module, "make", lambda *given: make(*given)._replace(**changes))


def first_minibatch(given: config.Config, sizes: tuple[int, ...] = (3,)) -> tuple[Any, Any]:
    """Return the losses and gradients of a training run's first minibatch."""
    trainer = Trainer(given, RandomVec(N, sizes, False))
    trainer.learner.graph = None
    results = []
    real = functions(trainer).gradients

    def gradients(*inputs):
        results.append(real(*inputs))
        return results[-1]

    replace_functions(trainer, gradients=gradients)
    trainer.step()
    return results[0]


def half_loss(now, targets, **coefficients):
    total, metrics = ppo_loss(now.logprob, now.entropy, now.value, targets, **coefficients)
    return 0.5 * total, metrics


@pytest.mark.parametrize("form", FORMS)
def test_gradients_are_those_of_an_algorithms_changed_loss(form, monkeypatch):
    """No kernel for PPO's loss may replace it."""
    emulated, options = FORMS[form]
    sizes = (1, 1) if "continuous" in form else (3,)
    given = short_epochs(*options)
    name = given.train.algorithm
    with emulated_gpu() if emulated else nullcontext() as gpu:
        with monkeypatch.context() as patch:
            change_algorithm(patch, name, at_once=None)
            _, expected = first_minibatch(given, sizes)
        kernels = {*gpu.names} if gpu else set()
        change_algorithm(monkeypatch, name, loss=half_loss)
        _, found = first_minibatch(given, sizes)
    assert ("mingru_minibatch" in kernels) == ("one launch" in form)
    assert ("finish_loss" in kernels) == (emulated and "one launch" not in form)
    tolerance = 0.02 if form.startswith("one launch") else 1e-5
    for (_, one), (_, two) in zip(named(found), named(expected), strict=True):
        half = 0.5 * np.array(two)
        bound = 2 * tolerance * np.abs(half).max()
        np.testing.assert_allclose(np.array(one), half, rtol=0, atol=bound)


@pytest.mark.parametrize("one_launch", ["0", "1"])
def test_advantages_are_recomputed_by_an_algorithms_changed_function(one_launch, monkeypatch):
    """No kernel that recomputes them as puffer5 does may replace it."""
    given = short_epochs("--policy.hidden-size", "32", "--train.one-launch", one_launch, *FIVE)
    recompute = lambda now, targets: mx.full(now.value.shape, 3.0)  # noqa: E731
    change_algorithm(monkeypatch, "puffer5", recompute=recompute)
    with emulated_gpu() as gpu:
        losses, _ = first_minibatch(given)
    assert "mingru_minibatch" not in gpu.names and "finish_loss" in gpu.names
    assert (np.array(losses[-1]) == 3).all()


@pytest.mark.parametrize(
    ("options", "stored"),
    [(("--train.algorithm", "puffer4"), False), (FIVE, True)],
    ids=["4.0 in one launch", "5.0 with stored activations"],
)
def test_a_whole_epoch_in_one_graph_equals_its_minibatches(options, stored, monkeypatch):
    monkeypatch.setattr(update, "device_memory", lambda: 2**30)
    monkeypatch.setattr("puffer_mlx.training.trainer.PROFILE_DELAY_S", 0.0)  # profile an epoch
    words = *options, "--train.one-launch", str(int(not stored)), "--policy.hidden-size", "32"
    given = short_epochs(*words, env="cartpole", epochs=4)

    def run(whole: bool) -> tuple[Trainer, list[dict[str, float]], list[str]]:
        with make(given, 1) as vec:
            trainer, gradients = Trainer(given, vec), []
            inner = functions(trainer).gradients
            if not whole:
                trainer.learner.graph = None
            counted = lambda *a: gradients.append("") or inner(*a)  # noqa: E731
            replace_functions(trainer, gradients=counted)
            return trainer, list(trainer), gradients

    with emulated_gpu() as gpu:
        (ours, records, few), (other, expected, many) = run(True), run(False)
    assert ("mingru_minibatch" in gpu.names) != stored
    assert len(few) == K < len(many)  # only the profiled epoch calls the function
    theirs = dict(named([*other.train_state]))
    for name, array in named([*ours.train_state]):
        np.testing.assert_array_equal(np.array(array), np.array(theirs[name]), name)
    for record, wanted in zip(records, expected, strict=True):
        losses = {key: x for key, x in wanted.items() if key.startswith("loss/")}
        assert losses["loss/first_ratio_error"] < 1e-5
        assert losses == {key: x for key, x in record.items() if key.startswith("loss/")}
