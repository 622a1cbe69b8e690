"""A loss, advantages and an optimizer of the user's own: obeyed, saved and gone on with."""

import importlib
import sys
from itertools import repeat
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_map
from oracles import flat, same
from running import ROOT, TINY, cli, errors, learned, only, records

import puffer_mlx
from puffer_mlx import config
from puffer_mlx.config.parts import algorithms as names_of_algorithms
from puffer_mlx.errors import UserError
from puffer_mlx.ops import implementation
from puffer_mlx.policy.policy import configured_policy
from puffer_mlx.ppo import algorithms
from puffer_mlx.ppo.advantage import advantages
from puffer_mlx.ppo.loss import METRICS, Targets, ppo_loss
from puffer_mlx.ppo.optimizers import Optimizer, adam, step_if_finite
from puffer_mlx.ppo.sections import Minibatch
from puffer_mlx.ppo.update import compile_update
from puffer_mlx.spec import ActionSpec, EnvSpec

sys.path.append(str(ROOT / "benchmarks"))
Graphs = importlib.import_module("graphs_of_a_gpu").Graphs
EXAMPLE = ROOT / "examples" / "library" / "auxiliary_loss.py"
SMALL: dict[str, Any] = {"total_agents": 8, "horizon": 8, "minibatch_size": 32, "hidden_size": 8}
SMALL |= {"num_layers": 1, "total_timesteps": 4 * 64, "num_threads": 1, "device": "cpu", "seed": 2}
CARTPOLE = {"total_agents": 2, "horizon": 32, "total_timesteps": 256, "device": "cpu"}
ALGORITHMS = names_of_algorithms()


def ours(now, batch, **numbers):
    return ppo_loss(now.logprob, now.entropy, now.value, batch, **numbers)


def larger(now, batch, **numbers):
    """A term of features, weights and observations, and statistics beside ours."""
    loss, metrics = ours(now, batch, **numbers)
    T, S = now.shape
    assert now.observations.shape[:2] == (T, S) and now.features.shape[0] == T * S
    assert now.actions.shape[0] == T * S and {"encoder", "decoder"} <= now.weights.keys()
    term = mx.mean(mx.square(now.features.astype(mx.float32)))
    return loss + 0.5 * term, metrics, {"term": term}


def trained(env="squared", **settings) -> puffer_mlx.Trainer:
    with puffer_mlx.train(env, SMALL if env == "squared" else CARTPOLE, **settings) as trainer:
        return trainer


def alike(one, other) -> bool:
    return same(one.weights, other.weights)


# ---- a loss --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "precision"),
    [*zip(ALGORITHMS, repeat("fp32")), (ALGORITHMS[0], "bf16"), (ALGORITHMS[-1], "fp16")],
)
def test_a_loss(algorithm, precision):
    settings = {"algorithm": algorithm, "precision": precision}
    plain = trained(**settings)
    assert alike(plain, trained(loss=ours, **settings))  # in MLX on a CPU: the same sums
    other = trained(loss=larger, **settings)
    assert not alike(plain, other)
    for logs in other.history:
        assert logs["loss/skipped_steps"] == 0 and logs["loss/term"] > 0
        parts = [logs[f"loss/{name}"] for name in ("policy", "value", "entropy", "term")]
        numbers = 1, other.config.train.vf_coef, -other.config.train.ent_coef, 0.5
        assert logs["loss/total"] == pytest.approx(np.dot(parts, numbers), rel=1e-4, abs=1e-6)


def test_a_loss_where_an_epoch_would_be_one_operation(capfd):
    """A small policy of Gymnasium's on a CPU; a line says what it costs, once."""
    fused = trained("gym:CartPole-v1")
    assert not capfd.readouterr().err
    implementation._report.cache_clear()
    other, _ = (trained("gym:CartPole-v1", loss=larger) for _ in range(2))
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("puffer_mlx: test_custom_functions.larger is given: the epoch in one")
    assert line.endswith(" isn't used, slower")
    plain = trained("gym:CartPole-v1", loss=ours)
    assert fused.learner.algorithm.at_once and not other.learner.algorithm.at_once
    assert not alike(plain, other)
    np.testing.assert_allclose(flat(fused.weights), flat(plain.weights), rtol=0, atol=1e-4)


def test_a_loss_beside():
    settings: dict[str, Any] = {"overlap": True, "separate_value": True}
    plain, other = trained(**settings), trained(loss=larger, **settings)
    assert alike(plain, trained(loss=ours, **settings)) and not alike(plain, other)


def test_a_loss_in_self_play():
    settings = {**SMALL, "vec.num_frozen_banks": 1, "vec.frozen_bank_pct": 0.25, "total_agents": 32}
    settings |= {"selfplay.enabled": True, "total_timesteps": 4 * 256}
    found = []
    for loss in ("clipped", ours, larger):
        with puffer_mlx.train("rock_paper_scissors", settings, loss=loss) as trainer:
            found.append(flat(trainer.weights))
    plain, called, other = found
    assert np.array_equal(plain, called) and not np.array_equal(plain, other)


