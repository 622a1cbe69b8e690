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
