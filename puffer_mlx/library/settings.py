"""A configuration out of keywords and dictionaries.

``learning_rate=1e-3`` is a keyword; ``{"train.learning_rate": 1e-3}`` and
``{"train": {"learning_rate": 1e-3}}`` are dictionaries. All mean what options mean on a command
line: they win over every file, and are never changed silently.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

from puffer_mlx.config import Config
from puffer_mlx.config.compatibility import ELSEWHERE, closest
from puffer_mlx.config.schema import ARGUMENT, COMMAND_LINE, KEYS, NO_TRACKER
from puffer_mlx.config.writing import parameter_text
from puffer_mlx.errors import UserError
from puffer_mlx.ppo.schedules import rate_at

ENV = "env."  # whose keys are the environment's own
EVERY_KEY = "python -m puffer_mlx.config prints every key; the environment's own are env.NAME"
ARGUMENTS = {  # what other libraries have, and here is said in another way
    "policy_kwargs": "hidden_size, num_layers, activation and others of section policy",
    "env_kwargs": '{"env": {…}}',
    "tensorboard_log": 'track=["tensorboard"] and log_dir',
    "verbose": "progress",
    "callback": "the body of the loop over a Trainer, or train(env, callback=function)",
    "n_eval_episodes": "episodes",
}

LEARNING_RATE = "train.learning_rate"
PARTS = {f"train.{key}" for key, declared in KEYS["train"].items() if declared.custom}
Schedule = Callable[[float], float]  # of the epochs done as a part of all, from 0 to below 1

Value = int | float | bool | str
Settings = dict[str, Value]  # by section.key


class Objects(NamedTuple):
    """Settings that no file can hold.

    Args:
        schedule: a learning rate that is a function.
        named: others, by their full names: a loss, advantages, an optimizer.
    """

    schedule: Schedule | None
    named: dict[str, Any]


def without_objects(*sources: Mapping[str, Any]) -> tuple[Objects, list[dict[str, Any]]]:
    """Objects among settings, of which the last one for a key counts, and settings without them.

    There a learning rate is a number, the first epoch's, and others are the names of objects.

    Raises:
        UserError: there is no such key, or the function gives no learning rate.
    """
    objects: dict[str, Any] = {}
    plain: list[dict[str, Any]] = []
    for source in sources:
        settings = dict(_flat(source))
        for name, value in settings.items():
            full = _full_name(name)
            objects.pop(full, None)
            if full == LEARNING_RATE and callable(value):
                schedule = cast(Schedule, value)
                objects[full], settings[name] = value, rate_at(schedule, 0.0)
            elif full in PARTS and not isinstance(value, Value):
                objects[full], settings[name] = value, object_name(value)
        plain.append(settings)
    return Objects(objects.pop(LEARNING_RATE, None), objects), plain


def object_name(value: Any) -> str:
    """``module:name`` of a class, a function or an optimizer, in one word."""
    name = getattr(value, "__qualname__", "")
    if not name:  # a tuple of functions has none, but it may be a variable of their module
        value, whole = getattr(value, "step", value), value
        variables = vars(sys.modules.get(getattr(value, "__module__", ""), sys))
        name = getattr(value, "__qualname__", type(value).__qualname__)
        name = next((variable for variable, each in variables.items() if each is whole), name)
    module = getattr(value, "__module__", type(value).__module__)
    return f"{module}:{name}".replace(".<locals>", "").replace("<lambda>", "function")


def collected(*sources: Mapping[str, Any]) -> Settings:
    """Settings under their full names, the last one for a key winning.

    Args:
        sources: short names where they are unique, as on a command line those of [base] too;
            ``section.key``; or a section with a dictionary of its keys.

    Raises:
        UserError: there is no such key, or its value is none that a file could say.
    """
    settings: Settings = {}
    for source in sources:
        for name, value in _flat(source):
            settings[_full_name(name)] = _plain(name, value)
    return settings


def words(settings: Settings) -> list[str]:
    """Settings as a command line's words."""
    return [f"--{name}={parameter_text(value, True)}" for name, value in settings.items()]


def called(make: Callable[[], Config]) -> Config:
    """A configuration of a program's arguments, read as a command line's words.

    Raises:
        UserError: as ``make`` does, in words for who called a function.
    """
    try:
        config = make()
    except UserError as error:
        raise UserError(_for_callers(error.message), _for_callers(error.hint)) from None
    typed = {name: ARGUMENT for name, origin in config.origins.items() if origin == COMMAND_LINE}
    config.origins |= typed
    if again := config.again:
        config.again = lambda family: called(partial(again, family))
    return config


def _for_callers(text: str) -> str:
    """A message without command lines and their options."""
    if "--help" in text:
        return EVERY_KEY
    text = text.replace(COMMAND_LINE, ARGUMENT).replace("unknown option", "there is no setting")
    return re.sub(r"--([a-z][\w.-]*)", lambda match: match[1].replace("-", "_"), text)


def _flat(source: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in source.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}.{key}", inner) for key, inner in value.items())
        else:
            yield name, value


def _full_name(name: str) -> str:
    """``section.key`` of a name."""
    section, dot, key = name.partition(".")
    if key in KEYS.get(section, {}) or (name.startswith(ENV) and key):
        return name
    homes = [] if dot else [section for section, keys in KEYS.items() if name in keys]
    if len(homes) == 1 or "base" in homes:
        return f"{'base' if 'base' in homes else homes[0]}.{name}"
    if homes:
        several = " or ".join(f"{home}.{name}" for home in homes)
        raise UserError(f"{name} is a key of several sections", f"{several}, in a dictionary")
    last = ELSEWHERE.get(name.rpartition(".")[2], "").partition(".")[2]
    if ours := last or ARGUMENTS.get(section):
        raise UserError(f"there is no setting {name}", f"here it is {ours}")
    every = [f"{home}.{each}" if dot else each for home, keys in KEYS.items() for each in keys]
    near = closest(name, every)
    hint = f"did you mean {near}?" if near else EVERY_KEY
    raise UserError(f"there is no setting {name}", hint)


def _plain(name: str, value: Any) -> Value:
    """A value that a file could say; numbers of NumPy are Python's."""
    if isinstance(value, list | tuple):
        value = _joined(name, value)
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        value = value.item()
    if not isinstance(value, Value):
        hint = "a number, a text, True or False"
        if name.startswith(ENV):
            hint += "; for others, a function that makes the environment: lambda: MyEnv(…)"
        else:
            section, _, key = _full_name(name).partition(".")
            hint += KEYS[section][key].advice
        raise UserError(f"{name} is {value!r}, of type {type(value).__name__}", hint)
    return value


def _joined(name: str, value: Sequence[Any]) -> Any:
    """Several choices of a key that takes several as its text; anything else as it is."""
    section, _, key = _full_name(name).partition(".")
    several = section in KEYS and KEYS[section][key].several
    if several and all(isinstance(word, str) for word in value):
        return ",".join(value) or NO_TRACKER
    return value
