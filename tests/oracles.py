"""Float64 NumPy versions of the learning core, written from its formulas, not from the code.

Plain loops where the definition is a loop. Symbols are `spec.py`'s; arrays are time-major.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puffer_mlx.spec import ActionSpec, EnvSpec
from puffer_mlx.vec.base import Rows

Array = NDArray[Any]


def f64(x: Any) -> Array:
    """Convert an array of any library (NumPy, MLX, PyTorch) and type to float64."""
    x = x.detach().numpy() if hasattr(x, "detach") else x
    low = "bfloat16" in str(getattr(x, "dtype", ""))  # which NumPy doesn't have
    return np.array(x.tolist() if low else x, dtype=np.float64)


def assert_close(found: Any, expected: Any, name: str = "", bound: float = 1e-5) -> None:
    """Assert that arrays differ by at most ``bound`` times the largest expected value."""
    found, expected = f64(found), f64(expected)
    assert found.shape == expected.shape, (name, found.shape, expected.shape)
    scale = np.abs(expected).max()
    assert 1e-4 < scale < np.inf, f"{name} is nothing to compare with"
    np.testing.assert_allclose(found, expected, rtol=0, atol=bound * scale, err_msg=name)


def named(tree: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """Return the arrays of nested dictionaries and lists with their dotted names."""
    if not isinstance(tree, dict | list):
        return [(prefix[1:], tree)]
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    return [pair for key, value in items for pair in named(value, f"{prefix}.{key}")]


def flat(tree: Any) -> Array:
    """Concatenate all arrays of a tree into one flat array."""
    return np.concatenate([np.array(array).ravel() for _, array in named(tree)])


def same(one: Any, other: Any) -> bool:
    """Return True if two trees have equal names, in the same order, and equal arrays."""
    pairs = zip(named(one), named(other), strict=True)
    return all(a[0] == b[0] and np.array_equal(a[1], b[1]) for a, b in pairs)


def numerical_gradient(function: Callable[[], float], x: Array, step: float = 1e-6) -> Array:
    """Compute the gradient of a scalar function by central differences.

    The function reads the float64 array x, which is changed in place.
    """
    gradient = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        kept = x[i]
        x[i] = kept + step
        above = function()
        x[i] = kept - step
        below = function()
        x[i] = kept
        gradient[i] = (above - below) / (2 * step)
    return gradient


# ---- advantage and priorities --------------------------------------------------------------------


def advantages(rows, hyper, form):
    """Compute the advantages (T, N) of a rollout in float64, step by step.

    Args:
        rows: Values, rewards, terminals and ratios, (T, N) each.
        hyper: gamma, lambda, and the clips of rho and c.
        form: "V" for V-trace, otherwise PufferLib 4.0's variant of it.
    """
    v, r, d, w = map(f64, rows)
    gamma, gae_lambda, rho_clip, c_clip = hyper
    T, N = v.shape
    adv = np.zeros((T, N))
    for i in range(N):
        acc = 0.0
        for t in range(T - 2, -1, -1):
            going = 1 - d[t + 1, i]
            rho, c = min(w[t, i], rho_clip), min(w[t, i], c_clip)
            if form == "V":
                delta = rho * (r[t + 1, i] + gamma * v[t + 1, i] * going - v[t, i])
            else:
                delta = rho * r[t + 1, i] + gamma * v[t + 1, i] * going - v[t, i]
            acc = delta + gamma * gae_lambda * c * acc * going
            adv[t, i] = acc
    return adv


def probabilities(adv, alpha):
    """Compute each agent's probability (N,) of being drawn for a minibatch, from advantages."""
    weight = np.abs(f64(adv)).sum(axis=0) ** alpha
    weight[~np.isfinite(weight)] = 0
    return (weight + 1e-6) / (weight.sum() + 1e-6)


def draw(p, uniforms):
    """Draw by inverse CDF: for each uniform number u the smallest k with cdf[k] >= u.

    The last k if there is none.
    """
    cdf = np.cumsum(f64(p))
    hits = [np.flatnonzero(cdf >= u) for u in f64(uniforms)]
    return np.array([hit[0] if hit.size else len(cdf) - 1 for hit in hits])


