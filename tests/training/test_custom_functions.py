"""A user's loss, advantages and optimizer: they are used, saved, and resumed with."""

import sys
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from emulated_run import emulated_gpu
from mlx.utils import tree_map
from oracles import flat, same
from running import ROOT, TINY, cli, errors, learned, only, records

import puffer_mlx
from puffer_mlx.config.components import algorithms
from puffer_mlx.errors import UserError
from puffer_mlx.ops import implementation
from puffer_mlx.ppo.advantage import advantages
from puffer_mlx.ppo.loss import ppo_loss
from puffer_mlx.ppo.optimizers import Optimizer, adam, step_if_finite

SMALL: dict[str, Any] = {"total_agents": 8, "horizon": 8, "minibatch_size": 32, "hidden_size": 8}
SMALL |= {"num_layers": 1, "total_timesteps": 4 * 64, "num_threads": 1, "device": "cpu", "seed": 2}
CARTPOLE = {"total_agents": 2, "horizon": 32, "total_timesteps": 256, "device": "cpu"}
SELF_PLAY = {"vec.num_frozen_banks": 1, "vec.frozen_bank_pct": 0.25, "selfplay.enabled": True}
SELF_PLAY |= {"total_agents": 32, "total_timesteps": 4 * 256}
ALGORITHMS = algorithms()
GYM = "gym:CartPole-v1"


def builtin_loss(now, batch, **coefficients):
    return ppo_loss(now.logprob, now.entropy, now.value, batch, **coefficients)


def extended_loss(now, batch, **coefficients):
    """Custom loss: PPO's plus a term of the features, which is also reported."""
    loss, metrics = builtin_loss(now, batch, **coefficients)
    T, S = now.shape
    assert now.observations.shape[:2] == (T, S) and now.features.shape[0] == T * S
    assert now.actions.shape[0] == T * S and {"encoder", "decoder"} <= now.weights.keys()
    term = mx.mean(mx.square(now.features.astype(mx.float32)))
    return loss + 0.5 * term, metrics, {"term": term}


def trained(env: str = "squared", **settings: Any) -> puffer_mlx.Trainer:
    common = CARTPOLE if env == GYM else SMALL
    with puffer_mlx.train(env, {**common, **settings}) as trainer:
        return trainer


def same_weights(one: puffer_mlx.Trainer, other: puffer_mlx.Trainer) -> bool:
    return same(one.weights, other.weights)


# ---- a loss --------------------------------------------------------------------------------------

LOSSES = {
    **{name: ("squared", {"algorithm": name}) for name in ALGORITHMS},
    "bf16": ("squared", {"precision": "bf16"}),
    "overlapped, separate value": ("squared", {"overlap": True, "separate_value": True}),
    "self-play": ("rock_paper_scissors", SELF_PLAY),
}


@pytest.mark.parametrize("case", LOSSES)
def test_a_loss_is_used_and_its_metrics_are_reported(case):
    env, settings = LOSSES[case]
    plain = trained(env, **settings)
    assert same_weights(plain, trained(env, loss=builtin_loss, **settings))
    other = trained(env, loss=extended_loss, **settings)
    assert not same_weights(plain, other)
    for logs in other.history:
        assert logs["loss/skipped_steps"] == 0 and logs["loss/term"] > 0
        parts = [logs[f"loss/{name}"] for name in ("policy", "value", "entropy", "term")]
        coefficients = 1, other.config.train.vf_coef, -other.config.train.ent_coef, 0.5
        expected = np.dot(parts, coefficients)
        assert logs["loss/total"] == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_a_loss_replaces_an_epoch_in_one_operation_and_is_reported_once(capfd):
    fused = trained(GYM)
    assert not capfd.readouterr().err
    implementation._report.cache_clear()
    other, _ = (trained(GYM, loss=extended_loss) for _ in range(2))
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("puffer_mlx: test_custom_functions.extended_loss is given: the epoch in")
    assert line.endswith(" isn't used, slower")
    plain = trained(GYM, loss=builtin_loss)
    assert fused.learner.algorithm.at_once and not other.learner.algorithm.at_once
    assert not same_weights(plain, other)
    np.testing.assert_allclose(flat(fused.weights), flat(plain.weights), rtol=0, atol=1e-4)


