"""A policy's step as one kernel, run as C++, against the policy's step in MLX."""

import itertools
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from emulated_run import alternate, emulated_gpu
from hypothesis import given
from hypothesis import strategies as st
from mlx.utils import tree_map
from oracles import named
from small_policies import PUFFER5, beyond, policy_of, unknown_policies, weights_of

from puffer_mlx.policy import acting_on_gpu
from puffer_mlx.policy.acting_on_gpu import (
    MAX_HIDDEN,
    block_layout,
    choose_layout,
    make_step_on_gpu,
)
from puffer_mlx.policy.networks.catalog import NETWORKS, network_facts

METALS = 32768  # bytes of a block's shared memory


class Case:
    """A policy's step on an emulated GPU, with random inputs for n agents.

    ``agents``: agents per thread block.
    """

    def __init__(self, name, n=7, masked=False, as_bytes=False, agents=4, **policy) -> None:
        self.name, self.n = name, n
        self.policy = policy_of(**policy)
        rng = np.random.default_rng(len(name))
        action, D = self.policy.decoder.action, self.policy.encoder.inputs  # type: ignore
        self.weights = weights_of(self.policy)
        self.observations = rng.normal(size=(n, D)).astype(np.float32)
        if as_bytes:
            self.observations = rng.integers(0, 256, (n, D)).astype(np.uint8)
            self.weights["encoder"]["weight"] /= 128
        self.terminals = (rng.random(n) < 0.4).astype(np.float32)
        legal = (rng.random((n, action.logits)) < 0.5).astype(np.uint8) * 7
        self.mask = legal if masked else None
        self.noise = np.array(self.policy.distribution.noise(mx.random.key(1), (n,)))
        self.state = tree_map(
            lambda s: mx.array(np.abs(rng.normal(size=s.shape)).astype(np.float32)),
            self.policy.initial_state(n),
        )
        step = make_step_on_gpu(self.policy)
        kernel = network_facts(self.policy.network).gpu_layers
        assert step is not None and kernel is not None
        self.step = step
        self.layout = block_layout(self.policy, kernel, agents)
        self.copied = n % 2 == 1

    def by_kernel(self, backend) -> list[np.ndarray]:
        """Compute a policy's step by the GPU kernel, emulated.

        Returns actions (n, heads), log-probabilities, values, and the state's arrays.
        """
        read = (self.noise, self.observations, self.mask, self.terminals)
        given = [None if a is None else mx.array(a) for a in read]
        sizes = self.noise.shape, (self.n,), (self.n,)
        written = [mx.full(size, -777.0) for size in sizes]
        seen = mx.full(self.observations.shape, 77, given[1].dtype) if self.copied else None  # type: ignore
        mx.eval(given, written, seen)
        with (
            emulated_gpu(backend=backend, checked=True) as gpu,
            pytest.MonkeyPatch.context() as patch,
        ):
            patch.setattr(acting_on_gpu, "choose_layout", lambda *_: self.layout)
            weights, state = self.step.pack_weights(self.weights), self.step.pack_states(self.state)
            gpu.launches.clear()  # weights are packed
            arguments: Any = weights, state, *given, *written, seen
            after = self.step.act(*arguments)
            assert len(gpu.launches) == 1
            states = [np.array(array) for _, array in named(self.step.unpack_state(after))]
        if seen is not None:
            np.testing.assert_array_equal(np.array(seen), self.observations)
        return [*map(np.array, written), *states]

    def expected(self) -> list[np.ndarray]:
        """Compute the policy's step by MLX: actions, log-probabilities, values, state arrays."""
        not_done = self.policy.not_done(mx.array(self.terminals))
        mask = None if self.mask is None else mx.array(self.mask)
        arrays = mx.array(self.observations), self.state, mx.array(self.noise), mask, not_done
        *rows, state = self.policy.act(self.weights, *arrays)
        return [np.array(row) for row in rows] + [np.array(array) for _, array in named(state)]


def cases() -> dict[str, Case]:
    found = []
    dialects = itertools.cycle(["native", "torch", "puffer3"])
    kinds = itertools.cycle([((2, 4), True), ((1, 1, 1), False), ((3,), False)])
    # D, H, layers, n, agents of a block: several chunks, several passes, one agent too many
    shapes = itertools.cycle([(150, 20, 1, 9, 8), (3, 70, 1, 17, 16), (1, 1, 3, 1, 4)])
    for network in (*NETWORKS, *NETWORKS):
        sizes, masked = next(kinds)
        made: dict = {"network": network, "dialect": next(dialects)}
        name = f"{network} {sizes} {masked}"
        found.append(Case(name, masked=masked, reset=True, H=9, sizes=sizes, **made))
        D, H, layers, n, agents = next(shapes)
        made |= {"D": D, "H": H, "layers": layers, "n": n, "agents": agents}
        found.append(Case(f"{network} {D} {H} {n}", **made))
    found.append(Case("bytes", as_bytes=True, D=21, dialect="puffer3"))
    found.append(Case("many choices", sizes=(40, 2), masked=True))
    found.append(Case("limits", sizes=(1, 1, 1), limits=PUFFER5))
    beyond(found[-1].weights)
    return {case.name: case for case in found}


CASES = cases()


@pytest.mark.parametrize(("backend", "name"), alternate((name,) for name in CASES))
def test_step_by_kernel_equals_mlx(backend, name):
    case = CASES[name]
    for found, expected in zip(case.by_kernel(backend), case.expected(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-5)


# ---- which policies, and how they are laid out ---------------------------------------------------


@given(
    st.sampled_from([*NETWORKS]),
    st.integers(1, MAX_HIDDEN),
    st.sampled_from([1, 127, 20000]),
    st.sampled_from([1, 18, 300, 5000]),
    st.sampled_from([1, 1024, 8192]),
)
def test_layout_fits_shared_memory(network, H, D, A, n):
    policy = policy_of(network, (A + 1,), D, H)
    step, kernel = make_step_on_gpu(policy), network_facts(policy.network).gpu_layers
    assert kernel is not None
    block = choose_layout(policy, kernel, n)
    assert (block is None) == (step is None)
    if block is None:
        assert A == 5000 or (A == 300 and H > 100)
        return
    assert block.chunk <= D and block.threads % 32 == 0 and block.threads <= 256
    assert block.threads >= 4 * block.agents  # who sums up squares
    each = A + 2 + H + max(block.chunk, H) + kernel.shared_arrays * H
    shared = block.agents // 4 * each + block.agents  # sums over features
    assert block.shared == shared and 16 * shared <= METALS


@pytest.mark.parametrize(
    ("how", "kernel"),
    [
        ({"H": MAX_HIDDEN}, True),
        ({"H": MAX_HIDDEN + 1}, False),
        ({"sizes": (5000,)}, False),
        ({"network": "MLP", "dialect": "torch", "separate_value": True}, False),
        ({"network": "MLP", "dialect": "sb3"}, False),
        ({"network": "MLP", "dialect": "sb3", "activation": "gelu"}, True),
    ],
)
def test_kernel_takes_supported_policies(how, kernel):
    assert (make_step_on_gpu(policy_of(**how)) is not None) == kernel


@pytest.mark.parametrize("policy", unknown_policies(), ids=["images", "custom network"])
def test_kernel_takes_no_images_and_no_custom_networks(policy):
    assert make_step_on_gpu(policy) is None