def cosine(start, end, epoch, epochs):
    return end + 0.5 * (start - end) * (1 + np.cos(np.pi * epoch / epochs))


# ---- policy (2.1, 2.2, 2.7, 4.1) -----------------------------------------------------------------


def sigmoid(x):
    return np.exp(-np.logaddexp(0, -x))


def mingru(x, weight, first, terminals=None):
    """Compute a MinGRU layer in float64: outputs and states, (T, S, H) each.

    Args:
        x: (T, S, H), inputs.
        weight: (3H, H).
        first: (S, H), initial state.
        terminals: (T, S), above 0 to set the state to 0 before a step; None for none.
    """
    H = x.shape[-1]
    out, states, state = np.zeros_like(x), np.zeros_like(x), first
    for t in range(len(x)):
        u = x[t] @ weight.T
        if terminals is not None:
            state = np.where(terminals[t][:, None] > 0, 0, state)
        hidden, gate, projection = u[:, :H], u[:, H : 2 * H], u[:, 2 * H :]
        z, q = sigmoid(gate), sigmoid(projection)
        g = np.where(hidden >= 0, hidden + 0.5, sigmoid(hidden))
        state = (1 - z) * state + z * g
        out[t], states[t] = q * state + (1 - q) * x[t], state
    return out, states


def policy(weights, observations, first=None):
    """Compute a MinGRU policy in float64: logits (T, S, A) and values (T, S)."""
    S = observations.shape[1]
    h = f64(observations) @ weights["encoder"]["weight"].T
    for layer in weights["network"]:
        state = np.zeros((S, h.shape[-1])) if first is None else first
        h, _ = mingru(h, layer["weight"], state)
    y = h @ weights["decoder"]["weight"].T
    return y[..., :-1], y[..., -1]


def carried_policy(weights, observations, firsts, terminals):
    """Compute a MinGRU policy in float64 from given recurrent states.

    Args:
        weights: Weights of the policy, float64.
        observations: (T, S, D).
        firsts: Initial state (S, H) of each layer.
        terminals: (T, S), above 0 to set the state to 0 before a step.

    Returns:
        Logits (T, S, A), values (T, S), and a list of each layer's last state (S, H).
    """
    h, lasts = f64(observations) @ weights["encoder"]["weight"].T, []
    for layer, first in zip(weights["network"], firsts, strict=True):
        h, states = mingru(h, layer["weight"], first, terminals)
        lasts.append(states[-1])
    y = h @ weights["decoder"]["weight"].T
    return y[..., :-1], y[..., -1], lasts


def head_log_probs(logits, sizes, mask=None):
    """Compute the log-probabilities (..., size) of each action head from logits (..., A)."""
    if mask is not None:
        logits = np.where(mask != 0, logits, -1e4)
    heads = np.split(logits, np.cumsum(sizes)[:-1], axis=-1)
    return [head - np.logaddexp.reduce(head, axis=-1, keepdims=True) for head in heads]


def log_prob_entropy(logits, actions, sizes, mask=None):
    """Compute joint log-probabilities and entropies of discrete actions (..., heads)."""
    logprob, entropy = 0.0, 0.0
    for head, logp in enumerate(head_log_probs(logits, sizes, mask)):
        chosen = actions[..., head : head + 1].astype(int)
        logprob = logprob + np.take_along_axis(logp, chosen, axis=-1)[..., 0]
        entropy = entropy - (np.exp(logp) * logp).sum(axis=-1)
    return logprob, entropy


# ---- loss (1.7, 1.8) -----------------------------------------------------------------------------


def ppo_loss(logprob, entropy, value, old_logprob, old_value, adv, weight, **c):
    """Compute PPO's loss and its metrics in float64, from arrays of one shape.

    ``c`` contains clip_coef, vf_coef, vf_clip_coef and ent_coef.
    """
    advn = (adv - adv.mean()) / (adv.std(ddof=1) + 1e-8)
    targets = old_logprob, old_value, weight * advn, old_value + adv
    return clipped_loss(logprob, entropy, value, *targets, **c)


