"""What PufferLib's default.ini searches, of 4.0 and of 5.0: (distribution, min, max, scale)."""

from puffer_mlx.config import Config
from puffer_mlx.config.schema import OPTIMIZERS

Range = tuple[str, float, float, str]

_SHARED: dict[str, Range] = {
    "train.total_timesteps": ("log_normal", 3e7, 1e11, "time"),
    "policy.hidden_size": ("uniform_pow2", 32, 1024, "auto"),
    "policy.num_layers": ("uniform", 1, 8, "auto"),
    "train.gamma": ("logit_normal", 0.8, 0.9999, "auto"),
    "train.gae_lambda": ("logit_normal", 0.2, 0.995, "auto"),
    "train.replay_ratio": ("uniform", 0.25, 4, "auto"),
    "train.vf_clip_coef": ("uniform", 0.01, 5, "auto"),
    "train.beta1": ("logit_normal", 0.5, 0.999, "auto"),
}
OF_4 = _SHARED | {
    "vec.num_buffers": ("uniform", 1, 8, "auto"),
    "train.horizon": ("uniform_pow2", 8, 1024, "auto"),
    "train.learning_rate": ("log_normal", 1e-5, 0.1, "0.5"),
    "train.ent_coef": ("log_normal", 1e-5, 0.2, "auto"),
    "train.vtrace_rho_clip": ("uniform", 0.1, 5, "auto"),
    "train.vtrace_c_clip": ("uniform", 0.1, 5, "auto"),
    "train.clip_coef": ("uniform", 0.01, 1, "auto"),
    "train.vf_coef": ("uniform", 0.1, 5, "auto"),
    "train.max_grad_norm": ("uniform", 0.1, 5, "auto"),
    "train.beta2": ("logit_normal", 0.9, 0.99999, "auto"),
    "train.eps": ("log_normal", 1e-14, 1e-4, "auto"),
    "train.prio_alpha": ("uniform", 0, 1, "auto"),
    "train.prio_beta0": ("uniform", 0, 1, "auto"),
}
OF_5 = _SHARED | {
    "vec.total_agents": ("uniform_pow2", 256, 16384, "auto"),
    "train.horizon": ("uniform_pow2", 32, 512, "auto"),
    "train.minibatch_size": ("uniform_pow2", 4096, 65536, "auto"),
    "train.learning_rate": ("log_normal", 1e-4, 1.0, "0.5"),
    "train.ent_coef": ("log_normal", 1e-5, 0.1, "auto"),
    "train.clip_coef": ("uniform", 0.1, 0.9, "auto"),
    "train.vf_coef": ("uniform", 0.1, 4, "auto"),
    "train.max_grad_norm": ("uniform", 0.1, 1.5, "auto"),
}


def default_ranges(config: Config) -> dict[str, Range]:
    """The ranges of the release whose trainer a configuration has, without keys it doesn't read."""
    from puffer_mlx.ppo import optimizers  # which imports MLX

    read = {f"train.{key}" for key in optimizers.of(config).reads}
    idle = {f"train.{key}" for name in OPTIMIZERS for key in optimizers.find(name).reads} - read
    idle |= {*config.facts.unread}
    if not config.train.vtrace:
        idle |= {"train.vtrace_rho_clip", "train.vtrace_c_clip"}
    ranges = OF_5 if config.facts.release == "5.0" else OF_4
    return {name: each for name, each in ranges.items() if name not in idle}
