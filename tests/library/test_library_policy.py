"""``puffer_mlx.Policy``: actions of an environment for its observations."""

from typing import Any, cast

import gymnasium
import mlx.core as mx
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from oracles import named

import puffer_mlx
from puffer_mlx.checkpoint.environment_statistics import (
    preprocessing_changes,
    with_saved_preprocessing,
)
from puffer_mlx.errors import UserError
from puffer_mlx.vec.rows import allocate_rows

SMALL: dict[str, Any] = {
    "total_timesteps": 256,
    "total_agents": 2,
    "horizon": 32,
    "minibatch_size": 64,
}
PARTS = Dict(
    {
        "near": Box(-5, 5, (2, 2), np.float32),
        "kind": Discrete(3, start=1),
        "both": Tuple([Box(0, 1, (1,), np.float32), MultiDiscrete([2, 3])]),
    }
)
MEMORY: dict[str, Any] = {"network": "GRU", "minibatch_size": 64}


class Given(gymnasium.Env):
    """Gymnasium environment that returns random samples of a space as observations.

    It checks that actions are in the action space.
    """

    def __init__(self, observations: Any = PARTS, actions=None, length=4):
        self.observation_space = observations
        self.action_space = Discrete(3, start=2) if actions is None else actions
        self.length = length

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.steps += 1
        return self.observation_space.sample(), 1.0, self.steps == self.length, False, {}


def trained(make, **settings):
    return puffer_mlx.train(make, {**SMALL, **settings})


def test_latest_and_best_are_of_the_newest_run_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    where = {"checkpoint_dir": "checkpoints", "eval_interval": 256, "eval_episodes": 2}
    for env in (Given, "gym:CartPole-v1"):
        trained(env, **where).close()
    for name in ("latest", "best", "gym-CartPole-v1/best"):
        assert puffer_mlx.Policy.load(name).config.env_name == "gym:CartPole-v1"
        if "/" not in name:
            assert puffer_mlx.Policy.load(name, env=Given).config.env_name.endswith(":Given")
    with pytest.raises(UserError, match="no checkpoint 7 in checkpoints") as caught:
        puffer_mlx.Policy.load("7")
    assert "existing runs: gym-CartPole-v1/" in str(caught.value.hint)


@pytest.mark.parametrize("settings", [{}, MEMORY])
def test_predict_equals_the_actions_of_the_policy_on_real_rows(settings):
    """With normalized rows, a memory and the units of the environment."""
    with trained("gym:Pendulum-v1", **settings) as trainer:
        rows = allocate_rows(trainer.vec, 2)
        env = gymnasium.make("Pendulum-v1")
        policy, vec = puffer_mlx.Policy(trainer), cast(Any, trainer.vec)
        vec.restore_statistics(policy.memory, frozen=True)
        vec.reset(rows)
        observations = vec.raw(rows.observations)
        states = trainer.policy.initial_state(2)
        for _ in range(3):
            seen = mx.array(rows.observations)
            chosen, _, _, states = trainer.policy.act(trainer.weights, seen, states, None)
            units = vec.layout.actions(np.array(chosen))
            actions = policy.predict(observations, deterministic=True).action
            np.testing.assert_allclose(actions, units, rtol=1e-4, atol=1e-5)
            assert all(env.action_space.contains(action) for action in actions)
            vec.send(0, np.ascontiguousarray(chosen), rows)
            vec.wait(0)
            observations = vec.raw(rows.observations)


def test_an_old_run_reads_images_as_before_image_channels(tmp_path):
    """As 5 x 8 pixels with 6 channels, not as 8 x 6 pixels with 5."""

    def make():
        return Given(Box(0, 255, (5, 8, 6), np.uint8))

    seen = np.ones((5, 8, 6), np.uint8)
    settings = {"vec.image_channels": "up_to_4", "torch.encoder": "DefaultEncoder"}
    with trained(make, **settings) as trainer:
        saved = trainer.save(tmp_path / "run")
        expected = trainer.predict(seen, deterministic=True).action
    written = saved / "config.ini"
    written.write_text(written.read_text().replace("image_channels = up_to_4\n", ""))
    policy = puffer_mlx.Policy.load(saved, make)
    assert policy.spec.observation_shape == (5, 8, 6)
    assert policy.predict(seen, deterministic=True).action == expected
    with puffer_mlx.Trainer.load(saved, make, total_timesteps=512) as again:
        assert again.vec.spec.observation_shape == (5, 8, 6)
        assert len(list(again)) == 4
    with puffer_mlx.Trainer(SMALL, make) as new:
        config = with_saved_preprocessing(new.config, saved)
        (line,) = preprocessing_changes(new.config, config, saved)
        assert "vec.image_channels is up_to_4" in line