BAD = {
    "no pair": (
        lambda now, batch, **n: ours(now, batch, **n)[0],
        r"returned an array of shape \(\)",
    ),
    "too many": (lambda now, batch, **n: (1, 2, 3, 4), "returned 4 values"),
    "shape": (lambda now, batch, **n: (now.value, 1), r"as loss an array of shape \(32,\)"),
    "number": (lambda now, batch, **n: (1.0, 1), "as loss an object of float"),
    "statistics": (lambda now, batch, **n: (mx.array(1.0), mx.zeros(6)), r"as statistics .*\(6,\)"),
    "third": (lambda now, batch, **n: (*ours(now, batch, **n), 3), "its third an object of int"),
    "twice": (lambda now, batch, **n: (*ours(now, batch, **n), {"kl": mx.array(1)}), "kl twice"),
    "many": (lambda now, batch, **n: (*ours(now, batch, **n), {"x": now.value}), r"as x .*\(32,\)"),
    "arguments": (lambda now, batch: 1, "can't be called: got an unexpected keyword .*'ent_coef'"),
    "none": (lambda: 1, "can't be called: too many positional arguments"),
    "not one": ([3], "loss .* is list, not a function"),
}


def test_what_is_no_loss_is_said():
    for function, message in BAD.values():
        with pytest.raises(UserError, match=message) as error:
            trained(loss=function)
        said = str(error.value)
        assert "train.loss test_custom_functions:" in said or "builtins" in said


def test_the_example_as_a_gpu_s_graph(monkeypatch, capfd):
    """By itself in MLX, and a line says so; ours is a kernel there."""
    monkeypatch.syspath_prepend(EXAMPLE.parent)
    T, S, D = 4, 8, 6
    spec = EnvSpec("x", D, np.dtype(np.float32), ActionSpec((3,)))
    graphs = Graphs("metal")
    found = {}
    for loss in "clipped", "auxiliary_loss:loss":
        policy = config.Policy(hidden_size=8, num_layers=1)
        parts = config.Torch(encoder="auxiliary_loss:Encoder")
        settings = config.Config(policy=policy, torch=parts, train=config.Train(loss=loss))
        with graphs.building():
            policy = configured_policy(spec, settings)
            weights = policy.init(mx.random.key(0))
            steps = compile_update(policy, settings, algorithms.make(policy, settings))
            seen, rows = graphs.ones((T, S, D), mx.float32), graphs.ones((T * S,), mx.float32)
            targets = Targets(rows, rows, rows, rows)
            minibatch = Minibatch(seen, rows[:, None], targets=targets)
            results = steps.gradients(weights, minibatch, rows[0], rows[0])
            (_, statistics, *_), gradients = results
            found[loss] = graphs.launches(gradients, statistics)
        assert statistics.shape == (len(METRICS) + (loss != "clipped"),)
    ours, other = ({*each.counted} for each in found.values())
    kernels = {name for name in ours if "loss" in name}
    assert kernels and not kernels & other and found[loss].total > found["clipped"].total
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(
        "puffer_mlx: auxiliary_loss.loss is given: the loss by closed form isn't"
    )


# ---- advantages ----------------------------------------------------------------------------------


def our_advantages(values, rewards, terminals, ratios, **numbers):
    return advantages(values, rewards, terminals, ratios, **numbers)


def halved(*arrays, **numbers):
    return 0.5 * advantages(*arrays, **numbers)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_advantages(algorithm, recwarn):
    plain, other = trained(algorithm=algorithm), trained(algorithm=algorithm, advantage=halved)
    assert alike(plain, trained(algorithm=algorithm, advantage=our_advantages))
    assert not alike(plain, other) and not recwarn.list  # of keys that change nothing
    with pytest.raises(UserError, match=r"returned as advantages an array of shape \(\)"):
        trained(algorithm=algorithm, advantage=lambda values, *_, **__: mx.sum(values))


# ---- an optimizer --------------------------------------------------------------------------------


def sgd_step(weights, grads, state, loss, lr, max_grad_norm):
    def update(weights, grads, state):
        moved = tree_map(lambda w, g: w - lr * g, weights, grads)
        return moved, {**state, "count": state["count"] + 1}

    return step_if_finite(update, weights, grads, state, loss, max_grad_norm)


SGD = Optimizer(init=lambda weights: {"count": mx.array(0.0)}, step=sgd_step, reads=())
OUR_ADAM = Optimizer(adam.init, adam.step, ("beta1", "beta2", "eps", "weight_decay"))


