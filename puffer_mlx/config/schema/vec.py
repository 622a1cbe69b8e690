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
        2, "Q: equal groups of agents; one is acted for while another steps.", "buffers >= 1"
    )
    num_threads: int = key(
        16,
        "CPU threads that step environments, and act on a CPU: so many if it is typed, at most the"
        " cores (0 is 1). A file's is PufferLib's number of threads that only step: where C acts in"
        " them too there is one for each core, elsewhere num_threads / num_buffers for each buffer,"
        " at least one.",
        "threads >= 0",
        brief="CPU threads that step environments",
    )
    max_threads: int = key(
        0,
        "The most of them, whatever num_threads says; 0 sets no limit. A --vec.num-threads that is"
        " typed is kept here. puffer_mlx only.",
        "threads >= 0",
    )
    seed: int = key(
        0,
        "Environment i starts from seed + i. puffer_mlx only: PufferLib reads no seed here.",
        ">= 0",
    )
    backend: str = key(
        "auto",
        "How Python environments are stepped: vector, their own vectorised form; sync, one after"
        " the other; async, a process each; auto is the fastest that applies. puffer_mlx only.",
        choices=("auto", "vector", "sync", "async"),
        aliases={"Serial": "sync", "Multiprocessing": "async", "PufferEnv": "vector"},
        brief="how environments in Python are stepped",
    )
    timeout: float = key(
        60.0,
        "A Python environment's process that takes longer for a step is reported and ended."
        " puffer_mlx only.",
        "seconds > 0",
    )
    normalize_observations: bool = key(
        False,
        "Subtract the observations' running mean and divide by their deviation; the statistics are"
        " the checkpoint's. puffer_mlx only.",
    )
    normalize_rewards: bool = key(
        False, "Divide rewards by the running deviation of the discounted return. puffer_mlx only."
    )
    rescale_actions: bool = key(
        False,
        "A continuous action's -1 to 1 is the low to high of its bounds, where both are finite; it"
        " is clipped to them then, as without. For environments in Python. puffer_mlx only.",
    )
    image_channels: str = key(
        "up_to_4",
        "Which dimension of an image of bytes holds its channels. smallest: the first if it is the"
        " smallest, else the last. up_to_4: the first only if it is also at most 4, as in runs from"
        " before this key. For environments in Python. puffer_mlx only.",
        choices=("smallest", "up_to_4"),
    )
    num_frozen_banks: int = key(
        0,
        "Opponents at the same time in self-play by 4.0's rules, each with weights of its own.",
        "opponents 0 to 8",
    )
    frozen_bank_pct: float = key(
        0.0,
        "Part of the agents that each of them has, rounded down to whole teams; all together less"
        " than half.",
        "0 to 1",
    )
    frozen_bank_hidden_size: int = key(
        0,
        "Their policy.hidden_size; 0 is the learner's, whose earlier weights they are.",
        "units >= 0",
    )
    frozen_bank_num_layers: int = key(
        0, "Their policy.num_layers; 0 is the learner's.", "layers 0 to 1000"
    )
    num_policies: int = key(
        1,
        "The learner and its opponents at the same time, in self-play by 5.0's rules.",
        "policies 1 to 9",
    )
    hist_policy_percent: float = key(
        0.0,
        "Part of the environments, 0 to 1, in which the learner meets them; in the others it plays"
        " all seats.",
        "0 to 1",
    )
    hist_policy_hidden_size: int = key(
        0, "Their policy.hidden_size; 0 is the learner's.", "units >= 0"
    )
    hist_policy_num_layers: int = key(
        0, "Their policy.num_layers; 0 is the learner's.", "layers 0 to 1000"
    )


@dataclass
class Wrap(Named):
    """Gymnasium's wrappers, for Gymnasium's environments: the first key is the innermost."""

    preset: str = key(
        "none",
        "atari: of ALE's games all that is usual (AtariPreprocessing, FrameStackObservation,"
        " ClipReward): up to 30 frames of doing nothing at the start, then FIRE; 4 frames a step,"
        " the brighter of the last two; 84 x 84, grey, the newest 4; a life is an episode; rewards"
        " -1 to 1. puffer_mlx only.",
        choices=("none", "atari"),
    )
    sticky_actions: float = key(
        0.0,
        "Probability that the action before is taken again instead (StickyAction). puffer_mlx"
        " only.",
        ">= 0 < 1",
    )
    max_episode_steps: int = key(
        0,
        "An episode is truncated after so many (TimeLimit); 0 leaves the environment's own limit,"
        " which of an ID gives way to this one. puffer_mlx only.",
        "steps >= 0",
    )
    grayscale: bool = key(
        False, "Images lose their colours (GrayscaleObservation). puffer_mlx only."
    )
    resize_height: int = key(
        0,
        "Images are made so high (ResizeObservation); 0: as resize_width, and with both 0 as they"
        " are. puffer_mlx only.",
        "pixels 0 to 4096",
    )
    resize_width: int = key(
        0, "And so wide; 0: as resize_height. puffer_mlx only.", "pixels 0 to 4096"
    )
    clip_rewards: float = key(
        0.0,
        "Rewards are clipped to +- this (ClipReward), and so is the score, which"
        " train.reward_clip leaves as it is; 0 doesn't. puffer_mlx only.",
        ">= 0",
    )
    frame_stack: int = key(
        1,
        "The newest so many observations are seen together (FrameStackObservation), of images as"
        " channels. puffer_mlx only.",
        "observations 1 to 1024",
    )
