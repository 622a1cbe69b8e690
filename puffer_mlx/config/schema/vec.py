"""Sections [vec] and [wrap]: the environments, and Gymnasium's wrappers around them."""

from dataclasses import dataclass

from puffer_mlx.config.key import Named, key


@dataclass
class Vec(Named):
    """The vectorised environments."""

    total_agents: int = key(
        4096,
        "N: agents of all environments together.",
        "agents >= 1",
        brief="agents of all environments together",
    )
    num_buffers: int = key(
        2,
        "Q: number of equal groups of agents; the policy acts for one group while another steps.",
        "buffers >= 1",
    )
    num_threads: int = key(
        16,
        "CPU threads that step environments, and act if the CPU does. On the command line: this"
        " number, at most the cores (0 is 1). In a file it is PufferLib's number, for stepping"
        " only: if C code also acts, one thread per core is used, otherwise num_threads /"
        " num_buffers per buffer, at least one.",
        "threads >= 0",
        brief="CPU threads that step environments",
    )
    max_threads: int = key(
        0,
        "Upper limit of the number of threads that num_threads gives; 0: no limit. An explicit"
        " --vec.num-threads is saved here. puffer_mlx only.",
        "threads >= 0",
    )
    seed: int = key(
        0,
        "Environment i starts from seed + i. puffer_mlx only: PufferLib reads no seed here.",
        ">= 0",
    )
    backend: str = key(
        "auto",
        "How Python environments are stepped: vector, their own vectorized form; sync, one after"
        " the other; async, each in a process; auto chooses the fastest that applies. puffer_mlx"
        " only.",
        choices=("auto", "vector", "sync", "async"),
        aliases={"Serial": "sync", "Multiprocessing": "async", "PufferEnv": "vector"},
        brief="how environments in Python are stepped",
    )
    timeout: float = key(
        60.0,
        "A Python environment's process that takes longer than this for a step is reported and"
        " killed. puffer_mlx only.",
        "seconds > 0",
    )
    normalize_observations: bool = key(
        False,
        "Subtract the running mean of the observations and divide by their standard deviation;"
        " checkpoints contain the statistics. puffer_mlx only.",
    )
    normalize_rewards: bool = key(
        False,
        "Divide rewards by the running standard deviation of the discounted return. puffer_mlx"
        " only.",
    )
    rescale_actions: bool = key(
        False,
        "Map continuous actions from -1 and 1 to the bounds low and high, if both are finite, and"
        " clip them; False only clips. For Python environments. puffer_mlx only.",
    )
    image_channels: str = key(
        "up_to_4",
        "Dimension of an image of bytes that holds its channels. smallest: the first if it is the"
        " smallest, else the last. up_to_4: the first only if it is also at most 4, as in runs"
        " older than this key. For Python environments. puffer_mlx only.",
        choices=("smallest", "up_to_4"),
    )
    num_frozen_banks: int = key(
        0,
        "Number of opponents at the same time in self-play by 4.0's rules, each with its own"
        " weights.",
        "opponents 0 to 8",
    )
    frozen_bank_pct: float = key(
        0.0,
        "Fraction of the agents for each opponent, rounded down to whole teams; all opponents"
        " together get less than half.",
        "0 to 1",
    )
    frozen_bank_hidden_size: int = key(
        0,
        "Opponents' policy.hidden_size; 0: the learner's, as they are its earlier weights.",
        "units >= 0",
    )
    frozen_bank_num_layers: int = key(
        0, "Opponents' policy.num_layers; 0: the learner's.", "layers 0 to 1000"
    )
    num_policies: int = key(
        1,
        "Number of policies in self-play by 5.0's rules: the learner and its opponents at the"
        " same time.",
        "policies 1 to 9",
    )
    hist_policy_percent: float = key(
        0.0,
        "Fraction of the environments, 0 to 1, in which the learner plays against opponents; in"
        " the others it plays all agents.",
        "0 to 1",
    )
    hist_policy_hidden_size: int = key(
        0, "Opponents' policy.hidden_size; 0: the learner's.", "units >= 0"
    )
    hist_policy_num_layers: int = key(
        0, "Opponents' policy.num_layers; 0: the learner's.", "layers 0 to 1000"
    )


@dataclass
class Wrap(Named):
    """Gymnasium's wrappers, for Gymnasium's environments: the first key is the innermost."""

    preset: str = key(
        "none",
        "atari: the usual wrappers for games of ALE (AtariPreprocessing, FrameStackObservation,"
        " ClipReward): up to 30 no-op frames at the start, then FIRE; 4 frames a step, the maximum"
        " of the last two; 84 x 84, gray, the newest 4; a life is an episode; rewards clipped to"
        " -1 and 1. puffer_mlx only.",
        choices=("none", "atari"),
    )
    sticky_actions: float = key(
        0.0,
        "Probability of repeating the previous action (StickyAction). puffer_mlx only.",
        ">= 0 < 1",
    )
    max_episode_steps: int = key(
        0,
        "Truncate episodes after this number of steps (TimeLimit); it replaces the limit of a"
        " registered ID. 0: the environment's own limit. puffer_mlx only.",
        "steps >= 0",
    )
    grayscale: bool = key(
        False, "Convert images to grayscale (GrayscaleObservation). puffer_mlx only."
    )
    resize_height: int = key(
        0,
        "Height to which images are resized (ResizeObservation); 0: as resize_width; both 0: not"
        " resized. puffer_mlx only.",
        "pixels 0 to 4096",
    )
    resize_width: int = key(
        0,
        "Width to which images are resized; 0: as resize_height. puffer_mlx only.",
        "pixels 0 to 4096",
    )
    clip_rewards: float = key(
        0.0,
        "Clip rewards, and so the score, to +- this (ClipReward); train.reward_clip doesn't"
        " change the score. 0: no clipping. puffer_mlx only.",
        ">= 0",
    )
    frame_stack: int = key(
        1,
        "Number of newest observations that form one observation (FrameStackObservation); images"
        " are stacked as channels. puffer_mlx only.",
        "observations 1 to 1024",
    )