@pytest.fixture(scope="module")
def cartpole():
    """Yield a trained run of CartPole whose policy has no recurrent state."""
    with trained("gym:CartPole-v1") as trainer:
        yield trainer


def test_one_observation_has_the_action_of_a_batch(cartpole):
    policy = puffer_mlx.Policy(cartpole)
    seen = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    batch, state = policy.predict(seen, deterministic=True)
    assert batch.shape == (6,) and state is None
    actions = [policy.predict(one, deterministic=True).action for one in seen]
    assert [int(action) for action in actions] == batch.tolist() and np.shape(actions[0]) == ()
    as_list = [float(number) for number in seen[0]]
    assert policy.predict(as_list, deterministic=True).action == actions[0]


def test_masked_actions_are_not_taken(cartpole):
    masks = np.eye(2)[[0, 1, 0, 1, 0, 1]]
    seen = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    found = cartpole.predict(seen, action_masks=masks, deterministic=True).action
    assert found.tolist() == [0, 1, 0, 1, 0, 1]


def test_a_checkpoint_predicts_parts_without_its_environment(tmp_path, monkeypatch):
    """Spaces are data of the checkpoint: its environment isn't imported."""
    actions = Tuple([Discrete(3, start=2), MultiDiscrete([2, 1, 4])])
    with trained(lambda: Given(actions=actions)) as trainer:
        trainer.save(tmp_path)
    monkeypatch.setattr("puffer_mlx.vec.probe", None)
    policy, env = puffer_mlx.Policy.load(tmp_path), Given()
    pair = [env.reset(seed=seed)[0] for seed in (1, 2)]
    batch = {
        "near": np.stack([one["near"] for one in pair]),
        "kind": np.array([one["kind"] for one in pair]),
        "both": tuple(np.stack([one["both"][i] for one in pair]) for i in (0, 1)),
    }
    first, second = policy.predict(batch, deterministic=True).action
    assert (first.shape, second.shape) == ((2,), (2, 3))
    for source in policy, trainer:
        own = source.predict(pair[1], deterministic=True).action
        assert actions.contains(own)
        assert own[0] == first[1] and (own[1] == second[1]).all()


def test_memory_goes_on_between_predictions_and_is_reset_at_episode_starts():
    with trained("gym:CartPole-v1", **MEMORY) as trainer:
        policy = puffer_mlx.Policy(trainer)
        two = np.ones((2, 4))

        def state(seen: Any = two[0], **how: Any) -> np.ndarray:
            found: Any = policy.predict(seen, deterministic=True, **how)
            return np.stack([np.array(part) for part in found.state])

        first, second = state(), state()
        assert (first != second).any()
        policy.reset()
        assert (state() == first).all()
        assert (state(episode_start=True) == first).all()
        assert (state(state=[mx.array(part) for part in first]) == second).all()
        said = r"state of 1 agents, but got 2 .*\n  hint: call policy.reset"
        with pytest.raises(UserError, match=said):
            state(two)
        policy.reset()
        state(two)
        after = state(two, episode_start=[True, False])
        np.testing.assert_allclose(after, np.stack([first, second], 1)[:, :, 0], 1e-5)


def test_predict_samples_by_default_and_repeats_with_the_seed():
    with trained("gym:Pendulum-v1") as trainer:
        policy, seen = puffer_mlx.Policy(trainer), np.zeros((4, 3), np.float32)
        policy.reset(seed=1)
        first, second = policy.predict(seen).action, policy.predict(seen).action
        assert len({*first.ravel().tolist(), *second.ravel().tolist()}) == 8
        policy.reset(seed=1)
        assert (policy.predict(seen).action == first).all()
        assert len({*trainer.predict(seen).action.ravel().tolist()}) == 4
        assert len({*policy.predict(seen, deterministic=True).action.ravel().tolist()}) == 1


