"""Acting in C++ computes what the policy's step through MLX does."""

import ctypes
import gc
import weakref
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlx.utils import tree_flatten, tree_map
from oracles import named
from sanitizers import SANITIZERS, C, program, sanitized
from small_policies import PUFFER5, beyond, policy_of, unknown_policies, weights_of

import puffer_mlx
from puffer_mlx.ops import cpu_extension
from puffer_mlx.policy.policy import Policy
from puffer_mlx.rollout import acting_in_c
from puffer_mlx.rollout.acting_in_c import make_actor
from puffer_mlx.rollout.buffer import Views
from puffer_mlx.system.compiler import source_files

ActFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int)
NETWORKS = ["MinGRU", "LSTM", "GRU", "MLP"]
T, N = 8, 77  # N: no multiple of anything that rows are taken by
pytestmark = pytest.mark.usefixtures("extension")


class Case:
    """A policy's step in C, and a rollout's arrays filled with random numbers."""

    def __init__(self, policy: Policy, T=T, N=N, masked=False, as_bytes=False, seed=0) -> None:
        rng = np.random.default_rng(seed)
        self.policy, self.T, self.N = policy, T, N
        action, D = policy.decoder.action, policy.encoder.inputs  # type: ignore
        self.weights = weights_of(policy, seed)
        observations = rng.normal(size=(T + 1, N, D)).astype(np.float32)
        if as_bytes:
            observations = rng.integers(0, 256, (T + 1, N, D)).astype(np.uint8)
            self.weights["encoder"]["weight"] /= 128
        self.views = Views(
            observations,
            (rng.random((T + 1, N)) < 0.2).astype(np.float32),
            (rng.random((T + 1, N, action.logits)) < 0.5).astype(np.uint8) * 7 if masked else None,
            *(np.zeros(shape, np.float32) for shape in [(T, N, action.heads), (T, N), (T, N)]),
        )
        self.noise = np.array(policy.distribution.noise(mx.random.key(seed), (T, N)))
        self.first = tree_map(
            lambda s: np.abs(rng.normal(size=s.shape)).astype(np.float32), policy.initial_state(N)
        )
        self.states = tree_map(np.copy, self.first)
        self.actor = made(policy)
        self.actor.prepare(self.weights)

    def bind(self):
        """Bind the C actor to the case's memory; return its function that acts."""
        function, context = self.actor.bind(self.views, self.noise, self.states)
        return lambda *where: ActFunction(function)(context, *where)

    def run(self) -> "Case":
        act = self.bind()
        for t in range(self.T):
            act(t, 0, self.N)
        return self

    def found(self) -> list[np.ndarray]:
        """Return all arrays that acting in C wrote: actions, log-probabilities, values, states."""
        states = [array for _, array in named(self.states)]
        return [self.views.actions, self.views.logprobs, self.views.values, *states]

    def expected(self) -> list[np.ndarray]:
        """Compute by MLX the arrays that acting in C should write."""
        policy, views, chosen = self.policy, self.views, []
        state = tree_map(mx.array, self.first)
        for t in range(self.T):
            mask = None if views.masks is None else mx.array(views.masks[t])
            *rows, state = policy.act(
                self.weights,
                mx.array(views.observations[t]),
                state,
                mx.array(self.noise[t]),
                mask,
                policy.not_done(mx.array(views.terminals[t])),
            )
            chosen.append([np.array(row) for row in rows])
        states = [np.array(array) for _, array in named(state)]
        return [np.stack(rows) for rows in zip(*chosen, strict=True)] + states


def made(policy: Policy) -> acting_in_c.CActor:
    found = make_actor(policy)
    assert isinstance(found, acting_in_c.CActor)
    return found


def check(case: Case, atol=2e-6, most=0) -> None:
    """Compare the policy's step in C with MLX.

    ``most``: samples that may be at a boundary between two actions.

    Tolerances are relative to the values, which are as large as the policy's other outputs.
    """
    actions, logprobs, *others = case.run().found()
    expected_actions, expected_logprobs, *expected = case.expected()
    scale = max(1, np.abs(expected[0]).max())
    same = np.isclose(actions, expected_actions, rtol=atol, atol=atol * scale).all(-1)
    assert (~same).sum() <= most
    logprobs_too = (logprobs[same], expected_logprobs[same])
    for mine, theirs in [logprobs_too, *zip(others, expected, strict=True)]:
        np.testing.assert_allclose(mine, theirs, rtol=atol, atol=atol * scale)


# ---- outputs -------------------------------------------------------------------------------------

SIZES = [(3,), (2, 4), (16,), (17, 2), (70, 2), (1, 1), (1, 1, 1)]