def test_a_loss_replaces_the_kernels_of_a_gpu(capfd):
    implementation._report.cache_clear()
    expected = trained(loss=extended_loss)
    capfd.readouterr()
    kernels = {}
    for loss in "clipped", extended_loss:
        with emulated_gpu() as gpu:
            found = trained(loss=loss, one_launch=0)
        kernels[loss] = {name for name in gpu.names if "loss" in name}
    assert kernels["clipped"] and not kernels[extended_loss]
    np.testing.assert_allclose(flat(found.weights), flat(expected.weights), rtol=0, atol=3e-4)
    (line,) = capfd.readouterr().err.splitlines()
    assert "extended_loss is given: the loss by closed form isn't used, slower" in line


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda now, batch, **c: builtin_loss(now, batch, **c)[0], r"an array of shape \(\)"),
        (lambda now, batch, **c: (now.value, 1), r"as loss an array of shape \(32,\)"),
        (lambda now, batch, **c: (*builtin_loss(now, batch, **c), {"kl": mx.array(1)}), "kl twice"),
        (lambda now, batch: 1, "can't be called: got an unexpected keyword .*'ent_coef'"),
        ([3], "loss .* is list, not a function"),
    ],
    ids=["no pair", "shape", "twice", "arguments", "no function"],
)
def test_a_wrong_loss_is_an_error_with_its_name(loss, message):
    with pytest.raises(UserError, match=message) as error:
        trained(loss=loss)
    assert "train.loss test_custom_functions:" in str(error.value) or "builtins" in str(error.value)


# ---- advantages ----------------------------------------------------------------------------------


def builtin_advantages(values, rewards, terminals, ratios, **coefficients):
    return advantages(values, rewards, terminals, ratios, **coefficients)


def halved(*arrays, **coefficients):
    return 0.5 * advantages(*arrays, **coefficients)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_advantages_are_used(algorithm, recwarn):
    plain = trained(algorithm=algorithm)
    assert same_weights(plain, trained(algorithm=algorithm, advantage=builtin_advantages))
    assert not same_weights(plain, trained(algorithm=algorithm, advantage=halved))
    assert not recwarn.list  # no key became unused
    with pytest.raises(UserError, match=r"returned as advantages an array of shape \(\)"):
        trained(algorithm=algorithm, advantage=lambda values, *_, **__: mx.sum(values))


# ---- an optimizer --------------------------------------------------------------------------------


def sgd_step(weights, grads, state, loss, lr, max_grad_norm):
    def update(weights, grads, state):
        moved = tree_map(lambda w, g: w - lr * g, weights, grads)
        return moved, {**state, "count": state["count"] + 1}

    return step_if_finite(update, weights, grads, state, loss, max_grad_norm)


SGD = Optimizer(init=lambda weights: {"count": mx.array(0.0)}, step=sgd_step, reads=())
COPY_OF_ADAM = Optimizer(adam.init, adam.step, ("beta1", "beta2", "eps", "weight_decay"))


@pytest.mark.parametrize("env", ["squared", GYM])
def test_an_optimizer_is_used(env):
    usual = trained(env, optimizer="adam")
    with pytest.warns(UserWarning, match=r"train\.beta1 is unused here"):
        other = trained(env, optimizer=SGD, beta1=0.5)
    assert not same_weights(usual, other) and other.train_state.optimizer["count"].item() > 1
    assert other.config.train.optimizer == "test_custom_functions:SGD"
    copied = trained(env, optimizer=COPY_OF_ADAM)
    assert copied.learner.algorithm.at_once is None
    np.testing.assert_allclose(flat(copied.weights), flat(usual.weights), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (Optimizer, r"train\.optimizer .* not "),
        (SGD._replace(reads=("momentum",)), r"reads momentum, which \[train\] lacks"),
    ],
)
def test_a_wrong_optimizer_is_an_error(optimizer, message):
    with pytest.raises(UserError, match=message):
        trained(optimizer=optimizer)