def test_a_policy_keeps_its_weights_while_its_trainer_continues(tmp_path):
    with puffer_mlx.Trainer({**SMALL, "learning_rate": 0.1}, "gym:Pendulum-v1") as trainer:
        seen = np.ones(3, np.float32)
        policy, before = (
            puffer_mlx.Policy(trainer),
            trainer.predict(seen, deterministic=True).action,
        )
        for _ in trainer:
            pass
        assert (policy.predict(seen, deterministic=True).action == before).all()
        after = trainer.predict(seen, deterministic=True).action
        assert (after != before).any()
        trainer.save(tmp_path)
    loaded = puffer_mlx.Policy.load(tmp_path)  # with what observations are normalised by
    np.testing.assert_allclose(loaded.predict(seen, deterministic=True).action, after, rtol=1e-6)
    assert loaded.step == 256


# ---- an image among other parts ------------------------------------------------------------------

CAMERA = Dict(
    {
        "camera": Box(0, 255, (3, 36, 40), np.uint8),
        "speed": Box(-1, 1, (2,), np.float32),
        "gear": Discrete(3),
    }
)
FEW: dict[str, Any] = {"hidden_size": 16, "device": "cpu", "replay_ratio": 1}


def test_an_image_in_a_dict_is_encoded_by_convolutions(here):
    with trained(lambda: Given(CAMERA), **FEW) as trainer:
        encoder, spec = cast(Any, trainer.policy.encoder), trainer.vec.spec
        assert [type(each).__name__ for each in encoder.encoders] == ["Nature"]
        assert (trainer.config.base.family, spec.image_parts[0].shape) == ("images", (36, 40, 3))
        key = mx.random.split(mx.random.key(trainer.config.base.seed))[0]
        name = "encoder.images.0.convs.0.weight"
        first, now = (dict(named(w)) for w in (trainer.policy.init(key), trainer.weights))
        assert not mx.array_equal(first[name], now[name])
        seen = [Given(CAMERA).reset(seed=seed)[0] for seed in range(8)]
        batch = {key: np.stack([each[key] for each in seen]) for key in seen[0]}
        expected = trainer.predict(batch, deterministic=True).action
        assert trainer.predict(seen[0], deterministic=True).action == expected[0]
        for kind in ("onnx", "safetensors"):
            assert trainer.export(f"policy.{kind}").difference <= 1e-5
        with pytest.raises(UserError, match=r"Combined.*\n.*onnx or safetensors"):
            trainer.export("policy.pt")
        trainer.save("run")
    assert (
        puffer_mlx.Policy.load("run").predict(batch, deterministic=True).action == expected
    ).all()
    with puffer_mlx.Trainer.load("run", lambda: Given(CAMERA), total_timesteps=320) as trainer:
        assert len(list(trainer)) == 1


def test_an_old_run_keeps_its_encoder_of_images(here, monkeypatch):
    """Its encoder ``auto`` took the bytes of an image as numbers."""
    settings = {**FEW, "family": "discrete", "learning_rate": 1e-3}

    def make():
        return Given(CAMERA)

    with monkeypatch.context() as before:
        before.setattr("puffer_mlx.vec.layout.image_parts", lambda _: ())
        with trained(make, **settings) as trainer:
            assert type(trainer.policy.encoder).__name__ == "Activated"
            trainer.save("run")
    for _ in range(2):
        with puffer_mlx.Trainer.load("run", make, total_timesteps=1024) as trainer:
            trainer.step()
            trainer.save("run")
    policy = puffer_mlx.Policy.load("run", make)
    assert policy.config.torch.encoder == "DefaultEncoder" and policy.step == 384
    assert puffer_mlx.evaluate(policy, episodes=2).score.mean == 4
    with pytest.raises(UserError, match=r"normalize_observations is True.*images besides"):
        trained(make, **settings)