def clipped_loss(logprob, entropy, value, old_logprob, old_value, gain, ret, **c):
    """Compute PPO's clipped loss and its metrics; ``gain`` multiplies the ratio."""
    logratio = logprob - old_logprob
    ratio = np.exp(logratio)
    clipped = np.minimum(np.maximum(ratio, 1 - c["clip_coef"]), 1 + c["clip_coef"])
    pg = np.maximum(-gain * ratio, -gain * clipped).mean()
    near = np.minimum(np.maximum(value - old_value, -c["vf_clip_coef"]), c["vf_clip_coef"])
    vl = 0.5 * np.maximum((value - ret) ** 2, (old_value + near - ret) ** 2).mean()
    total = pg + c["vf_coef"] * vl - c["ent_coef"] * entropy.mean()
    outside = (np.abs(ratio - 1) > c["clip_coef"]).mean()
    kl = (ratio - 1 - logratio).mean()
    return total, np.array([pg, vl, entropy.mean(), total, -logratio.mean(), kl, outside])


# ---- Muon (3.1) ----------------------------------------------------------------------------------

COEFFICIENTS = """
    4.0848 -6.8946 2.9270
    3.9505 -6.3029 2.6377
    3.7418 -5.5913 2.3037
    2.8769 -3.1427 1.2046
    2.8366 -3.0525 1.2012
"""


def orthogonalise(x):
    """Apply Muon's polynomials to a matrix's singular values, which makes it nearly orthogonal."""
    u, s, vt = np.linalg.svd(f64(x), full_matrices=False)
    s = s / max(np.sqrt((s**2).sum()), 1e-7)
    for line in COEFFICIENTS.strip().splitlines():
        a, b, c = map(float, line.split())
        s = a * s + b * s**3 + c * s**5
    return u @ (s[:, None] * vt)


def clipped(grads, max_norm):
    norm = np.sqrt(sum((g**2).sum() for g in grads))
    return [g * min(1.0, max_norm / (norm + 1e-6)) for g in grads]


def muon(weights, grads, momentum, lr, beta, max_norm, decay=0.0):
    """Compute a step of the optimizer Muon with clipped gradients, in float64.

    Returns the new weights (a list of arrays) and momentum.
    """
    grads = clipped(grads, max_norm)
    momentum = [beta * m + g for m, g in zip(momentum, grads, strict=True)]
    after = []
    for w, g, m in zip(weights, grads, momentum, strict=True):
        u = g + beta * m
        if u.ndim > 1:
            matrix = u.reshape(len(u), -1)
            rows, columns = matrix.shape
            u = (max(1.0, rows / columns) ** 0.5 * orthogonalise(matrix)).reshape(u.shape)
        after.append(w * (1 - lr * decay) - lr * u)
    return after, momentum


# ---- Adam ----------------------------------------------------------------------------------------


def adam(weights, grads, state, lr, betas, eps, max_norm, decay=0.0):
    """Compute a step of the optimizer Adam with clipped gradients, in float64.

    Returns the new weights (a list of arrays) and state.

    The state is (m, v, steps), where m and v are lists of arrays.
    """
    grads, (one, two), (first, second, steps) = clipped(grads, max_norm), betas, state
    steps += 1
    first = [one * m + (1 - one) * g for m, g in zip(first, grads, strict=True)]
    second = [two * v + (1 - two) * g**2 for v, g in zip(second, grads, strict=True)]
    after = []
    for w, m, v in zip(weights, first, second, strict=True):
        mean, square = m / (1 - one**steps), v / (1 - two**steps)
        after.append(w - lr * decay * w - lr * mean / (np.sqrt(square) + eps))
    return after, (first, second, steps)


# ---- an environment that tells the slot law ------------------------------------------------------


