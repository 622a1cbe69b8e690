"""Apply Gymnasium's wrappers: section [wrap] of a configuration, and those of Atari and MiniGrid.

Section [wrap] applies wrappers in the order of Gymnasium's ``AtariPreprocessing``, the innermost
first: ``StickyAction``, ``TimeLimit``, ``GrayscaleObservation``, ``ResizeObservation``,
``ClipReward``, ``FrameStackObservation``. The result is an image again, (height, width, channels).
A grey image has one channel. Stacked images have the channels of all frames, the oldest first.

Atari's vectorised environment has arguments for most of these wrappers, so the preset is translated
to its arguments. Other vectorised environments can't be wrapped.

| family | observation |
| --- | --- |
| Atari, ``ALE/*`` | as in ale-py's vectorised environment with the same arguments |
| ``MiniGrid-*`` | the image, (7, 7, 3) codes, without the mission text and the direction |

Atari's vectorised environment has arguments that a single game lacks (``stack_num``,
``reward_clipping`` ...). Where a single game is needed, for example to render it, Gymnasium's
wrappers give the same observations and rewards, bit for bit.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np

from puffer_mlx.config.schema import Wrap
from puffer_mlx.config.validation import wrapper_problems
from puffer_mlx.errors import UserError
from puffer_mlx.vec.spaces import CHANNELS_LAST_ATTRIBUTE, CHANNELS_SMALLEST, image_of, kind_of

_VECTOR_DEFAULTS = {  # arguments of ale-py's vectorised environment, with their defaults
    "stack_num": 4,
    "img_height": 84,
    "img_width": 84,
    "grayscale": True,
    "maxpool": True,
    "noop_max": 30,
    "use_fire_reset": True,
    "episodic_life": False,
    "life_loss_info": False,
    "reward_clipping": True,
}
# The only values of these arguments that Gymnasium's wrappers support.
_FIXED_ARGUMENTS = {"maxpool": True, "life_loss_info": False}
ATARI_PRESET = {  # wrap.preset = atari, as arguments of ale-py's vectorised environment
    **{key: value for key, value in _VECTOR_DEFAULTS.items() if key != "life_loss_info"},
    "frameskip": 4,
    "episodic_life": True,
}


ImageOf = Callable[[Any], tuple[tuple[int, ...], bool]]  # `image_of` with vec.image_channels set


def changed_keys(wrap: Wrap) -> list[str]:
    """Return the names of the [wrap] options that differ from their defaults (wanted wrappers)."""
    default = Wrap()
    return [f.name for f in fields(wrap) if getattr(wrap, f.name) != getattr(default, f.name)]


def split_atari_wrappers(
    name: str, wrap: Wrap, arguments: Mapping[str, Any]
) -> tuple[Wrap, dict[str, Any], list[str]]:
    """Split section [wrap] for an Atari id into wrappers and arguments of the game.

    Args:
        name: Name of the environment, for messages.
        wrap: The requested wrappers.
        arguments: Arguments of the game; the preset replaces them.

    Returns:
        Remaining wrappers, arguments of the game, and a text for each argument that the preset
            replaced.

    Raises:
        UserError: A key of [wrap] duplicates an argument of the game.
    """
    for _, message, hint in wrapper_problems(wrap, changed_keys(wrap), by_id=True):
        raise UserError(f"{name}: {message}", hint)
    if wrap.preset == "none":
        return wrap, dict(arguments), []
    differ = [
        key for key in ATARI_PRESET if key in arguments and arguments[key] != ATARI_PRESET[key]
    ]
    unused = [f"{key} (wrap.preset atari: {ATARI_PRESET[key]})" for key in differ]
    rest = Wrap(max_episode_steps=wrap.max_episode_steps)
    return rest, {**arguments, **ATARI_PRESET}, unused


def apply_wrappers(name: str, env: Any, wrap: Wrap, channels: str = CHANNELS_SMALLEST) -> Any:
    """Apply the wrappers of section [wrap] to an environment. Returns the wrapped environment.

    Args:
        name: Name of the environment, for messages.
        env: A ``gymnasium.Env``.
        wrap: The requested wrappers.
        channels: ``vec.image_channels``.

    Raises:
        UserError: A wrapper doesn't fit the environment, or the preset contains it already.
        gymnasium.error.DependencyNotInstalled: A package is missing.
    """
    from gymnasium import wrappers

    keys_set = changed_keys(wrap)
    for _, message, hint in wrapper_problems(wrap, keys_set, by_id=False):
        raise UserError(f"{name}: {message}", hint)
    for keys, wrapper in _WRAPPERS.items():
        first = next((key for key in keys if key in keys_set), "")
        if first:
            try:
                env = wrapper(env, wrap, wrappers, partial(image_of, channels=channels))
            except (TypeError, ValueError, AssertionError) as error:
                env.close()
                text = f"{name}: wrap.{first} doesn't fit it: {error}"
                raise UserError(text, f"leave wrap.{first} out") from None
    return env


def _with_atari_preset(env: Any, wrap: Wrap, *_: Any) -> Any:
    if not hasattr(env.unwrapped, "ale"):
        raise TypeError(
            "the preset is for ALE's games; wrap.grayscale, wrap.resize_height and wrap.frame_stack"
            " are for any images"
        )
    arguments = {key: value for key, value in ATARI_PRESET.items() if key != "frameskip"}
    return preprocess_game(env, arguments, ATARI_PRESET["frameskip"])


def _with_resized_images(env: Any, wrap: Wrap, wrappers: Any, image: ImageOf) -> Any:
    if len(env.observation_space.shape or ()) == 3 and image(env.observation_space)[1]:
        raise ValueError(f"its images are {env.observation_space.shape}, with channels first")
    size = wrap.resize_height or wrap.resize_width, wrap.resize_width or wrap.resize_height
    return wrappers.ResizeObservation(env, size)


def _with_channel(env: Any, *_: Any) -> Any:
    """Wrap an environment to add a channel dimension to its images, if they are (height, width)."""
    shape = env.observation_space.shape
    return (
        _with_image_shape(env, (*shape, 1), lambda image: image[..., None])
        if len(shape) == 2
        else env
    )


def _with_stacked_frames(env: Any, wrap: Wrap, wrappers: Any, image: ImageOf) -> Any:
    one = env.observation_space
    k = wrap.frame_stack
    size, turned = image(one) if kind_of(one) == "Box" else ((), False)
    env = wrappers.FrameStackObservation(env, k)
    if not size:
        return env
    shape = (*size[:2], k * size[2])
    axes = (2, 3, 0, 1) if turned else (1, 2, 0, 3)  # to (height, width, k, channels)
    return _with_image_shape(env, shape, lambda frames: frames.transpose(axes).reshape(shape))


def _with_image_shape(env: Any, shape: tuple[int, ...], show: Callable[[Any], Any]) -> Any:
    """Wrap an environment to convert its images to another shape, (height, width, channels)."""
    from gymnasium.spaces import Box
    from gymnasium.wrappers import TransformObservation

    space = Box(0, 255, shape, np.uint8)
    # A stack of small images may have more channels than rows and be taken for channels first.
    setattr(space, CHANNELS_LAST_ATTRIBUTE, True)
    return TransformObservation(env, show, space)


_ApplyWrapper = Callable[[Any, Wrap, Any, ImageOf], Any]
# Keys of [wrap] that request a wrapper -> function that applies it; innermost first.
_WRAPPERS: dict[tuple[str, ...], _ApplyWrapper] = {
    ("preset",): _with_atari_preset,
    ("sticky_actions",): lambda env, wrap, of, _: of.StickyAction(env, wrap.sticky_actions),
    ("max_episode_steps",): lambda env, wrap, of, _: of.TimeLimit(env, wrap.max_episode_steps),
    ("grayscale",): lambda env, wrap, of, _: of.GrayscaleObservation(env),
    ("resize_height", "resize_width"): _with_resized_images,
    ("grayscale", "resize_height", "resize_width"): _with_channel,
    ("clip_rewards",): lambda env, wrap, of, _: of.ClipReward(
        env, -wrap.clip_rewards, wrap.clip_rewards
    ),
    ("frame_stack",): _with_stacked_frames,
}


def make(specification: Any, **arguments: Any) -> Any:
    """Make a Gymnasium environment, with the wrappers that Atari and MiniGrid need.

    Args:
        specification: Gymnasium's specification of the environment.
        arguments: Arguments of its constructor.

    Raises:
        UserError: No wrapper implements an argument.
        gymnasium.error.DependencyNotInstalled: A package is missing.
    """
    import gymnasium

    if specification.namespace == "ALE" and not _VECTOR_DEFAULTS.keys().isdisjoint(arguments):
        return _atari_game(specification, arguments)
    env = gymnasium.make(specification, **arguments)
    if specification.id.startswith("MiniGrid-"):
        from minigrid.wrappers import ImgObsWrapper

        return ImgObsWrapper(env)
    return env


def _atari_game(specification: Any, arguments: dict[str, Any]) -> Any:
    """Make a single Atari game that takes the arguments of ale-py's vectorised environment.

    Its observations are (``stack_num``, height, width) uint8.
    """
    import gymnasium

    options = {
        **_VECTOR_DEFAULTS,
        **{key: arguments[key] for key in _VECTOR_DEFAULTS if key in arguments},
    }
    for key, value in _FIXED_ARGUMENTS.items():
        if options[key] != value:
            raise UserError(
                f"{specification.id}: env.{key} {options[key]} needs the vectorised environment",
                f"leave it out ({value}), or use vec.backend = vector, which can't be rendered",
            )
    game_arguments = {key: value for key, value in arguments.items() if key not in _VECTOR_DEFAULTS}
    skip = game_arguments.pop("frameskip", specification.kwargs.get("frameskip", 4))
    game = gymnasium.make(specification, frameskip=1, **game_arguments)
    return preprocess_game(game, options, skip)


def preprocess_game(game: Any, options: dict[str, Any], skip: int) -> Any:
    """Wrap a single Atari game to preprocess images as ale-py's vectorised environment does.

    Args:
        game: A ``gymnasium.Env`` of ale-py without frame skip.
        options: Arguments of the vectorised environment that Gymnasium's wrappers support.
        skip: Frames per step.
    """
    from gymnasium import wrappers

    game = wrappers.AtariPreprocessing(
        _with_start_actions(game, options["noop_max"], options["use_fire_reset"]),
        noop_max=0,
        frame_skip=skip,
        screen_size=(options["img_width"], options["img_height"]),
        terminal_on_life_loss=options["episodic_life"],
        grayscale_obs=options["grayscale"],
    )
    if options["reward_clipping"]:
        game = wrappers.ClipReward(game, -1.0, 1.0)
    return wrappers.FrameStackObservation(game, options["stack_num"], padding_type="zero")


def _with_start_actions(game: Any, max_frames: int, fire: bool) -> Any:
    """Wrap an Atari game so that it starts with random idle frames, then FIRE where it has that.

    These are frames, not steps, as in ale-py's vectorised environment.

    Args:
        game: The game.
        max_frames: Maximum number of frames without an action.
        fire: True to press FIRE if the game has it.
    """
    import gymnasium

    meanings = game.unwrapped.get_action_meanings()
    first = [meanings.index("FIRE")] if fire and "FIRE" in meanings else []

    class StartActions(gymnasium.Wrapper):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            observation, info = self.env.reset(seed=seed, options=options)
            frames = int(self.unwrapped.np_random.integers(1, max_frames + 1)) if max_frames else 0
            for action in [0] * frames + first:
                observation, _, terminated, truncated, info = self.env.step(action)
                if terminated or truncated:
                    observation, info = self.env.reset(options=options)
            return observation, info

    return StartActions(game)
