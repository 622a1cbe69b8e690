"""An algorithm is one file, and so is an optimizer: files put beside the others are used."""

from running import TINY, records, train_with_added_file

REINFORCE = '''
"""REINFORCE of Williams (1992): discounted returns, with the value as baseline."""

import mlx.core as mx
from mlx.utils import tree_map

from puffer_mlx.config.components import Facts
from puffer_mlx.ops import take_rows
from puffer_mlx.ppo.advantage import rollout_advantages
from puffer_mlx.ppo.algorithms import Algorithm, AlgorithmStep, discounts
from puffer_mlx.ppo.loss import Targets, normalise_advantages
from puffer_mlx.system.devices import building

FACTS = Facts(
    summary="Williams's, by returns less a baseline",
    title="REINFORCE",
    unused=("train.clip_coef", "train.gae_lambda", "train.vtrace"),
)


def make(policy, config, agents, one_cpu):
    train, S = config.train, config.segments
    numbers = discounts(train)._replace(gae_lambda=1.0, rho_clip=1.0, c_clip=1.0)

    def minibatches(epoch):
        fields, states = epoch.fields, epoch.states()
        T, N = fields["values"].shape
        adv = epoch.run("targets", fields, fields["values"])
        with building:
            mixed = mx.random.permutation(mx.arange(N, dtype=mx.int32), key=epoch.draws)
            orders = mx.split(mixed[: N // S * S], N // S)
        for rows in orders:
            with building:
                arrays = fields["logprobs"], fields["values"], adv
                targets = Targets(*(take_rows(a, rows, T).reshape(-1) for a in arrays))
                first = None if states is None else tree_map(lambda a: a[rows], states)
            yield epoch.run("gather", fields, rows)._replace(targets=targets, state=first)

    def loss(now, targets, *, ent_coef, vf_coef, **_):
        gain = mx.mean(now.logprob * normalise_advantages(targets.adv, targets.moments))
        error = 0.5 * mx.mean(mx.square(now.value - targets.old_value - targets.adv))
        entropy = mx.mean(now.entropy)
        total = vf_coef * error - gain - ent_coef * entropy
        return total, mx.stack([-gain, error, entropy, total])

    def targets(fields, values):
        return rollout_advantages(fields, values, None, numbers)

    return Algorithm(
        minibatches=minibatches,
        loss=loss,
        steps={"targets": AlgorithmStep(targets, "train_advantage")},
        metrics=("gain", "baseline", "entropy", "total"),
    )
'''
SGD = '''
"""Stochastic gradient descent."""

from mlx.utils import tree_map

from puffer_mlx.ppo.optimizers import Optimizer, step_if_finite


def step(weights, grads, state, loss, lr, max_grad_norm):
    def update(weights, grads, state):
        return tree_map(lambda w, g: w - lr * g, weights, grads), state

    return step_if_finite(update, weights, grads, state, loss, max_grad_norm)


OPTIMIZER = Optimizer(init=lambda weights: {}, step=step, reads=())
'''
CARTPOLE = """
    cartpole --train.algorithm reinforce --seed 7 --device cpu --eval-episodes 0 --train.overlap 0
    --vec.total-agents 256 --vec.num-buffers 2 --train.horizon 32 --train.minibatch-size 1024
    --policy.hidden-size 32 --policy.num-layers 1 --train.learning-rate 0.02 --train.beta1 0.9
    --train.gamma 0.98 --train.ent-coef 0.003 --train.vf-coef 0.5 --train.max-grad-norm 0.5
    --train.total-timesteps 600_000
"""


def test_an_algorithm_and_an_optimizer_are_one_file_each(tmp_path):
    train = train_with_added_file(tmp_path, "ppo/algorithms/reinforce.py", REINFORCE)
    (tmp_path / "puffer_mlx" / "ppo" / "optimizers" / "sgd.py").write_text(SGD)
    text, status = train(tmp_path, *CARTPOLE.split(), "--train.clip-coef", 0.3)
    assert status == 0, text
    assert "cartpole: trainer reinforce, REINFORCE" in text
    assert "unused here: train.clip_coef" in text
    first, *_, last = records(tmp_path)
    assert first["env/score"] < 40 and last["env/score"] > 100, (first, last)
    losses = {name for name in first if name.startswith("loss/")}
    assert {"loss/gain", "loss/baseline", "loss/total"} <= losses and "loss/kl" not in losses
    text, status = train(tmp_path, "--help", "all")
    assert "reinforce: Williams's" in " ".join(text.split())
    assert "adam or muon or sgd" in " ".join(text.split())
    other = tmp_path / "other"
    text, status = train(other, *TINY, "--train.optimizer", "sgd", "--train.beta1", 0.5)
    assert status == 0 and "unused here: train.beta1" in text, text
    first, second, *_ = records(other)
    assert first["loss/total"] != second["loss/total"]
