"""Gymnasium's wrappers around an environment, as section [wrap] asks for them.

In this order, the innermost first, which is that of Gymnasium's ``AtariPreprocessing`` and of the
field: ``StickyAction``, ``TimeLimit``, ``GrayscaleObservation``, ``ResizeObservation``,
``ClipReward``, ``FrameStackObservation``. What comes out of the last ones is made an image again,
(height, width, channels): a grey one has a channel, stacked ones have those of all frames, the
oldest first.

An ID of Atari's games has arguments of its own for most of this (``families.py``), which its
vectorised form takes: the preset becomes these arguments. Others' vectorised forms can't be
wrapped.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from puffer_mlx.config.schema import Wrap
from puffer_mlx.errors import UserError
from puffer_mlx.vec.gym import families
from puffer_mlx.vec.observation_parts import image_of
from puffer_mlx.vec.spaces import kind_of

__all__ = ["changed", "of_game", "wrapped"]

ATARI = {  # the preset, as arguments of ale-py's vectorised form
    "frameskip": 4,
    "maxpool": True,
    "stack_num": 4,
    "img_height": 84,
    "img_width": 84,
    "grayscale": True,
    "noop_max": 30,
    "use_fire_reset": True,
    "episodic_life": True,
    "reward_clipping": True,
}
_OF_GAMES = {  # what an ID of Atari's games has arguments for
    "sticky_actions": "repeat_action_probability",
    "grayscale": "grayscale",
    "resize_height": "img_height",
    "resize_width": "img_width",
    "clip_rewards": "reward_clipping",
    "frame_stack": "stack_num",
}
_IN_PRESET = ("grayscale", "resize_height", "resize_width", "clip_rewards", "frame_stack")


def changed(wrap: Wrap) -> list[str]:
    """Names of the keys that ask for a wrapper."""
    plain = Wrap()
    return [f.name for f in fields(wrap) if getattr(wrap, f.name) != getattr(plain, f.name)]


def of_game(
    name: str, wrap: Wrap, arguments: Mapping[str, Any]
) -> tuple[Wrap, dict[str, Any], list[str]]:
    """What is left to wrap around an ID of Atari's games, and the arguments that do the rest.

    Args:
        name: for messages.
        wrap: as it was asked for.
        arguments: of the game, which the preset goes before.

    Returns:
        Wrappers, arguments, and those of ``arguments`` that the preset has otherwise, in words.

    Raises:
        UserError: a key asks for what arguments of the game's own are there for.
    """
    for key, own in _OF_GAMES.items():
        if key in changed(wrap):
            raise UserError(
                f"{name}: wrap.{key} is not for Atari's games by their ID, which have env.{own}",
                f"--env.{own.replace('_', '-')}; or --wrap.preset atari for all that is usual",
            )
    if wrap.preset == "none":
        return wrap, dict(arguments), []
    differ = [key for key in ATARI if key in arguments and arguments[key] != ATARI[key]]
    said = [f"{key} (wrap.preset atari: {ATARI[key]})" for key in differ]
    rest = Wrap(max_episode_steps=wrap.max_episode_steps)
    return rest, {**arguments, **ATARI}, said


def wrapped(name: str, made: Any, wrap: Wrap) -> Any:
    """A ``gymnasium.Env`` with its wrappers; as it is if none is asked for.

    Raises:
        UserError: a wrapper doesn't fit the environment, or the preset has it already.
        gymnasium.error.DependencyNotInstalled: what one needs is missing.
    """
    from gymnasium import wrappers

    asked = changed(wrap)
    for key in _IN_PRESET:
        if wrap.preset != "none" and key in asked:
            raise UserError(
                f"{name}: wrap.preset {wrap.preset} and wrap.{key}, which it settles itself",
                "leave one of them out",
            )
    for keys, wrapper in _WRAPPERS.items():
        given = [key for key in keys if key in asked]
        if given:
            try:
                made = wrapper(made, wrap, wrappers)
            except (TypeError, ValueError, AssertionError) as error:
                made.close()
                text = f"{name}: wrap.{given[0]} doesn't fit it: {error}"
                raise UserError(text, f"leave wrap.{given[0]} out") from None
    return made


def _atari(made: Any, wrap: Wrap, _: Any) -> Any:
    if not hasattr(made.unwrapped, "ale"):
        raise TypeError(
            "it is for ALE's games; wrap.grayscale, wrap.resize_height and wrap.frame_stack are"
            " for any images"
        )
    arguments = {key: value for key, value in ATARI.items() if key != "frameskip"}
    return families.preprocessed(made, arguments, ATARI["frameskip"])


def _resized(made: Any, wrap: Wrap, wrappers: Any) -> Any:
    if len(made.observation_space.shape or ()) == 3 and image_of(made.observation_space)[1]:
        raise ValueError(f"its images are {made.observation_space.shape}, with channels first")
    size = wrap.resize_height or wrap.resize_width, wrap.resize_width or wrap.resize_height
    return wrappers.ResizeObservation(made, size)


def _with_channel(made: Any, wrap: Wrap, wrappers: Any) -> Any:
    """An image (height, width) as one of a channel."""
    shape = made.observation_space.shape
    return _shown(made, (*shape, 1), lambda seen: seen[..., None]) if len(shape) == 2 else made


def _stacked(made: Any, wrap: Wrap, wrappers: Any) -> Any:
    one, k = made.observation_space, wrap.frame_stack
    image, turned = image_of(one) if kind_of(one) == "Box" else ((), False)
    made = wrappers.FrameStackObservation(made, k)
    if not image:
        return made
    shape = (*image[:2], k * image[2])
    axes = (2, 3, 0, 1) if turned else (1, 2, 0, 3)  # to (height, width, k, channels)
    return _shown(made, shape, lambda frames: frames.transpose(axes).reshape(shape))


def _shown(made: Any, shape: tuple[int, ...], show: Callable[[Any], Any]) -> Any:
    """With images of another shape."""
    from gymnasium.spaces import Box
    from gymnasium.wrappers import TransformObservation

    return TransformObservation(made, show, Box(0, 255, shape, np.uint8))


_WRAPPERS: dict[tuple[str, ...], Callable[[Any, Wrap, Any], Any]] = {  # by keys, innermost first
    ("preset",): _atari,
    ("sticky_actions",): lambda made, wrap, of: of.StickyAction(made, wrap.sticky_actions),
    ("max_episode_steps",): lambda made, wrap, of: of.TimeLimit(made, wrap.max_episode_steps),
    ("grayscale",): lambda made, wrap, of: of.GrayscaleObservation(made),
    ("resize_height", "resize_width"): _resized,
    ("grayscale", "resize_height", "resize_width"): _with_channel,
    ("clip_rewards",): lambda made, wrap, of: of.ClipReward(
        made, -wrap.clip_rewards, wrap.clip_rewards
    ),
    ("frame_stack",): _stacked,
}
