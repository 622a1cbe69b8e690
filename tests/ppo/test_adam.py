"""`optimizers/adam` against torch's AdamW."""

import mlx.core as mx
import numpy as np

from puffer_mlx.ppo.optimizers import adam

SHAPES = [(5,), (4, 9), (6, 2, 3, 2), (1, 7), (3, 1), (70_001,)]  # the last: a thread's many parts


def test_steps_equal_torch(path):
    import torch

    rng = np.random.default_rng(1)
    first = [rng.normal(size=shape).astype(np.float32) for shape in SHAPES]
    theirs = [torch.nn.Parameter(torch.tensor(w)) for w in first]
    torchs = torch.optim.AdamW(theirs, lr=1.0, betas=(0.9, 0.999), eps=1e-5, weight_decay=0.1)
    weights = [mx.array(w) for w in first]
    state = adam.init(weights)
    numbers = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-5, "weight_decay": 0.1}
    for k in range(6):
        rate = 0.01 / (k + 1)
        grads = [rng.normal(size=shape).astype(np.float32) for shape in SHAPES]
        given = weights, [mx.array(g) for g in grads], state, mx.array(1.0), mx.array(rate)
        weights, state, ok = adam.step(*given, max_grad_norm=0.5, **numbers)
        assert ok.item()
        for parameter, grad in zip(theirs, grads, strict=True):
            parameter.grad = torch.tensor(grad)
        assert torch.nn.utils.clip_grad_norm_(theirs, 0.5) > 0.5
        torchs.param_groups[0]["lr"] = rate
        torchs.step()
        for ours, parameter in zip(weights, theirs, strict=True):
            np.testing.assert_allclose(ours, parameter.detach().numpy(), rtol=0, atol=1e-6)
    assert state["step"].item() == 6