@given(
    network=st.sampled_from(NETWORKS),
    dialect=st.sampled_from(["native", "torch", "puffer3", "sb3"]),
    activation=st.sampled_from(["tanh", "relu", "gelu"]),
    sizes=st.sampled_from(SIZES),
    D=st.sampled_from([1, 3, 21, 118]),
    H=st.sampled_from([8, 20, 64, 100]),
    layers=st.integers(1, 2),
    flags=st.tuples(*[st.booleans()] * 4),
    scale=st.sampled_from([1, 300]),
)
@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_every_policy_acts_as_through_mlx(
    network, dialect, activation, sizes, D, H, layers, flags, scale
):
    reset, separate_value, masked, as_bytes = flags
    parts: dict[str, Any] = {"separate_value": separate_value}
    if dialect == "sb3":
        network = "MLP"
        parts["activation"] = activation
    policy = policy_of(network, sizes, D, H, layers, dialect, reset, **parts)
    masked = masked and sizes[0] > 1
    as_bytes = as_bytes and dialect in ("native", "puffer3") and not separate_value
    case = Case(policy, T=3, masked=masked, as_bytes=as_bytes)
    if sizes[0] > 1:
        case.weights["decoder"] = tree_map(lambda w: scale * w, case.weights["decoder"])
        case.actor.prepare(case.weights)
    if case.views.masks is not None:
        case.views.masks[0, :9] = 0  # no legal action
    check(case, atol=6e-6, most=1)


def test_prepare_copies_weights_that_may_be_strided():
    case = Case(policy_of("LSTM", dialect="torch"))
    case.actor.prepare(weights_of(case.policy, 1))
    thinned = tree_map(lambda w: mx.stack([w, 0 * w], axis=-1)[..., 0], case.weights)
    mx.eval(thinned)
    assert not np.asarray(thinned["encoder"]["weight"]).flags.c_contiguous
    case.actor.prepare(thinned)
    for _, array in tree_flatten(thinned):  # type: ignore
        np.asarray(array).fill(7)
    check(case)


# ---- chosen actions ------------------------------------------------------------------------------


def test_extreme_uniforms_take_the_first_and_last_actions():
    """Show with identity weights that uniforms near 1 and 0 sample the last and first actions."""
    case = Case(policy_of("MLP", (4,), 4, 4, layers=0), T=1, N=2)
    case.weights["encoder"]["weight"] = mx.eye(4)
    case.weights["decoder"]["weight"] = mx.eye(5)[:, :4]
    case.views.observations[0] = [-200, 0, 1, -200]
    case.actor.prepare(case.weights)
    case.noise[0, :, 0] = [1, 2.0**-24]
    actions, logprobs, *_ = case.run().found()
    np.testing.assert_array_equal(actions[0, :, 0], [3, 1])
    np.testing.assert_allclose(logprobs[0], [-201.31326, -1.3132617], rtol=1e-6)


def test_nan_changes_the_actions_of_its_agent_only():
    """Its actions are uniform."""
    clean, case = (Case(policy_of("MinGRU", (4,), dialect="puffer3")) for _ in range(2))
    case.views.observations[:, ::5] = np.nan
    clean.run()
    actions, logprobs, values, *_ = case.run().found()
    others = np.arange(N) % 5 > 0
    for mine, theirs in zip(case.found()[:3], clean.found()[:3], strict=True):
        np.testing.assert_array_equal(mine[:, others], theirs[:, others])
    assert np.isnan(values[:, ~others]).all()
    np.testing.assert_array_equal(actions[:, ~others], np.ceil(4 * case.noise - 1)[:, ~others])
    np.testing.assert_allclose(logprobs[:, ~others], -np.log(4), rtol=1e-6)


def test_infinite_outputs_become_the_largest_numbers():
    case = Case(policy_of("MLP", (3,), 1, 1, layers=0), T=1, N=40)
    case.weights["encoder"]["weight"] = mx.ones((1, 1))
    case.weights["decoder"]["weight"] = mx.array([[3e38], [1], [-3e38], [1]])
    case.views.observations[:] = np.where(np.arange(40) % 2, 10, -10)[:, None]
    case.actor.prepare(case.weights)
    check(case)
    np.testing.assert_array_equal(case.views.actions[0, :, 0], np.where(np.arange(40) % 2, 0, 2))


