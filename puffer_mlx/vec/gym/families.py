"""Families of Gymnasium's environments that need more than ``gymnasium.make``.

| family | what an agent sees |
| --- | --- |
| Atari, ``ALE/*`` | as in ale-py's vectorised form, where its arguments are given |
| ``MiniGrid-*`` | the image, (7, 7, 3) codes, without the mission, which is a text, and direction |

Atari's vectorised form takes arguments that a single game doesn't (``stack_num``,
``reward_clipping`` ...). A single game is needed too, to draw it, say; Gymnasium's wrappers do then
what the form does, to the bit.
"""

from typing import Any

from puffer_mlx.errors import UserError

__all__ = ["make", "preprocessed"]

_FORM = {  # the vectorised form's own arguments, with what it takes them to be
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
_ONLY = {"maxpool": True, "life_loss_info": False}  # what Gymnasium's wrappers can do of it


def make(specification: Any, **arguments: Any) -> Any:
    """One ``gymnasium.Env``.

    Args:
        specification: Gymnasium's, of an environment.
        arguments: that it is to be made with.

    Raises:
        UserError: its wrappers can't do what an argument asks for.
        gymnasium.error.DependencyNotInstalled: what they need is missing.
    """
    import gymnasium

    if specification.namespace == "ALE" and not _FORM.keys().isdisjoint(arguments):
        return _atari(specification, arguments)
    made = gymnasium.make(specification, **arguments)
    if specification.id.startswith("MiniGrid-"):
        from minigrid.wrappers import ImgObsWrapper  # it was imported by making one

        return ImgObsWrapper(made)
    return made


def _atari(specification: Any, arguments: dict[str, Any]) -> Any:
    """A game with the vectorised form's arguments: (``stack_num``, height, width) uint8."""
    import gymnasium

    form = {**_FORM, **{key: arguments[key] for key in _FORM if key in arguments}}
    for key, value in _ONLY.items():
        if form[key] != value:
            raise UserError(
                f"{specification.id}: env.{key} {form[key]} is for its vectorised form only",
                f"leave it out, or vec.backend = vector; that can't be drawn: {value}",
            )
    own = {key: value for key, value in arguments.items() if key not in _FORM}
    skip = own.pop("frameskip", specification.kwargs.get("frameskip", 4))
    return preprocessed(gymnasium.make(specification, frameskip=1, **own), form, skip)


def preprocessed(game: Any, form: dict[str, Any], skip: int) -> Any:
    """What the vectorised form does, around a game that shows every frame.

    Args:
        game: a ``gymnasium.Env`` of ale-py's.
        form: the vectorised form's arguments, but for what Gymnasium's wrappers can't do.
        skip: frames of a step.
    """
    from gymnasium import wrappers

    game = wrappers.AtariPreprocessing(
        _begun(game, form["noop_max"], form["use_fire_reset"]),
        noop_max=0,
        frame_skip=skip,
        screen_size=(form["img_width"], form["img_height"]),
        terminal_on_life_loss=form["episodic_life"],
        grayscale_obs=form["grayscale"],
    )
    if form["reward_clipping"]:
        game = wrappers.ClipReward(game, -1.0, 1.0)
    return wrappers.FrameStackObservation(game, form["stack_num"], padding_type="zero")


def _begun(game: Any, most: int, fire: bool) -> Any:
    """With up to ``most`` frames of doing nothing at the start, then FIRE, which begins some games.

    Frames, not steps, as in the vectorised form.
    """
    import gymnasium

    meanings = game.unwrapped.get_action_meanings()
    first = [meanings.index("FIRE")] if fire and "FIRE" in meanings else []

    class Begun(gymnasium.Wrapper):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            observation, info = self.env.reset(seed=seed, options=options)
            idle = int(self.unwrapped.np_random.integers(1, most + 1)) if most else 0
            for action in [0] * idle + first:
                observation, _, terminated, truncated, info = self.env.step(action)
                if terminated or truncated:
                    observation, info = self.env.reset(options=options)
            return observation, info

    return Begun(game)
