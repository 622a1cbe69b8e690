"""Convert between values of Gymnasium's spaces and flat rows (``SpaceLayout``). NumPy only.

| space | in an observation row | as action |
| --- | --- | --- |
| Box | its numbers | one continuous head per number, clipped to the bounds or scaled to them |
| Discrete | one-hot | one head with its choices |
| MultiDiscrete | one-hot, one value after the other | one head per value |
| MultiBinary | its bits | one head of 2 choices per bit |
| Dict, Tuple | their spaces, in Gymnasium's order | their spaces, all discrete or all continuous |

The order is that of ``gymnasium.spaces.flatten``, except that an image of (channels, height, width)
is transposed to (height, width, channels). Images in a Dict or Tuple aren't transposed;
``EnvSpec.image_parts`` lists them for an encoder.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.spec import EnvSpec, ImageSlice
from puffer_mlx.vec.env_failures import EnvFailure
from puffer_mlx.vec.spaces import (
    CHANNELS_SMALLEST,
    CHANNELS_UP_TO_4,
    ObservationComponent,
    Path,
    action_components,
    action_spec,
    exact_dtype,
    from_text,
    image_of,
    kind_of,
    nested,
    observation_components,
    path_text,
    row_dtype,
    to_text,
)


class SpaceLayout:
    """Converter of one agent's observations and actions between Gymnasium's spaces and flat rows.

    Args:
        name: Name of the environment, for ``spec`` and messages.
        observation_space: Observation space of one agent.
        action_space: Action space of one agent. Discrete values with a single choice get no head
            in ``spec.action``; ``actions`` fills them in.
        mask: True if the environment reports which actions are legal.
        rescale: Map continuous actions from -1 to 1 to their bounds, where both are finite.
        channels: ``vec.image_channels``.

    Attributes:
        spaces: The observation and the action space.
        spec: Description for a policy. Observations are uint8 if all spaces are Boxes of uint8,
            else float32.
        exact_dtype: Dtype that represents observations exactly: float64 if float32 would round
            them, else ``spec.observation_dtype``.

    Raises:
        UserError: A space isn't supported.
    """

    def __init__(
        self,
        name: str,
        observation_space: Any,
        action_space: Any,
        mask: bool = False,
        rescale: bool = False,
        channels: str = CHANNELS_SMALLEST,
    ) -> None:
        self._name = name
        self._arguments = name, observation_space, action_space, mask, rescale, channels
        self._observations = list(observation_components(name, observation_space, channels))
        self._channels = channels
        self._single = self._observations[0].path == ()  # no Dict, no Tuple
        self.exact_dtype = exact_dtype(self._observations)
        self._heads = list(action_components(name, action_space, rescale))
        self.spaces = observation_space, action_space
        action = action_spec(name, self._heads)
        if mask and action.continuous:
            raise UserError(
                f"{name}: it masks actions, but they are continuous",
                "leave the mask out; only discrete actions can be masked",
            )
        self.spec = EnvSpec(
            name=name,
            observation_size=self._observations[-1].stop,
            observation_dtype=row_dtype(self._observations),
            action=action,
            mask_size=action.logits if mask else 0,
            observation_shape=self._observations[0].image if self._single else (),
            spaces=to_text(*self.spaces),
            image_parts=() if self._single else image_parts(self._observations),
        )

    def images(self) -> list[str]:
        """Return texts that describe each image in observations, such as "84 x 84, 4 channels"."""
        texts = []
        for component in self._observations:
            if component.image:
                h, w, c = component.image
                first = image_of(component.space, self._channels)[1]
                location = f"at {path_text(component.path)} " if component.path else ""
                count = f"{c} channel{'s' * (c > 1)} (channels {'first' if first else 'last'})"
                texts.append(f"{location}{h} x {w}, {count}")
        return texts

    def write(self, batch: Any, out: np.ndarray) -> None:
        """Write observations of n agents into their rows.

        Args:
            batch: Observations as Gymnasium's vector environments return them: an array (n, ...),
                or nested dicts and tuples of arrays.
            out: (n, D), ``spec.observation_dtype`` or ``exact_dtype``; written in place.

        Raises:
            UserError: Observations don't have the shape or dtype of the space.
        """
        for leaf in self._observations:
            values = batch
            try:
                for key in leaf.path:
                    values = values[key]
                leaf.write(values, out if self._single else out[:, leaf.start : leaf.stop])
            except (KeyError, IndexError, TypeError, ValueError) as error:
                raise self._mismatch(leaf, values, len(out)) from error

    def writer(self, row: np.ndarray) -> Callable[[Any], None]:
        """Return a function that writes an observation of one agent into its row, (D,).

        The function raises an ``EnvFailure`` if the observation has a wrong shape, dtype or choice.
        It doesn't check bounds.
        """
        targets = [
            (leaf, leaf.path, leaf.space.shape, leaf.space.dtype, leaf.writer(row))
            for leaf in self._observations
        ]

        def write(observation: Any) -> None:
            for leaf, path, shape, dtype, put in targets:
                value = observation
                try:
                    for key in path:
                        value = value[key]
                    array = np.asarray(value)
                    if array.dtype != dtype and np.can_cast(array.dtype, dtype, "same_kind"):
                        array = array.astype(dtype)
                    if array.shape == shape and array.dtype == dtype:
                        put(array)
                        continue
                    text = f"is {array.dtype} {array.shape}, its space {dtype} {shape}"
                except (KeyError, IndexError, TypeError, ValueError):
                    text = f"{str(observation)[:200]} isn't in {leaf.space}"
                location = f" at {path_text(path)}" if path else ""
                raise EnvFailure("", f"an observation{location} {text}")

        return write

    def restore(self, rows: Any) -> Any:
        """Convert observation rows back to observations that are nested as the space is.

        Args:
            rows: (n, D), an array of NumPy or MLX.

        Returns:
            An array, or nested dicts and tuples of arrays, with the dtype of ``rows``. Values of
                Discrete and MultiDiscrete spaces stay one-hot, (n, choices).
        """
        if self._single:
            return self._observations[0].restore(rows)
        components = {
            leaf.path: leaf.restore(rows[:, leaf.start : leaf.stop]) for leaf in self._observations
        }
        return nested(self.spaces[0], components)

    def actions(self, rows: np.ndarray) -> Any:
        """Convert a policy's actions to actions for a vector environment.

        Args:
            rows: (n, heads) float32, actions of a policy.

        Returns:
            An array (n, ...) of the space's dtype, or nested dicts and tuples of arrays.
        """
        actions = self._chosen(rows)
        return actions[()] if () in actions else nested(self.spaces[1], actions)

    def each_action(self, rows: np.ndarray) -> list[Any]:
        """Convert a policy's actions, (n, heads) float32, to a list of n environments' actions."""
        actions = self._chosen(rows)
        if () in actions:
            return list(actions[()])
        return [
            nested(self.spaces[1], {path: values[i] for path, values in actions.items()})
            for i in range(len(rows))
        ]

    def _chosen(self, rows: np.ndarray) -> dict[Path, np.ndarray]:
        """Convert a policy's actions to the values of each inner space of a nested action space."""
        return {
            head.path: head.convert(rows[:, head.start : head.start + len(head.sizes)])
            for head in self._heads
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return SpaceLayout, self._arguments

    def _mismatch(self, leaf: ObservationComponent, values: Any, n: int) -> UserError:
        kind = f"{values.dtype} {values.shape}" if hasattr(values, "shape") else repr(values)
        location = f" of {path_text(leaf.path)}" if leaf.path else ""
        if (
            isinstance(values, np.ndarray)
            and kind_of(leaf.space) == "Discrete"
            and values.ndim == 1
        ):
            outside = [each for each in values.tolist() if not leaf.space.contains(each)]
            kind = str(outside[0]) if outside else kind
        return UserError(
            f"{self._name}: observations{location} don't fit the space {leaf.space}: "
            f"found {kind[:200]} for {n} agents",
            "the environment must return what its observation space describes",
        )


def image_parts(components: list[ObservationComponent]) -> tuple[ImageSlice, ...]:
    """Return where images are in an observation's row, with sizes, for ``EnvSpec.image_parts``."""
    images = [component for component in components if component.image]
    return tuple(
        ImageSlice(component.start, component.image, component.channels_first)
        for component in images
    )


def saved_layout(spec: EnvSpec) -> SpaceLayout | None:
    """Return the ``SpaceLayout`` of a checkpoint's spaces, or None if it contains no spaces.

    Raises:
        UserError: The spaces contradict the rest of the checkpoint's spec.
    """
    if not spec.spaces:
        return None
    try:
        max_elements = max(spec.observation_size, spec.action.heads)
        observation, action = from_text(spec.spaces, max_elements)
        rest = spec.name, observation, action, spec.mask_size > 0, bool(spec.action.bounds)
        layouts = [
            SpaceLayout(*rest, channels) for channels in (CHANNELS_SMALLEST, CHANNELS_UP_TO_4)
        ]
    except (ValueError, OverflowError, UserError) as error:
        reason = str(error)
    else:
        for layout in layouts:
            if layout.spec == spec and layout.spec.image_parts == spec.image_parts:
                return layout
        for layout in layouts:  # old checkpoints have no image parts
            if layout.spec == spec:
                return layout
        reason = "they belong to another environment"
    raise UserError(
        f"the checkpoint's spaces of {spec.name} are invalid: {reason}", "the file is damaged"
    )