def test_continuous_actions_stay_within_limits():
    case = Case(policy_of(sizes=(1, 1, 1), limits=PUFFER5))
    beyond(case.weights)
    case.actor.prepare(case.weights)
    actions, logprobs, *_ = case.run().found()
    expected, expected_logprobs, *_ = case.expected()
    np.testing.assert_allclose(actions[..., 1:], expected[..., 1:], rtol=0, atol=1e-5)
    np.testing.assert_allclose(actions, expected, rtol=0, atol=20)
    np.testing.assert_allclose(logprobs, expected_logprobs, rtol=0, atol=0.1)  # float32 near 1e6
    at_most = np.abs(actions[..., 0]) == PUFFER5.action
    assert 0.1 < at_most.mean() < 0.9


# ---- ranges of agents ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("network", "sizes", "H"),
    [*zip(NETWORKS, [(3,), (1, 1), (2, 40), (3,)], [64, 20, 100, 100], strict=True)],
)
def test_ranges_in_any_order_compute_the_same_bits(network, sizes, H):
    rng = np.random.default_rng(0)
    policy = policy_of(network, sizes, H=H, dialect="puffer3", reset=True)
    whole, split = (Case(policy, T=4, N=203, masked=sizes[0] > 1) for _ in range(2))
    whole.run()
    act = split.bind()
    for t in range(4):
        cuts = [0, *sorted(rng.choice(np.arange(1, 203), 5 + 20 * t, replace=False)), 203]
        for i in rng.permutation(len(cuts) - 1):
            act(t, int(cuts[i]), int(cuts[i + 1] - cuts[i]))
    for mine, theirs in zip(split.found(), whole.found(), strict=True):
        assert mine.tobytes() == theirs.tobytes()


# ---- arguments -----------------------------------------------------------------------------------


def test_unknown_policies_have_no_actor(monkeypatch):
    known = policy_of()
    assert not any(map(make_actor, unknown_policies())) and make_actor(known) is not None
    monkeypatch.setattr(cpu_extension, "load_extension", lambda: None)
    assert make_actor(known) is None


def test_bind_resets_the_counted_seconds():
    case = Case(policy_of(H=64), N=1000).run()
    first = case.actor.seconds()
    assert 0 < first["sample"] < first["act"] < 10
    case.bind()
    assert case.actor.seconds() == {"act": 0, "sample": 0}


def test_bound_arrays_stay_alive_until_others_are_bound():
    case = Case(policy_of(reset=True), masked=True)
    bound = [weakref.ref(array) for array in (case.noise, *case.views, *case.states)]
    case.bind()
    other = Case(case.policy)
    other.actor = case.actor
    del case
    gc.collect()
    assert all(reference() is not None for reference in bound)
    other.bind()
    gc.collect()
    assert all(reference() is None for reference in bound)


def test_wrong_weights_are_refused():
    case = Case(policy_of(dialect="torch"))
    bias = case.weights["decoder"]["actions"]["bias"]
    case.weights["decoder"]["actions"]["bias"] = bias[1:].astype(mx.float16)
    message = r"decoder.actions.bias: expected float32 \(3,\), found float16 \(2,\)"
    with pytest.raises(ValueError, match=message):
        case.actor.prepare(case.weights)
    with pytest.raises(RuntimeError, match="prepare"):
        case.bind()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "observations",
            lambda a: a[:7],
            r"observations: .*found float32 \(7, 77, 5\)",
        ),
        ("terminals", lambda a: a[:, ::-1], "found float32 .*, not C-contiguous"),
        ("masks", lambda a: a.astype(bool), r"masks: expected uint8 \(8, 77, 3\)"),
        ("actions", lambda a: np.broadcast_to(a[:1], a.shape), "actions: expected .*, writable"),
        ("states", lambda s: [*s[:1], s[1][:-1]], r"states.1: expected float32 \(77, 8\), .*\(76"),
    ],
)
def test_wrong_memory_is_refused(name, change, message):
    case = Case(policy_of(), masked=True)
    if name == "states":
        case.states = change(case.states)
    else:
        case.views = case.views._replace(**{name: change(getattr(case.views, name))})
    with pytest.raises(ValueError, match=message):
        case.bind()


def test_masks_of_continuous_actions_are_refused():
    case = Case(policy_of(sizes=(1, 1)), masked=True)
    with pytest.raises(ValueError, match="masks: expected None"):
        case.bind()


# ---- sanitizers ----------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_sanitizers_find_nothing(sanitizer: str):
    package = Path(puffer_mlx.__file__).parent
    flags = ["-std=c++20", f"-iquote{package}"]
    driver = program("actor", [C / "actor.cpp"], flags, source_files(package), sanitizer, "c++")
    done = sanitized([str(driver)])
    assert (done.returncode, done.stdout, done.stderr) == (0, "clean\n", "")
