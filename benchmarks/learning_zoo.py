"""RL Zoo's settings for PPO, and the scores that RL Zoo published with them.

Settings: `hyperparams/ppo.yml` of github.com/DLR-RM/rl-baselines3-zoo, for the newest version of
each environment there (v3 for MuJoCo, v2 for LunarLander). All other settings are
Stable-Baselines3's defaults. Scores: its `benchmark.md`, one run each. Plain data, because the
Python of the other trainers reads it as well.

`lin_x` falls from x to 0 over the run; `normalize` is VecNormalize with the task's gamma;
`activation_fn` is a class of torch.nn; `wrapper` (MODULE:CLASS) is applied to every environment;
`algorithm` (MODULE:CLASS) replaces PPO.
"""

from typing import Any

_WIDE = {
    "log_std_init": -2,
    "ortho_init": False,
    "activation_fn": "ReLU",
    "net_arch": {"pi": [256, 256], "vf": [256, 256]},
}
_LANDER = {
    "n_envs": 16,
    "n_steps": 1024,
    "batch_size": 64,
    "gae_lambda": 0.98,
    "gamma": 0.999,
    "n_epochs": 4,
    "ent_coef": 0.01,
}
_MINIGRID = {  # settings for MiniGrid-DoorKey-5x5-v0, with the wrapper used for tuning
    "wrapper": "minigrid.wrappers:FlatObsWrapper",
    "normalize": True,
    "n_envs": 8,
    "n_steps": 128,
    "batch_size": 64,
    "gae_lambda": 0.95,
    "gamma": 0.99,
    "n_epochs": 10,
    "learning_rate": 2.5e-4,
    "clip_range": 0.2,
}
_ATARI = {
    "wrapper": "stable_baselines3.common.atari_wrappers:AtariWrapper",
    "frame_stack": 4,
    "policy": "CnnPolicy",
    "n_envs": 8,
    "n_steps": 128,
    "n_epochs": 4,
    "batch_size": 256,
    "learning_rate": "lin_2.5e-4",
    "clip_range": "lin_0.1",
    "vf_coef": 0.5,
    "ent_coef": 0.01,
}

SETTINGS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "n_envs": 8,
        "n_steps": 32,
        "batch_size": 256,
        "gae_lambda": 0.8,
        "gamma": 0.98,
        "n_epochs": 20,
        "learning_rate": "lin_0.001",
        "clip_range": "lin_0.2",
    },
    "Acrobot-v1": {
        "normalize": True,
        "n_envs": 16,
        "n_steps": 256,
        "gae_lambda": 0.94,
        "n_epochs": 4,
    },
    "MountainCar-v0": {
        "normalize": True,
        "n_envs": 16,
        "n_steps": 16,
        "gae_lambda": 0.98,
        "n_epochs": 4,
    },
    "Pendulum-v1": {
        "n_envs": 4,
        "n_steps": 1024,
        "gae_lambda": 0.95,
        "gamma": 0.9,
        "n_epochs": 10,
        "learning_rate": 1e-3,
        "use_sde": True,
        "sde_sample_freq": 4,
    },
    "LunarLander-v3": _LANDER,
    "LunarLanderContinuous-v3": _LANDER,
    "BipedalWalker-v3": {
        "normalize": True,
        "n_envs": 32,
        "n_steps": 2048,
        "batch_size": 64,
        "gae_lambda": 0.95,
        "gamma": 0.999,
        "n_epochs": 10,
        "learning_rate": 3e-4,
        "clip_range": 0.18,
    },
    "HalfCheetah-v5": {
        "normalize": True,
        "n_steps": 512,
        "batch_size": 64,
        "gamma": 0.98,
        "learning_rate": 2.0633e-05,
        "ent_coef": 0.000401762,
        "clip_range": 0.1,
        "n_epochs": 20,
        "gae_lambda": 0.92,
        "max_grad_norm": 0.8,
        "vf_coef": 0.58096,
        "policy_kwargs": _WIDE,
    },
    "Hopper-v5": {
        "normalize": True,
        "n_steps": 512,
        "batch_size": 32,
        "gamma": 0.999,
        "learning_rate": 9.80828e-05,
        "ent_coef": 0.00229519,
        "clip_range": 0.2,
        "n_epochs": 5,
        "gae_lambda": 0.99,
        "max_grad_norm": 0.7,
        "vf_coef": 0.835671,
        "policy_kwargs": _WIDE,
    },
    "Walker2d-v5": {
        "normalize": True,
        "n_steps": 512,
        "batch_size": 32,
        "gamma": 0.99,
        "learning_rate": 5.05041e-05,
        "ent_coef": 0.000585045,
        "clip_range": 0.1,
        "n_epochs": 20,
        "gae_lambda": 0.95,
        "max_grad_norm": 1,
        "vf_coef": 0.871923,
    },
    "Ant-v5": {"normalize": True},
    "Swimmer-v5": {"normalize": True, "gamma": 0.9999},
    "MiniGrid-Empty-5x5-v0": _MINIGRID,
    "MiniGrid-Empty-8x8-v0": _MINIGRID,
    "MiniGrid-DoorKey-5x5-v0": _MINIGRID,
    "ALE/Pong-v5": _ATARI,
    "ALE/Breakout-v5": _ATARI,
}

SHIPPED = (
    "RecurrentPPO"  # sb3-contrib's as it is, and with the settings of hyperparams/ppo_lstm.yml
)
TUNED = "RecurrentPPO-zoo"
_RECURRENT = {"algorithm": "sb3_contrib:RecurrentPPO", "policy": "MlpLstmPolicy", "n_envs": 8}
RECURRENT: dict[str, dict[str, dict[str, Any]]] = {  # task -> trainer -> settings
    "memory": {SHIPPED: _RECURRENT},
    "t_maze": {SHIPPED: _RECURRENT},
    "cartpole_without_velocity": {  # there CartPoleNoVel-v1
        SHIPPED: _RECURRENT,
        TUNED: {**_RECURRENT, **SETTINGS["CartPole-v1"]},
    },
    "pendulum_without_velocity": {  # there PendulumNoVel-v1
        SHIPPED: _RECURRENT,
        TUNED: {**_RECURRENT, **SETTINGS["Pendulum-v1"]},
    },
}

PUBLISHED = {  # task -> score; for the number of steps that the task has here
    "CartPole-v1": 500.0,
    "Acrobot-v1": -73.5,
    "MountainCar-v0": -110.4,
    "Pendulum-v1": -172.2,
    "LunarLander-v3": 242.1,
    "LunarLanderContinuous-v3": 270.9,
    "BipedalWalker-v3-5M": 213.3,
    "HalfCheetah-v5": 5819.1,
    "Hopper-v5": 2410.4,
    "Walker2d-v5": 3478.8,
    "Ant-v5": 1327.2,
    "Swimmer-v5": 281.6,
}