# ---- saved and resumed ---------------------------------------------------------------------------

GIVEN: dict[str, Any] = {"loss": extended_loss, "advantage": halved, "optimizer": SGD}


def test_a_program_resumes_with_its_functions_to_the_bit(here):
    whole = trained(**GIVEN)
    with puffer_mlx.Trainer(SMALL, "squared", **GIVEN) as half:
        half.step()
        half.save("half")
    allowed: dict[str, Any] = {"allow_code": True}
    for given in GIVEN, allowed:
        with puffer_mlx.Trainer.load("half", **given) as resumed:
            assert len(list(resumed)) == 3 and same_weights(whole, resumed)
    with pytest.raises(UserError, match="names Python code that would be imported"):
        puffer_mlx.Trainer.load("half")
    with puffer_mlx.Trainer.load("half", loss="clipped", allow_code=True) as resumed:
        assert len(list(resumed)) == 3 and not same_weights(whole, resumed)
    loss = puffer_mlx.Policy.load("half").config.train.loss
    assert loss == "test_custom_functions:extended_loss"


def test_a_local_function_must_be_given_again(here):
    def local(now, batch, **coefficients):
        return extended_loss(now, batch, **coefficients)

    with puffer_mlx.Trainer(SMALL, "squared", loss=local) as half:
        half.step()
        half.save("half")
    with pytest.raises(UserError, match=r"has no test_a_local_.*local") as error:
        puffer_mlx.Trainer.load("half", allow_code=True)
    assert "in Python loss=" in error.value.hint
    with puffer_mlx.Trainer.load("half", loss=local) as resumed:
        assert len(list(resumed)) == 3 and same_weights(trained(loss=extended_loss), resumed)


@pytest.fixture
def module(here, monkeypatch):
    """Write the module ``mine.py`` with custom training functions here."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT / "tests" / "training")])
    (here / "mine.py").write_text("from test_custom_functions import SGD, extended_loss, halved\n")
    return here


def train(*argv: object) -> int | None:
    return cli("train").main(["-q", *map(str, argv)])


def test_the_command_resumes_with_functions_of_a_module_to_the_bit(module, capsys):
    named = ["--train.loss", "mine:extended_loss", "--train.advantage", "mine:halved"]
    named += ["--train.optimizer", "mine:SGD"]
    assert not train(*TINY, *named, "--checkpoint-dir", "whole", "--log-dir", "whole/logs")
    assert not train(*TINY, *named, "--stop-at", 3 * 64)
    assert not train("squared", "--resume", "latest", *named)
    whole = [learned(logs) for logs in records(module / "whole")]
    assert "loss/term" in whole[0] and whole == [learned(logs) for logs in records(module)]
    made = only(module, "checkpoints/squared/*/best").parent
    assert not cli("export").main([str(made), "--to", "torch", "--out", "policy.pt"])
    capsys.readouterr()
    assert train("squared", "--resume", made) == 2
    said = errors(capsys.readouterr().err)
    assert "names Python code that would be imported: mine:" in said and "--allow-code" in said
    assert not cli("evaluate").main(["squared", "--device", "cpu", "--load-model-path", str(made)])


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("mine:nothing", "train.loss mine:nothing: mine has no nothing"),
        ("larger", "clipped or normalized or module:function"),
    ],
)
def test_an_unknown_name_is_an_error(module, capsys, loss, message):
    assert train(*TINY, "--train.loss", loss) == 2
    assert message in errors(capsys.readouterr().err)
