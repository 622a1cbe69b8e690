"""Sections [vec] and [wrap]: the environments, and Gymnasium's wrappers around them."""

from dataclasses import dataclass

from puffer_mlx.config.key import StrictFields, key


@dataclass
class Vec(StrictFields):
    """Section [vec]: the vectorized environments and their agents."""

    total_agents: int = key(
        4096,
        "N: total number of agents in all environments.",
        "agents >= 1",
        brief="agents in all environments",
    )
    num_buffers: int = key(
        2,
        "Q: number of equal groups of agents; the policy acts for one group while another steps.",
        "buffers >= 1",
    )
    num_threads: int = key(
        16,
        "CPU threads that step the environments. On the command line: the number used, at most one"
        " per core (0 means 1). In a file: PufferLib's meaning, num_threads / num_buffers threads"
        " per buffer, at least one; but if the policy also acts in C, one thread per core.",
        "threads >= 0",
        brief="CPU threads that step environments",
    )
    max_threads: int = key(
        0,
        "Upper limit of the number of CPU threads; 0: no limit. An explicit --vec.num-threads is"
        " saved here. puffer_mlx only.",
        "threads >= 0",
    )
    seed: int = key(
        0,
        "Seed of the environments: environment i gets seed + i. puffer_mlx only: PufferLib has no"
        " such key in [vec].",
        ">= 0",
    )
    backend: str = key(
        "auto",
        "How to step Python environments. vector: by their vectorized implementation; sync: one"
        " after another; async: each in a process; auto: the fastest that is possible. puffer_mlx"
        " only.",
        choices=("auto", "vector", "sync", "async"),
        aliases={"Serial": "sync", "Multiprocessing": "async", "PufferEnv": "vector"},
        brief="how to step Python environments",
    )
    timeout: float = key(
        60.0,
        "Longest time that a Python environment may take for one step. After that its process is"
        " killed and the run ends with an error. puffer_mlx only.",
        "seconds > 0",
    )
    normalize_observations: bool = key(
        False,
        "Normalize observations by their running mean and standard deviation, which checkpoints"
        " contain. puffer_mlx only.",
    )
    normalize_rewards: bool = key(
        False,
        "Divide rewards by the running standard deviation of the discounted return. puffer_mlx"
        " only.",
    )
    rescale_actions: bool = key(
        False,
        "Map continuous actions from [-1, 1] to the bounds of the action space, if they are finite,"
        " and clip them; False: only clip. For Python environments. puffer_mlx only.",
    )
    image_channels: str = key(
        "up_to_4",
        "Dimension of the channels in an image of bytes. smallest: the first dimension if it is the"
        " smallest, otherwise the last. up_to_4: the first only if it is also at most 4, as in runs"
        " from before this key existed. For Python environments. puffer_mlx only.",
        choices=("smallest", "up_to_4"),
    )
    num_frozen_banks: int = key(
        0,
        "Number of opponents at the same time in self-play by 4.0's rules, each with different"
        " weights.",
        "opponents 0 to 8",
    )
    frozen_bank_pct: float = key(
        0.0,
        "Fraction of the agents that each opponent plays, rounded down to whole teams. All"
        " opponents together must play less than half.",
        "0 to 1",
    )
    frozen_bank_hidden_size: int = key(
        0,
        "Opponents' policy.hidden_size. They are earlier weights of the learner, so only the"
        " learner's size, or 0 for it, is legal.",
        "units >= 0",
    )
    frozen_bank_num_layers: int = key(
        0,
        "Opponents' policy.num_layers: the learner's, or 0 for it.",
        "layers 0 to 1000",
    )
    num_policies: int = key(
        1,
        "Number of policies at the same time in self-play by 5.0's rules: the learner and its"
        " opponents.",
        "policies 1 to 9",
    )
    hist_policy_percent: float = key(
        0.0,
        "Fraction of the environments in which the learner plays against opponents; in the others"
        " it plays all agents.",
        "0 to 1",
    )
    hist_policy_hidden_size: int = key(
        0, "Opponents' policy.hidden_size: the learner's, or 0 for it.", "units >= 0"
    )
    hist_policy_num_layers: int = key(
        0, "Opponents' policy.num_layers: the learner's, or 0 for it.", "layers 0 to 1000"
    )


@dataclass
class Wrap(StrictFields):
    """Section [wrap]: Gymnasium's wrappers for Gymnasium's environments, the innermost first."""

    preset: str = key(
        "none",
        "atari: the usual wrappers for ALE's games (AtariPreprocessing, FrameStackObservation,"
        " ClipReward). Up to 30 no-op frames at the start, then FIRE; 4 frames per step, of which"
        " the last two are combined by their maximum; grayscale images of 84 x 84, the newest 4"
        " stacked; a life is an episode; rewards clipped to -1 and 1. puffer_mlx only.",
        choices=("none", "atari"),
    )
    sticky_actions: float = key(
        0.0,
        "Probability of repeating the previous action (StickyAction). puffer_mlx only.",
        ">= 0 < 1",
    )
    max_episode_steps: int = key(
        0,
        "Truncate episodes after this number of steps (TimeLimit), instead of the limit that a"
        " registered ID has. 0: keep the environment's limit. puffer_mlx only.",
        "steps >= 0",
    )
    grayscale: bool = key(
        False, "Convert images to grayscale (GrayscaleObservation). puffer_mlx only."
    )
    resize_height: int = key(
        0,
        "Height to which images are resized (ResizeObservation); 0: same as resize_width. If both"
        " are 0, images aren't resized. puffer_mlx only.",
        "pixels 0 to 4096",
    )
    resize_width: int = key(
        0,
        "Width to which images are resized; 0: same as resize_height. puffer_mlx only.",
        "pixels 0 to 4096",
    )
    clip_rewards: float = key(
        0.0,
        "Clip rewards to +- this (ClipReward), which also changes the score; train.reward_clip"
        " doesn't change the score. 0: no clipping. puffer_mlx only.",
        ">= 0",
    )
    frame_stack: int = key(
        1,
        "Number of newest observations to stack into one (FrameStackObservation); images are"
        " stacked as channels. puffer_mlx only.",
        "observations 1 to 1024",
    )
