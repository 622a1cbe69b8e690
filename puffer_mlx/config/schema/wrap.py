"""Section [wrap]: Gymnasium's wrappers around an environment in Python."""

from dataclasses import dataclass

from puffer_mlx.config.key import key
from puffer_mlx.config.schema.section import Named


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
        minimum=0,
        below=1,
    )
    max_episode_steps: int = key(
        0,
        "An episode is truncated after so many (TimeLimit); 0 leaves the environment's own limit,"
        " which of an ID gives way to this one. puffer_mlx only.",
        unit="steps",
        minimum=0,
    )
    grayscale: bool = key(
        False, "Images lose their colours (GrayscaleObservation). puffer_mlx only."
    )
    resize_height: int = key(
        0,
        "Images are made so high (ResizeObservation); 0: as resize_width, and with both 0 as they"
        " are. puffer_mlx only.",
        unit="pixels",
        minimum=0,
        maximum=4096,
    )
    resize_width: int = key(
        0,
        "And so wide; 0: as resize_height. puffer_mlx only.",
        unit="pixels",
        minimum=0,
        maximum=4096,
    )
    clip_rewards: float = key(
        0.0,
        "Rewards are clipped to +- this (ClipReward), and so is the score, which"
        " train.reward_clip leaves as it is; 0 doesn't. puffer_mlx only.",
        minimum=0,
    )
    frame_stack: int = key(
        1,
        "The newest so many observations are seen together (FrameStackObservation), of images as"
        " channels. puffer_mlx only.",
        unit="observations",
        minimum=1,
        maximum=1024,
    )
