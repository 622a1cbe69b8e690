"""Names of keys in other releases and libraries, and keys of PufferLib without an effect here."""

from difflib import get_close_matches
from typing import NamedTuple

_OLD = "a key of PufferLib 3.0; 4.0 ignores it too"
_LOADED = "`puffer-mlx train` has --load-model-path"
_MATCH = "`puffer-mlx match` takes two policy files"
_UNUSED = (  # keys of PufferLib's files without an effect here: (reason, section, keys)
    ("MLX has no CUDA graphs", "base", "cudagraphs"),
    ("mlx.launch or train.gpus starts ranks", "base", "rank world_size gpu_id nccl_id"),
    ("base.seed seeds training", "train", "seed"),
    ("MinGRU has no expansion; PufferLib 4.0 ignores it too", "policy", "expansion_factor"),
    ("PufferLib 4.0 reads it from [sweep]", "base", "max_suggestion_cost"),
    ("PufferLib 4.0 reads it from [base]", "train", "checkpoint_interval"),
    ("the key is train.ent_coef", "train", "entropy_coef"),
    ("each rank draws minibatches from its own rollout", "train", "draw_from"),
    (_MATCH, "base", "load_enemy_model_path"),
    (_LOADED, "base", "load_model_path"),
    ("a run is named after its start time", "base", "run_id"),
    ("base.device selects the device", "base", "gpu_offset"),
    ("a pipe from PufferLib's sweep to its runs", "base", "result_fd"),
    ("PufferLib 5.0 reads it only for nethack", "train", "verb_eps"),
    ("PufferLib 5.0 reads it only for nethack", "train", "verb_eps_anneal_start"),
    ("PufferLib 5.0 reads it only for nethack", "train", "verb_eps_anneal_end"),
    (_OLD, "base", "package policy_name rnn_name"),
    (_OLD, "vec", "num_envs num_workers num_agents batch_size zero_copy"),
    (_OLD, "policy", "num_units cnn_channels continuous num_drones is_training"),
    (_OLD, "rnn", "input_size hidden_size"),
    (_OLD, "train", "adam_beta1 adam_beta2 adam_eps update_epochs batch_size"),
    (_OLD, "train", "max_minibatch_size num_minibatches bptt_horizon use_rnn env num_envs name"),
    (_OLD, "train", "project data_dir device cpu_offload torch_deterministic"),
    (_OLD, "train", "compile compile_mode compile_fullgraph"),
    (_OLD, "legacy", "cpu_offload torch_deterministic compile compile_fullgraph"),
)
UNUSED = {f"{section}.{key}": why for why, section, keys in _UNUSED for key in keys.split()}


REMOVED = {  # keys of earlier versions: an error if typed, ignored in files; what to use instead
    "base.log_format": "logs/ENV/RUN.jsonl has every record; docs/file_formats.md describes it",
}


class Renamed(NamedTuple):
    """A configuration key that has another name in another PufferLib release.

    It also has the translation of the values if the old key is a switch.

    Args:
        section: Section of the key.
        key: Key without its section.
        off: Value of the key for false; empty if values need no translation.
        on: Value of the key for true.
        typed_on: Value for true on the command line; empty for ``on``.
    """

    section: str
    key: str
    off: str = ""
    on: str = ""
    typed_on: str = ""

    @property
    def name(self) -> str:
        """Name, with section, of the key that replaces another release's: ``train.overlap``."""
        return f"{self.section}.{self.key}"

    def __str__(self) -> str:
        """Return a renamed key as text for help: ``train.overlap = auto (0: False)``."""
        typed = f"; typed: {self.typed_on}" if self.typed_on else ""
        switch = f" = {self.on} (0: {self.off}{typed})" if self.off else ""
        return self.name + switch