class CodedVec:
    """Stub environments in which every number says of which agent and step it is.

    Of agent i after step k (0: the reset): observation (i, k, ...), reward `code(i, k)`, terminal
    where (i + k) % 3 is 0, the last one (``final_observations``) before that, and every action
    legal except number k % A. `sent` keeps the actions of each step.
    """

    unused, description, backend = [], "coded", "native"

    def __init__(
        self,
        agents: int,
        groups: int,
        sizes=(3,),
        masked=False,
        dtype=np.float32,
        final_observations=False,
    ) -> None:
        self.final_observations = final_observations
        self.spec = EnvSpec(
            "coded", 4, np.dtype(dtype), ActionSpec(sizes), sum(sizes) if masked else 0
        )
        self.num_agents, self.num_groups = agents, groups
        self.num_environments = agents
        self.n = agents // groups
        self.steps = [0] * groups
        self.pending: list[tuple[Array, Rows] | None] = [None] * groups
        self.sent: list[list[Array]] = [[] for _ in range(groups)]
        self.scale = 1.0  # of the rewards

    @staticmethod
    def code(agent, step):
        return (agent + 100 * step) / 1e5

    def rows(self, agents: Array, k: int) -> list[Array | None]:
        """Return the observations, rewards and other rows that agents get in step k."""
        others = [np.full_like(agents, 250), (agents * 7 + k * 3) % 11]
        mask = np.ones((len(agents), self.spec.mask_size), np.uint8)
        if self.spec.mask_size:
            mask[:, k % self.spec.mask_size] = 0
        final_observations = ((agents + k) % 3 == 2) * (1.0 + agents % 2) * (k > 0)
        return [
            np.stack([agents, np.full_like(agents, k), *others], axis=1),
            self.scale * self.code(agents, k) * (k > 0),
            ((agents + k) % 3 == 0) * float(k > 0),
            mask if self.spec.mask_size else None,
            *([final_observations] if self.final_observations else []),
        ]

    def _write(self, out: Rows, agents: Array, k: int) -> None:
        for to, source in zip(out, self.rows(agents, k), strict=False):
            assert (to is None) == (source is None)
            if to is not None and source is not None:
                assert to.flags.c_contiguous and to.shape == source.shape
                to[:] = source

    def reset(self, out: Rows) -> None:
        self._write(out, np.arange(self.num_agents), 0)

    def send(self, group: int, actions: Array, out: Rows) -> None:
        assert self.pending[group] is None, "stepping already"
        assert actions.shape == (self.n, self.spec.action.heads) and actions.dtype == np.float32
        self.pending[group] = actions.copy(), out
        for array in out:  # nothing may be read before wait
            if array is not None:
                array.fill(77)

    def wait(self, group: int) -> None:
        if (pending := self.pending[group]) is None:
            return
        actions, out = pending
        self.pending[group] = None
        self.sent[group].append(actions)
        self.steps[group] += 1
        agents = np.arange(group * self.n, (group + 1) * self.n)
        self._write(out, agents, self.steps[group])

    def log(self) -> dict[str, float]:
        return {}

    def state(self) -> Array:
        return np.array(self.steps, np.int64).view(np.uint8)

    def restore(self, state: Array) -> None:
        for group in range(self.num_groups):
            self.wait(group)
        self.steps = state.view(np.int64).tolist()

    def busy_seconds(self) -> float:
        return 0.0

    def close(self) -> None:
        pass


class SmallVec(CodedVec):
    """Stub environments like ``CodedVec``, with observations small enough for a policy."""

    def rows(self, agents, k):
        observations, *others = super().rows(agents, k)
        return [observations * np.array([0.1, 1e-3, 1e-3, 0.1]), *others]


class RandomVec(CodedVec):
    """Stub environments with random rows, the same in every run.

    A fifth of the steps ends an episode.

    ``change`` edits the rewards (N,) of step k.
    """

    def __init__(self, agents: int, sizes=(3, 2), masked=True, change: Any = None) -> None:
        super().__init__(agents, 2, sizes, masked)
        self.change = change or (lambda reward, k: reward)

    def rows(self, agents, k):
        rng, N = np.random.default_rng(k), self.num_agents
        mask = None
        if self.spec.mask_size:
            mask = (rng.random((N, self.spec.mask_size)) < 0.6).astype(np.uint8)
            mask[:, [1, -1]] = 1
        terminals = (rng.random(N) < 0.2) * float(k > 0)
        rewards = self.change(rng.normal(size=N) * 2, k) * float(k > 0)
        rows = rng.normal(size=(N, 4)), rewards, terminals, mask
        return [None if row is None else row[agents] for row in rows]
