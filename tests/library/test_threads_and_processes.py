"""Trainers and policies in several threads, in other processes, pickled and copied."""

import copy
import multiprocessing
import os
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium
import mlx.core as mx
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from mlx import nn
from mlx.utils import tree_map
from oracles import named, same

import puffer_mlx
from puffer_mlx.errors import UserError
from puffer_mlx.system import devices

BATCH = 8 * 16
SMALL: dict[str, Any] = {
    "total_agents": 8,
    "horizon": 16,
    "minibatch_size": 64,
    "total_timesteps": 5 * BATCH,
    "device": "cpu",
}
TINY = SMALL | {"hidden_size": 8, "num_threads": 1}
PLAY = TINY | {"selfplay.enabled": True, "opp_timeout_steps": BATCH}
OF_4 = {"num_frozen_banks": 1, "frozen_bank_pct": 0.25, "snapshot_interval": BATCH}


class Both(nn.Module):
    """Custom actor and critic with an array that isn't a parameter."""

    def __init__(self):
        super().__init__()
        self.body, self.head, self.value = nn.Linear(4, 8), nn.Linear(8, 2), nn.Linear(8, 1)
        self._scale = mx.ones(8) * 0.5

    def __call__(self, x):
        h = nn.tanh(self.body(x)) * self._scale
        return self.head(h), self.value(h)


class Seen(gymnasium.Env):
    """Gymnasium environment whose observation is a dictionary."""

    observation_space = Dict({"near": Box(-1, 1, (2, 2), np.float32), "kind": Discrete(3)})
    action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._seen(), {}

    def step(self, action):
        self.steps += 1
        return self._seen(), float(action), self.steps == 5, False, {}

    def _seen(self):
        return {"near": np.full((2, 2), self.steps / 5, np.float32), "kind": self.steps % 3}


class Embedded(nn.Module):
    """Custom encoder with an array that isn't a parameter."""

    def __init__(self, inputs: int, hidden: int):
        super().__init__()
        self.linear = nn.Linear(inputs, hidden)
        self._scale = mx.ones(hidden) * 0.5

    def __call__(self, x):
        return self.linear(x) * self._scale


class Scaled:
    """Custom network without recurrent state, with an array that isn't a weight."""

    def __init__(self, hidden: int, layers: int):
        self.hidden = hidden
        self.scale = mx.arange(hidden) * 0.1

    def init(self, key):
        return {"weight": mx.random.normal((self.hidden,), key=key)}

    def initial_state(self, n):
        return []

    def step(self, weights, h, state, keep=None):
        return h * weights["weight"] * self.scale, state

    def scan(self, weights, h, state, keep=None):
        return self.step(weights, h, state)