@pytest.mark.parametrize("env", ["squared", "gym:CartPole-v1"])
def test_an_optimizer(env):
    usual, other = trained(env, optimizer="adam"), trained(env, optimizer=SGD)
    assert not alike(usual, other) and other.train_state.optimizer["count"].item() > 1
    assert other.config.train.optimizer == "test_custom_functions:SGD"
    with pytest.warns(UserWarning, match=r"train\.beta1 is unused here"):
        trained(env, optimizer=SGD, beta1=0.5)
    called = trained(env, optimizer=OUR_ADAM)
    assert called.learner.algorithm.at_once is None
    np.testing.assert_allclose(flat(called.weights), flat(usual.weights), rtol=0, atol=1e-4)
    assert env != "squared" or alike(called, usual)
    for wrong in (sgd_step, Optimizer, 3.0):
        with pytest.raises(UserError, match=r"train\.optimizer .* not "):
            trained(env, optimizer=wrong)
    with pytest.raises(UserError, match=r"reads momentum, which \[train\] hasn't"):
        trained(env, optimizer=SGD._replace(reads=("momentum",)))


# ---- saved, and gone on with ---------------------------------------------------------------------

GIVEN = {"loss": larger, "advantage": halved, "optimizer": SGD}


def test_a_program_goes_on_to_the_bit(here, monkeypatch):
    whole = trained(**GIVEN)
    with puffer_mlx.Trainer(SMALL, "squared", **GIVEN) as half:
        half.step()
        half.save("half")
    with puffer_mlx.Trainer.load("half", **GIVEN) as resumed:
        assert len(list(resumed)) == 3 and alike(whole, resumed)
    with pytest.raises(UserError, match="names Python code that would be imported"):
        puffer_mlx.Trainer.load("half")
    with puffer_mlx.Trainer.load("half", allow_code=True) as resumed:
        assert len(list(resumed)) == 3 and alike(whole, resumed)
    with puffer_mlx.Trainer.load("half", loss="clipped", allow_code=True) as resumed:
        assert len(list(resumed)) == 3 and not alike(whole, resumed)
    assert puffer_mlx.Policy.load("half").config.train.loss == "test_custom_functions:larger"


def test_a_function_that_is_not_found_is_to_be_given_again(here):
    def local(now, batch, **numbers):
        return larger(now, batch, **numbers)

    with puffer_mlx.Trainer(SMALL, "squared", loss=local) as half:
        half.step()
        half.save("half")
    with pytest.raises(UserError, match=r"has no test_a_function_.*local") as error:
        puffer_mlx.Trainer.load("half", allow_code=True)
    assert "in Python loss=" in error.value.hint
    with puffer_mlx.Trainer.load("half", loss=local) as resumed:
        assert len(list(resumed)) == 3 and alike(trained(loss=larger), resumed)


MINE = f"""
import sys
sys.path.append({str(ROOT / "tests" / "training")!r})
from test_custom_functions import SGD, halved, larger
"""
NAMED = "--train.loss", "mine:larger", "--train.advantage", "mine:halved"
NAMED += "--train.optimizer", "mine:SGD"


@pytest.fixture
def mine(here, monkeypatch):
    """A module in the working directory."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (here / "mine.py").write_text(MINE)
    yield here
    sys.modules.pop("mine", None)


def train(*argv: object) -> int | None:
    return cli("train").main(["-q", *map(str, argv)])


def test_a_command_goes_on_to_the_bit(mine, capsys):
    assert not train(*TINY, *NAMED, "--checkpoint-dir", "whole", "--log-dir", "whole/logs")
    assert not train(*TINY, *NAMED, "--stop-at", 3 * 64)
    assert not train("squared", "--resume", "latest", *NAMED)
    whole = [learned(logs) for logs in records(mine / "whole")]
    assert "loss/term" in whole[0] and whole == [learned(logs) for logs in records(mine)]
    made = only(mine, "checkpoints/squared/*/best").parent
    assert not cli("export").main([str(made), "--to", "torch", "--out", "policy.pt"])
    capsys.readouterr()
    assert train("squared", "--resume", made) == 2
    said = errors(capsys.readouterr().err)
    assert "names Python code that would be imported: mine:" in said and "--allow-code" in said
    assert not cli("evaluate").main(["squared", "--device", "cpu", "--load-model-path", str(made)])


NO_NAMES = [
    (["--train.loss", "mine:nothing"], "train.loss mine:nothing: mine has no nothing"),
    (["--train.advantage", "nowhere:x"], "train.advantage nowhere:x: No module"),
    (["--train.optimizer", "mine:larger"], "mine:larger is function, not an Optimizer"),
    (["--train.loss", "larger"], "clipped or normalized or module:function"),
    (["--train.optimizer", "sgd"], "adam or muon or module:OPTIMIZER"),
]


def test_a_name_that_means_nothing_is_said(mine, capsys):
    for words, said in NO_NAMES:
        assert train(*TINY, *words) == 2
        assert said in errors(capsys.readouterr().err)
