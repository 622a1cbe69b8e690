"""Float64 oracles of the fused operations, forward and backward."""

import math

import mlx.core as mx
import numpy as np
import pytest
from oracles import f64, sigmoid

# Largest relative error of rounding to the type.
EPSILON = {mx.bfloat16: 2.0**-8, mx.float16: 2.0**-11}
LOW = pytest.mark.parametrize("dtype", list(EPSILON), ids=["bf16", "fp16"])


def random_not_done(rng, T, S):
    """Return random ``not_done`` factors (T, S): 0 with probability 1/3, otherwise 1."""
    return (rng.random((T, S)) > 1 / 3).astype(np.float32)


def assert_close(found, expected, tolerance=4e-6):
    """Compare arrays with oracles; the tolerance is relative to an oracle's largest value or 1."""
    for ours, oracle in zip(found, expected, strict=True):
        assert np.shape(ours) == oracle.shape
        scale = max(1.0, np.abs(oracle).max())
        np.testing.assert_allclose(np.array(ours), oracle, rtol=0, atol=tolerance * scale)


def mingru_oracle(u, x, first, not_done, dout):
    """Compute MinGRU in float64: outputs, states, and their gradients."""
    T, _, H = x.shape
    u, x, first, not_done, dout = map(f64, (u, x, first, not_done, dout))
    hidden, z, q = u[..., :H], sigmoid(u[..., H : 2 * H]), sigmoid(u[..., 2 * H :])
    g = np.where(hidden >= 0, hidden + 0.5, sigmoid(hidden))
    slope = np.where(hidden >= 0, 1, g * (1 - g))
    before = np.zeros_like(x)  # not_done_t s_{t-1}
    states = np.zeros_like(x)
    for t in range(T):
        before[t] = not_done[t, :, None] * (states[t - 1] if t else first)
        states[t] = (1 - z[t]) * before[t] + z[t] * g[t]
    out = q * states + (1 - q) * x
    du, carry = np.zeros_like(u), np.zeros_like(first)
    for t in reversed(range(T)):
        ds = carry + dout[t] * q[t]
        du[t, :, :H] = ds * z[t] * slope[t]
        du[t, :, H : 2 * H] = ds * (g[t] - before[t]) * z[t] * (1 - z[t])
        du[t, :, 2 * H :] = dout[t] * (states[t] - x[t]) * q[t] * (1 - q[t])
        carry = ds * (1 - z[t]) * not_done[t, :, None]
    return (out, states), (du, dout * (1 - q), carry)


def lstm_oracle(z, weight, h0, c0, not_done, dh):
    """Compute an LSTM in float64: (h, c, gates) and the gradients (dz, dh0, dc0)."""
    z, weight, h0, c0, not_done, dh = map(f64, (z, weight, h0, c0, not_done, dh))
    T, S, H = dh.shape
    h, c, gates = np.zeros((T, S, H)), np.zeros((T, S, H)), np.zeros((T, S, 4 * H))
    for t in range(T):
        kept = not_done[t, :, None]
        before = kept * (h[t - 1] if t else h0)
        cell = kept * (c[t - 1] if t else c0)
        i, f, g, o = np.split(z[t] + before @ weight.T, 4, axis=-1)
        i, f, g, o = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)
        c[t] = f * cell + i * g
        h[t] = o * np.tanh(c[t])
        gates[t] = np.concatenate([i, f, g, o], axis=-1)
    dz = np.zeros_like(z)
    into_h, into_c = np.zeros((S, H)), np.zeros((S, H))  # gradients of h_t, c_t from step t + 1
    for t in reversed(range(T)):
        kept = not_done[t, :, None]
        i, f, g, o = np.split(gates[t], 4, axis=-1)
        d = dh[t] + into_h
        dc = into_c + d * o * (1 - np.tanh(c[t]) ** 2)
        cell = kept * (c[t - 1] if t else c0)
        parts = (
            dc * g * i * (1 - i),
            dc * cell * f * (1 - f),
            dc * i * (1 - g**2),
            d * np.tanh(c[t]) * o * (1 - o),
        )
        dz[t] = np.concatenate(parts, axis=-1)
        into_h, into_c = kept * (dz[t] @ weight), kept * dc * f
    return (h, c, gates), (dz, into_h, into_c)


def gru_oracle(z, weight, bias, h0, not_done, dh):
    """Compute a GRU in float64: (h, gates) and the gradients (dz, dhidden, dh0)."""
    z, weight, bias, h0, not_done, dh = map(f64, (z, weight, bias, h0, not_done, dh))
    T, S, H = dh.shape
    h, gates = np.zeros((T, S, H)), np.zeros((T, S, 4 * H))
    for t in range(T):
        before = not_done[t, :, None] * (h[t - 1] if t else h0)
        hr, hu, hn = np.split(before @ weight.T + bias, 3, axis=-1)
        zr, zu, zn = np.split(z[t], 3, axis=-1)
        r, u = sigmoid(zr + hr), sigmoid(zu + hu)
        n = np.tanh(zn + r * hn)
        h[t] = (1 - u) * n + u * before
        gates[t] = np.concatenate([r, u, n, hn], axis=-1)
    dz, dhidden = np.zeros_like(z), np.zeros_like(z)
    into_h = np.zeros((S, H))  # gradient of h_t from step t + 1
    for t in reversed(range(T)):
        kept = not_done[t, :, None]
        r, u, n, hn = np.split(gates[t], 4, axis=-1)
        before = kept * (h[t - 1] if t else h0)
        d = dh[t] + into_h
        dn = d * (1 - u) * (1 - n**2)
        dr = dn * hn * r * (1 - r)
        du = d * (before - n) * u * (1 - u)
        dz[t] = np.concatenate([dr, du, dn], axis=-1)
        dhidden[t] = np.concatenate([dr, du, dn * r], axis=-1)
        into_h = kept * (d * u + dhidden[t] @ weight)
    return (h, gates), (dz, dhidden, into_h)


def gelu_oracle(x):
    """Compute exact GELU and its derivative in float64, with their limits at infinity."""
    x = np.clip(f64(x), -40, None)
    tail = np.array([math.erfc(-v / math.sqrt(2)) / 2 for v in x])
    bell = np.exp(-(np.minimum(x, 40) ** 2) / 2) / math.sqrt(2 * math.pi)
    return x * tail, tail + np.minimum(x, 40) * bell
