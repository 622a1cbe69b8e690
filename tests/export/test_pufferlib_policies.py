"""Import and export policies of the real PufferLib 3, compared on its observations.

Skipped without PufferLib: ``make test-oldest``.
"""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from policy_files import configuration_of
from stepping import puffer_vec

from puffer_mlx.export import importing
from puffer_mlx.export.formats.torch import save_torch
from puffer_mlx.export.parity import NamedOutputs, policy_outputs
from puffer_mlx.vec.rows import allocate_rows, random_actions

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("default")

HIDDEN, AGENTS, STEPS = 32, 4, 12


@pytest.fixture(autouse=True)
def pufferlib(here):
    """Import PufferLib, which leaves a link ``resources`` in the working directory."""
    return pytest.importorskip("pufferlib")


def emulated(environment: str):
    """Return a factory of a classic-control environment in PufferLib's emulation."""
    pufferlib = importlib.import_module("pufferlib")
    emulation = importlib.import_module("pufferlib.emulation")
    classic = importlib.import_module("gymnasium.envs.classic_control")

    def make(buf=None, seed=0):
        env = pufferlib.EpisodeStats(getattr(classic, environment)())
        return emulation.GymnasiumPufferEnv(env=env, buf=buf, seed=seed)

    return make


def of_pufferlib(make) -> Any:
    """Return PufferLib's torch policy with LSTM and random weights."""
    models = importlib.import_module("pufferlib.models")
    env = make()
    torch.manual_seed(3)
    policy = models.LSTMWrapper(env, models.Default(env, HIDDEN), HIDDEN, HIDDEN)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 0.2 * torch.randn(parameter.shape)
    return policy


def played(make) -> tuple[Any, np.ndarray]:
    """Play randomly. Returns the environment's spec, and observations (T, N, D)."""
    with puffer_vec(make, name="x", total_agents=AGENTS, backend="sync") as env:
        rows, rng, seen = allocate_rows(env, AGENTS), np.random.default_rng(0), []
        env.reset(rows)
        for _ in range(STEPS):
            seen.append(rows.observations.copy())
            env.send(0, random_actions(env, AGENTS, rng), rows)
            env.wait(0)
        return env.spec, np.stack(seen)


def its_outputs(policy: Any, observations: np.ndarray) -> NamedOutputs:
    """Return the outputs of PufferLib's policy as ``parity.policy_outputs`` returns ours."""
    state, steps = {"lstm_h": None, "lstm_c": None}, []
    with torch.no_grad():
        for seen in torch.from_numpy(observations):
            chosen, values = policy.forward_eval(seen, state)
            if isinstance(chosen, torch.distributions.Normal):
                found = {"mean": chosen.mean, "logstd": chosen.stddev.log()}
            else:
                found = {"logits": chosen}
            steps.append({**found, "value": values[:, 0]})
    return {name: torch.stack([step[name] for step in steps]).numpy() for name in steps[0]}


def assert_alike(found: NamedOutputs, expected: NamedOutputs) -> None:
    for name, theirs in expected.items():
        np.testing.assert_allclose(found[name], theirs, rtol=0, atol=2e-5, err_msg=name)
    assert np.std(expected["value"]) > 0.05  # it says something


def read(path: Path, spec: Any) -> tuple[Any, Any]:
    found = importing.read_any_policy_file(path)
    return importing.convert_weights(found, spec, configuration_of(found.settings))


@pytest.mark.parametrize("environment", ["CartPoleEnv", "PendulumEnv"])
def test_pufferlibs_policies_survive_an_import_and_an_export(here, environment: str):
    make = emulated(environment)
    theirs, (spec, observations) = of_pufferlib(make), played(make)
    expected = its_outputs(theirs, observations)
    torch.save(theirs.state_dict(), here / "theirs.pt")
    policy, weights = read(here / "theirs.pt", spec)
    assert_alike(policy_outputs(policy, weights, observations), expected)

    save_torch(policy, weights, here / "ours.pt")
    again = of_pufferlib(make)
    with torch.no_grad():
        for parameter in again.parameters():
            parameter.zero_()
    again.load_state_dict(torch.load(here / "ours.pt"))  # all keys, and no others
    assert_alike(its_outputs(again, observations), expected)
