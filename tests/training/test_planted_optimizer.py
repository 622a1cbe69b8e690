"""An optimizer is one file: plain SGD, put beside the others, trains."""

from running import TINY, planted, records

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


def test_an_optimizer_is_one_file(tmp_path):
    train = planted(tmp_path, "ppo/optimizers/sgd.py", SGD)
    more = ["--train.optimizer", "sgd", "--train.beta1", 0.5, "--train.learning-rate", 0.1]
    text, status = train(tmp_path, *TINY, *more)
    assert status == 0, text
    assert "unused here: train.beta1" in text
    first, second, *_ = records(tmp_path)
    assert first["loss/total"] != second["loss/total"]
    text, status = train(tmp_path, "--help", "all")
    assert "adam or muon or sgd" in " ".join(text.split())
    text, status = train(tmp_path, *TINY, "--train.optimizer", "sdg")
    assert status == 2 and "adam or muon or sgd" in text
