"""Section [vec]: the environments."""

from dataclasses import dataclass

from puffer_mlx.config.key import key
from puffer_mlx.config.schema.section import Named


@dataclass
class Vec(Named):
    """The vectorised environments."""

    total_agents: int = key(
        4096, "N: agents of all environments together.", unit="agents", minimum=1
    )
    num_buffers: int = key(
        2,
        "Q: equal groups of agents; one is acted for while another steps.",
        unit="buffers",
        minimum=1,
    )
    num_threads: int = key(
        16,
        "CPU threads that step environments, and act on a CPU: so many if it is typed, at most the"
        " cores (0 is 1). A file's is PufferLib's number of threads that only step: where C acts in"
        " them too there is one for each core, elsewhere num_threads / num_buffers for each buffer,"
        " at least one.",
        unit="threads",
        minimum=0,
    )
    max_threads: int = key(
        0,
        "The most of them, whatever num_threads says; 0 sets no limit. A --vec.num-threads that is"
        " typed is kept here. puffer_mlx only.",
        unit="threads",
        minimum=0,
    )
    seed: int = key(
        0,
        "Environment i starts from seed + i. puffer_mlx only: PufferLib reads no seed here.",
        minimum=0,
    )
    backend: str = key(
        "auto",
        "How Python environments are stepped: vector, their own vectorised form; sync, one after"
        " the other; async, a process each; auto is the fastest that applies. puffer_mlx only.",
        choices=("auto", "vector", "sync", "async"),
        aliases={"Serial": "sync", "Multiprocessing": "async", "PufferEnv": "vector"},
    )
    timeout: float = key(
        60.0,
        "A Python environment's process that takes longer for a step is reported and ended."
        " puffer_mlx only.",
        unit="seconds",
        above=0,
    )
    normalize_observations: bool = key(
        False,
        "Subtract the observations' running mean and divide by their deviation; the statistics are"
        " the checkpoint's. puffer_mlx only.",
    )
    normalize_rewards: bool = key(
        False,
        "Divide rewards by the running deviation of the discounted return. puffer_mlx only.",
    )
    rescale_actions: bool = key(
        False,
        "A continuous action's -1 to 1 is the low to high of its bounds, where both are finite; it"
        " is clipped to them then, as without. For environments in Python. puffer_mlx only.",
    )
    num_frozen_banks: int = key(
        0,
        "Opponents at the same time in self-play by 4.0's rules, each with weights of its own.",
        unit="opponents",
        minimum=0,
        maximum=8,
    )
    frozen_bank_pct: float = key(
        0.0,
        "Part of the agents that each of them has, rounded down to whole teams; all together less"
        " than half.",
        minimum=0,
        maximum=1,
    )
    frozen_bank_hidden_size: int = key(
        0,
        "Their policy.hidden_size; 0 is the learner's, whose earlier weights they are.",
        unit="units",
        minimum=0,
    )
    frozen_bank_num_layers: int = key(
        0, "Their policy.num_layers; 0 is the learner's.", unit="layers", minimum=0
    )
    num_policies: int = key(
        1,
        "The learner and its opponents at the same time, in self-play by 5.0's rules.",
        unit="policies",
        minimum=1,
        maximum=9,
    )
    hist_policy_percent: float = key(
        0.0,
        "Part of the environments, 0 to 1, in which the learner meets them; in the others it plays"
        " all seats.",
        minimum=0,
        maximum=1,
    )
    hist_policy_hidden_size: int = key(
        0, "Their policy.hidden_size; 0 is the learner's.", unit="units", minimum=0
    )
    hist_policy_num_layers: int = key(
        0, "Their policy.num_layers; 0 is the learner's.", unit="layers", minimum=0
    )
