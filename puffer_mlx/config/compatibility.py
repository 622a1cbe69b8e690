"""Names of keys besides those that are declared: other names, and keys that mean nothing here."""

from difflib import get_close_matches

_OLD = "a key of PufferLib 3.0; 4.0 ignores it too"
_SELFPLAY = "there is no self-play here"
_UNUSED = (  # keys in PufferLib 4.0's own files that mean nothing here: why, section, keys
    ("MLX has no CUDA graphs", "base", "cudagraphs"),
    ("one process trains on one device", "base", "rank world_size gpu_id nccl_id"),
    ("one process trains on one device", "train", "gpus"),
    ("base.seed seeds training", "train", "seed"),
    ("MinGRU has no expansion; PufferLib 4.0 ignores it too", "policy", "expansion_factor"),
    ("PufferLib 4.0 reads it from [sweep]", "base", "max_suggestion_cost"),
    ("PufferLib 4.0 reads it from [base]", "train", "checkpoint_interval"),
    ("the key is train.ent_coef", "train", "entropy_coef"),
    (_SELFPLAY, "selfplay", "enabled max_size swap_winrate min_games seed elo_init elo_k"),
    (_SELFPLAY, "selfplay", "snapshot_interval opp_timeout_steps"),
    (_SELFPLAY, "vec", "num_frozen_banks frozen_bank_pct"),
    (_SELFPLAY, "vec", "frozen_bank_hidden_size frozen_bank_num_layers"),
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
RENAMED = {  # names of the Metal port's switches: the key here, and what off and on mean
    "cpu_inference": ("train", "rollout_device", "auto", "cpu"),
    "train_fp16": ("train", "precision", "fp32", "fp16"),
    "overlap": ("train", "overlap", "False", "True"),
}
RENAMES = {  # it takes them in [train] and without a section
    f"{section}.{old}": new
    for old, new in RENAMED.items()
    for section in ("base", "train")
    if (section, old) != new[:2]
}
ONLY = {  # unused keys whose other values ask for something that does not exist here
    "base.rank": 0,
    "base.world_size": 1,
    "train.gpus": 1,
    "selfplay.enabled": 0,
    "vec.num_frozen_banks": 0,
}


def closest(name: str, names: list[str]) -> str:
    """The name probably meant: the same key in another section, else the most similar, else ""."""
    same = [other for other in names if other.split(".")[-1] == name.split(".")[-1]]
    return (same or get_close_matches(name, names, n=1, cutoff=0.6) or [""])[0]