def in_new_thread(call: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(call).result()


def here(call: Callable[[], Any]) -> Any:
    return call()


CARTPOLE = "gym:CartPole-v1", SMALL | {"backend": "sync"}
OWN_PARTS = {"encoder": f"{__name__}:Embedded", "network": f"{__name__}:Scaled"}
SETTINGS = {
    "ppo": ("squared", TINY | {"algorithm": "ppo", "target_kl": 0.01, "eval_interval": BATCH}),
    "self-play": ("rock_paper_scissors", PLAY | OF_4 | {"overlap": 1, "precision": "fp16"}),
    "normalized": ("gym:Pendulum-v1", CARTPOLE[1] | {"normalize_rewards": 1}),
    "module": (*CARTPOLE, Both),
    "own-parts": ("squared", TINY | OWN_PARTS),
}


def halve_decoder(trainer: Any) -> None:
    decoder = tree_map(lambda w: w * 0.5, trainer.weights["decoder"])
    trainer.weights = {**trainer.weights, "decoder": decoder}


def life(call: Callable[[Callable[[], Any]], Any], folder: Any, env: str, settings: Any, module):
    """Train, save, resume, set weights, sample and evaluate; return all results.

    Each method is called by ``call``, perhaps in another thread.
    """
    mx.random.seed(3)
    module = module and module()
    mx.eval(module or {})
    trainer = call(lambda: puffer_mlx.Trainer(settings, env, module))
    for _ in range(2):
        call(trainer.step)
    call(lambda: trainer.save(folder))
    resumed = call(lambda: puffer_mlx.Trainer.load(folder, None, module, allow_code=True))
    for each in (trainer, resumed):
        for _ in range(2):
            call(each.step)
    assert trainer.config.python or same(trainer.weights, resumed.weights)
    call(lambda: halve_decoder(trainer))
    call(trainer.step)
    policy = call(lambda: puffer_mlx.Policy.load(folder, policy=module, allow_code=True))
    spec = trainer.vec.spec
    seen = np.zeros((3, spec.observation_size), spec.observation_dtype)
    drawn = [
        call(lambda each=each: each.predict(seen, deterministic=False).action.tolist())
        for each in (policy, policy, trainer, trainer)
    ]
    scores = [call(lambda: puffer_mlx.evaluate(policy, None, 2, max_steps=9)) for _ in "ab"]
    result = named(trainer.weights), named(resumed.weights)
    for each in (trainer, resumed):
        call(each.close)
    return result, drawn, [each.episodes for each in scores]


@pytest.mark.parametrize("name", SETTINGS)
def test_results_are_the_same_when_each_call_is_in_another_thread(tmp_path, name):
    env, settings, *module = SETTINGS[name]
    arguments = env, settings, *(module or [None])
    weights, *others = life(here, tmp_path / "one", *arguments)
    again, *as_well = life(in_new_thread, tmp_path / "each", *arguments)
    for one, other in zip(weights, again, strict=True):
        assert same(dict(one), dict(other))
    assert others == as_well


def test_an_unevaluated_module_of_another_thread_is_refused():
    module = in_new_thread(Both)
    with pytest.raises(
        UserError, match=r"Both was created in another thread.*\n.*mx\.eval\(module\)"
    ):
        puffer_mlx.Trainer(CARTPOLE[1], CARTPOLE[0], module)


def test_concurrent_threads_use_each_random_key_once():
    settings = TINY | {"total_timesteps": BATCH, "replay_ratio": 1, "network": "MLP"}
    with puffer_mlx.train("cartpole_continuous", settings) as trainer:
        policies = [puffer_mlx.Policy(trainer) for _ in range(2)]
        seen = np.zeros(4, np.float32)

        def draw(source: Any) -> float:
            return float(source.predict(seen, deterministic=False).action.item())

        expected = [draw(policies[0]) for _ in range(200)]
        assert len({*expected}) == 200
        for source in (policies[1], trainer):
            with ThreadPoolExecutor(4) as threads:
                drawn = sorted(threads.map(draw, [source] * 200))
            np.testing.assert_allclose(drawn, sorted(expected), rtol=1e-4, atol=1e-5)


def tiny(env: Any) -> dict[str, Any]:
    return TINY if env == "squared" else TINY | {"backend": "sync"}


@pytest.fixture(scope="module")
def trained():
    cases: dict[str, Any] = {
        "c": "squared",
        "id": "gym:CartPole-v1",
        "class": Seen,
        "function": lambda: Seen(),
    }
    trainers = {
        name: puffer_mlx.train(env, tiny(env) | {"total_timesteps": BATCH})
        for name, env in cases.items()
    }
    trainers["module"] = puffer_mlx.train(CARTPOLE[0], CARTPOLE[1], policy=Both())
    yield trainers
    for trainer in trainers.values():
        trainer.close()


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def observation_of(policy: puffer_mlx.Policy) -> Any:
    if policy.config.env_name.endswith(("Seen", "function")):
        return {"near": np.ones((2, 2), np.float32), "kind": 1}
    return np.ones(policy.spec.observation_size, policy.spec.observation_dtype)


@pytest.mark.parametrize(
    ("name", "loaded", "copied"),
    [
        ("c", False, pickled),
        ("class", False, copy.deepcopy),
        ("function", False, pickled),
        ("module", True, pickled),
    ],
)
def test_a_copy_of_a_policy_acts_as_the_policy_does(trained, tmp_path, name, loaded, copied):
    policy = puffer_mlx.Policy(trained[name])
    if loaded:
        module = Both() if name == "module" else None
        folder = trained[name].save(tmp_path)
        policy = puffer_mlx.Policy.load(folder, policy=module, allow_code=True)
    seen = observation_of(policy)
    policy.predict(seen, deterministic=False)  # the copy continues with the same random key
    again = copied(policy)
    assert same(again.weights, policy.weights) and again.config == policy.config
    for _ in range(5):
        drawn = [each.predict(seen, deterministic=False).action for each in (again, policy)]
        np.testing.assert_array_equal(*drawn)


def test_a_copy_of_a_configuration_trains_as_it_does():
    with (
        puffer_mlx.Trainer(tiny(Seen), Seen) as fresh,
        puffer_mlx.Trainer(pickled(fresh.config)) as trainer,
    ):
        fresh.step()
        trainer.step()
        assert same(trainer.weights, fresh.weights)


def test_a_pickled_policy_leaves_out_what_pickle_refuses(trained):
    policy = puffer_mlx.Policy(trained["function"])
    assert policy.config.factory is not None
    assert pickled(policy).config.factory is None
    assert copy.deepcopy(policy).config.factory is policy.config.factory
    scores = [puffer_mlx.evaluate(each, Seen, 2) for each in (policy, pickled(policy))]
    assert scores[0].episodes == scores[1].episodes


USES: dict[str, Callable[[Any], Any]] = {
    "step": lambda trainer: trainer.step(),
    "new trainer": lambda _: puffer_mlx.Trainer(TINY, "squared"),
}


@pytest.mark.parametrize("use", USES)
def test_uses_in_a_forked_process_are_refused(trained, monkeypatch, use):
    monkeypatch.setattr(devices, "_pid", os.getpid() + 1)
    with pytest.raises(UserError, match=r'forked .*\n.*get_context\("spawn"\)'):
        USES[use](trained["id"])


@pytest.mark.processes
def test_a_forked_process_gets_an_error_instead_of_a_hang(trained):
    policy = puffer_mlx.Policy(trained["id"])
    ours, theirs = multiprocessing.Pipe()

    def child() -> None:
        try:
            policy.predict(np.zeros(4, np.float32))
        except UserError as error:
            theirs.send(error)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    try:
        assert ours.poll(60), "the forked process hangs"
        error = ours.recv()
        assert isinstance(error, UserError) and "spawn" in error.hint
    finally:
        process.kill()
        process.join()