_SWITCHES = {  # keys of PufferLib's Metal port, in [train] or without a section
    "cpu_inference": Renamed("train", "rollout_device", "auto", "cpu"),
    "train_fp16": Renamed("train", "precision", "fp32", "fp16"),
    "overlap": Renamed("train", "overlap", "False", "True"),
}
RENAMES = {
    f"{section}.{old}": new
    for old, new in _SWITCHES.items()
    for section in ("base", "train")
    if (section, old) != new[:2]
}
# PufferLib 5.0's names. Its default.ini sets async on any machine, so in a file it means "auto".
NAMES_OF_5 = {
    "train.momentum": Renamed("train", "beta1"),
    "base.reset_every_horizon": Renamed("base", "reset_state"),
    "base.async": Renamed("train", "overlap", "False", "auto", typed_on="True"),
}
RENAMES |= NAMES_OF_5
NO_PATH = "None"  # PufferLib's text for no path
ALLOWED_VALUES = {  # the only accepted value of unused keys whose other values aren't supported
    "base.rank": 0,
    "base.world_size": 1,
    "base.load_model_path": NO_PATH,
    "base.load_enemy_model_path": NO_PATH,
    "train.verb_eps": 0,
    "train.draw_from": "rank",
}
ENV_OF_5 = {"dr": 0.0, "num_agents": 1.0, "num_bots": 0.0}  # parameters of every environment of 5.0
# Observations that are always 0 in PufferLib 5.0's environment but not here: the key of [env] that
# sets them to 0 here too, and their indices.
ZERO_OBSERVATIONS_OF_5 = {"breakout": ("hide_balls_and_width", (8, 9))}
BOT_EVAL = "bot_eval"  # 5.0's section of [env] values for games against scripted opponents
_SWEPT = (  # keys searched by PufferLib 5.0's default.ini
    "vec.total_agents",
    "policy.hidden_size",
    "policy.num_layers",
    "train.total_timesteps",
    "train.horizon",
    "train.minibatch_size",
    "train.learning_rate",
    "train.ent_coef",
    "train.gamma",
    "train.gae_lambda",
    "train.replay_ratio",
    "train.clip_coef",
    "train.vf_clip_coef",
    "train.vf_coef",
    "train.max_grad_norm",
    "train.momentum",
)
SWEEP_KEYS = (  # keys of 5.0's [sweep] sections, also options on the command line
    "sweep.metric",
    "sweep.metric_distribution",
    "sweep.goal",
    "sweep.max_suggestion_cost",
    "sweep.max_runs",
    "sweep.gpus",
    "sweep.downsample",
    "sweep.prune_pareto",
    "sweep.early_stop_quantile",
    *(f"sweep.{name}.{key}" for name in _SWEPT for key in ("distribution", "min", "max", "scale")),
)


OTHER_LIBRARY_KEYS = {  # names in Stable-Baselines3, CleanRL, RLlib and others -> our key
    "lr": "train.learning_rate",
    "total_steps": "train.total_timesteps",
    "discount": "train.gamma",
    "lam": "train.gae_lambda",
    "lambda": "train.gae_lambda",
    "lambda_": "train.gae_lambda",
    "num_steps": "train.horizon",
    "n_steps": "train.horizon",
    "batch_size": "train.minibatch_size",
    "n_epochs": "train.replay_ratio",
    "update_epochs": "train.replay_ratio",
    "clip_range": "train.clip_coef",
    "clip_param": "train.clip_coef",
    "clip_range_vf": "train.vf_clip_coef",
    "entropy_coef": "train.ent_coef",
    "entropy_coeff": "train.ent_coef",
    "value_coef": "train.vf_coef",
    "vf_loss_coeff": "train.vf_coef",
    "normalize_advantage": "train.algorithm",
    "num_envs": "vec.total_agents",
    "n_envs": "vec.total_agents",
    "n_eval_episodes": "base.eval_episodes",
    "eval_freq": "base.eval_interval",
}
LAYERS_HINT = "use --policy.hidden-size and --policy.num-layers"
OTHER_LIBRARY_OPTIONS = {  # names in other libraries -> hint for the command line
    "net_arch": LAYERS_HINT,
    "policy_kwargs": LAYERS_HINT,
    "policy": "leave it out; --torch.network chooses the network: MLP or LSTM, for example",
    "progress_bar": "leave it out; the command shows its progress",
}


def closest(name: str, names: list[str]) -> str:
    """Return the most similar of ``names``, for a hint after a mistyped name; "" if none is.

    The same key in another section comes first.
    """
    same = [other for other in names if other.split(".")[-1] == name.split(".")[-1]]
    return (same or get_close_matches(name, names, n=1, cutoff=0.6) or [""])[0]
