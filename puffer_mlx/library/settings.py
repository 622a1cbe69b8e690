"""Configurations from keywords and dictionaries, and environments given by programs.

``learning_rate=1e-3`` is a keyword; ``{"train.learning_rate": 1e-3}`` and ``{"train":
{"learning_rate": 1e-3}}`` are dictionaries. All have the effect of command line options: they
override every file, and are never changed silently. An environment is a name, a class, a function
that creates one, or an environment object.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

from puffer_mlx import config as configuration
from puffer_mlx.config import Config, validate
from puffer_mlx.config.compatibility import OTHER_LIBRARY_KEYS, closest
from puffer_mlx.config.key import ARGUMENT, EVERY_KEY_HINT
from puffer_mlx.config.schema import KEYS, NO_TRACKER, SECTIONS
from puffer_mlx.config.values import is_argument
from puffer_mlx.errors import UserError
from puffer_mlx.ppo.schedules import SCHEDULED, value_at
from puffer_mlx.vec.gym.make import wrap_instance
from puffer_mlx.vec.puffer import is_puffer_env

ENV = "env."  # prefix of the environment's own keys
FORMS = 'a name ("gym:CartPole-v1"), a class, a function that makes one, or a gymnasium.Env'
LAYERS = "hidden_size, num_layers, activation and others of section policy"
ARGUMENTS = {  # arguments of other libraries, with our names
    "policy_kwargs": LAYERS,
    "net_arch": LAYERS,
    "env_kwargs": '{"env": {…}}',
    "tensorboard_log": 'track=["tensorboard"] and log_dir',
    "verbose": "progress",
    "progress_bar": "progress",
    "callback": "the body of the loop over a Trainer, or train(env, callback=function)",
}

PARTS = {f"train.{key}" for key, declared in KEYS["train"].items() if declared.custom}
Schedule = Callable[[float], float]  # value by the fraction of finished epochs, in [0, 1)

Value = int | float | bool | str
Settings = dict[str, Any]  # by section.key


class Objects(NamedTuple):
    """Settings that can't be written to a file.

    Args:
        schedules: Coefficients as functions of the fraction of finished epochs, by key of [train].
        named: Other objects by full name: a loss, advantages, an optimizer.
    """

    schedules: dict[str, Schedule]
    named: dict[str, Any]


def without_objects(*sources: Mapping[str, Any]) -> tuple[Objects, list[dict[str, Any]]]:
    """Return the objects among settings, and the settings with plain values in their place.

    A schedule's plain value is that of the first epoch; other objects are replaced by their names.
    The last setting for a key counts.

    Raises:
        UserError: If a key is unknown, or a schedule doesn't return a number.
    """
    objects: dict[str, Any] = {}
    schedules: dict[str, Schedule] = {}
    plain: list[dict[str, Any]] = []
    for source in sources:
        settings = dict(_flat(source))
        for name, value in settings.items():
            full = _full_name(name)
            objects.pop(full, None)
            section, _, key = full.partition(".")
            if section == "train":
                schedules.pop(key, None)
            if section == "train" and key in SCHEDULED and callable(value):
                schedules[key] = cast(Schedule, value)
                settings[name] = value_at(schedules[key], 0.0, key)
            elif full in PARTS and not isinstance(value, Value):
                objects[full] = value
                settings[name] = object_name(value)
        plain.append(settings)
    return Objects(schedules, objects), plain


def object_name(value: Any) -> str:
    """Return the name of a class, a function or an optimizer: ``module:name``."""
    name = getattr(value, "__qualname__", "")
    if not name:  # a tuple of functions has no name, but may be a variable of their module
        whole = value
        value = getattr(value, "step", value)
        variables = vars(sys.modules.get(getattr(value, "__module__", ""), sys))
        name = getattr(value, "__qualname__", type(value).__qualname__)
        name = next((variable for variable, each in variables.items() if each is whole), name)
    module = getattr(value, "__module__", type(value).__module__)
    return f"{module}:{name}".replace(".<locals>", "").replace("<lambda>", "function")


def collected(*sources: Mapping[str, Any]) -> Settings:
    """Return settings by full name. The last one for a key counts.

    Args:
        sources: Values by key (if only one section or [base] has it), values by ``section.key``, or
            dictionaries of keys by section.

    Raises:
        UserError: If a key is unknown, or its value can't be written to a file.
    """
    settings: Settings = {}
    for source in sources:
        for name, value in _flat(source):
            settings[_full_name(name)] = _plain(name, value)
    return settings


def _flat(source: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in source.items():
        if isinstance(value, Mapping) and "." not in name:  # {"env.layout": {…}} is a value
            yield from ((f"{name}.{key}", inner) for key, inner in value.items())
        else:
            yield name, value


def _full_name(name: str) -> str:
    """Return a name as ``section.key``."""
    section, dot, key = name.partition(".")
    if key in KEYS.get(section, {}) or (name.startswith(ENV) and key):
        return name
    homes = [] if dot else [section for section, keys in KEYS.items() if name in keys]
    if len(homes) == 1 or "base" in homes:
        return f"{'base' if 'base' in homes else homes[0]}.{name}"
    if homes:
        several = " or ".join(f"{home}.{name}" for home in homes)
        raise UserError(f"{name} is a key of several sections", f"{several}, in a dictionary")
    last = OTHER_LIBRARY_KEYS.get(name.rpartition(".")[2], "").partition(".")[2]
    if ours := last or ARGUMENTS.get(section):
        raise UserError(f"there is no setting {name}", f"here it is {ours}")
    every = [f"{home}.{each}" if dot else each for home, keys in KEYS.items() for each in keys]
    near = closest(name, every)
    hint = f"did you mean {near}?" if near else EVERY_KEY_HINT
    raise UserError(f"there is no setting {name}", hint)


def _plain(name: str, value: Any) -> Any:
    """Return a value that a file can hold; NumPy numbers become Python's."""
    if name.startswith(ENV) and is_argument(value):
        return value
    if isinstance(value, list | tuple):
        value = _joined(name, value)
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        value = value.item()
    if value is None and not name.startswith(ENV):
        raise UserError(f"{name} is None", "leave it out for the environment's own value")
    if not isinstance(value, Value):
        hint = "a number, a text, True or False"
        if name.startswith(ENV):
            hint = "a number, a text, True, False, None, or a list, tuple or dictionary of these;"
            hint += " for others, a function that makes the environment: lambda: MyEnv(…)"
        else:
            section, _, key = _full_name(name).partition(".")
            hint += KEYS[section][key].advice
        raise UserError(f"{name} is {value!r}, of type {type(value).__name__}", hint)
    return value


def _joined(name: str, value: Sequence[Any]) -> Any:
    """Return a list of choices as text, for keys with several choices; other values unchanged."""
    section, _, key = _full_name(name).partition(".")
    several = section in KEYS and KEYS[section][key].several
    if several and all(isinstance(word, str) for word in value):
        return ",".join(value) or NO_TRACKER
    return value


# ---- environments and complete configurations ----------------------------------------------------


class EnvironmentSource(NamedTuple):
    """An environment given by a program.

    Args:
        name: Name in files and on command lines.
        factory: Creates the environment; None for one that is found by its name.
        alone: True for an environment object that the caller created; there is only one.
    """

    name: str
    factory: Callable[..., Any] | None = None
    alone: bool = False


def source_of(env: Any) -> EnvironmentSource:
    """Return an environment given by a program as name and factory.

    Raises:
        UserError: If the object isn't an environment.
    """
    if isinstance(env, EnvironmentSource):
        return env
    if isinstance(env, str):
        return EnvironmentSource(env)
    gymnasium = sys.modules.get("gymnasium")  # imported if the object is from Gymnasium
    if gymnasium and isinstance(env, gymnasium.Env):
        return EnvironmentSource(object_name(type(env.unwrapped)), wrap_instance(env), alone=True)
    if callable(env):
        return EnvironmentSource(object_name(env), env)
    what = f"an object of {type(env).__name__}"
    hint = FORMS
    if hasattr(env, "num_envs") or is_puffer_env(env):
        hint = "give what makes it, a function; one that takes num_envs makes many at once"
    raise UserError(f"the environment is {what}", hint)


def configured(
    config: Config | Mapping[str, Any] | None,
    env: Any,
    keywords: Mapping[str, Any],
    training: bool = True,
    find_family: Callable[[Config], str] | None = None,
) -> Config:
    """Return the checked configuration of a run.

    Args:
        config: Configuration or settings; None for the environment's files alone.
        env: Environment as for ``source_of``; None for the one that the configuration names.
        keywords: Further settings, which override the others.
        training: False to check only the settings needed for evaluation.
        find_family: Returns the family of a Python environment; None leaves it open.

    Raises:
        UserError: If a setting or the environment is invalid.
    """
    if isinstance(config, Config):
        return with_environment(changed(config, collected(keywords), training), env)
    if env is None:
        raise UserError("there is no environment", FORMS)
    settings = collected(config or {}, keywords)
    one = source_of(env)
    return configuration.load(
        one.name,
        training=training,
        keywords=settings,
        factory=one.factory,
        find_family=find_family,
    )


def with_environment(config: Config, env: Any) -> Config:
    """Return a configuration with a program's environment, which is trusted.

    Args:
        config: Configuration; not modified.
        env: Environment as for ``source_of``; None for the configured one.

    Raises:
        UserError: If the configuration is for another environment.
    """
    if env is None:
        return config
    one = source_of(env)
    if one.factory is None and one.name != config.env_name:
        raise UserError(
            f"the configuration is for {config.env_name}, the environment is {one.name}",
            f"configuration and environment of one kind, or a dictionary of settings: {one.name}"
            " has settings of its own",
        )
    if one.factory is not None and not config.python:
        raise UserError(
            f"the configuration is for {config.env_name}, in C, and the environment is in Python",
            "leave one of the two out",
        )
    known = {name: origin for name, origin in config.untrusted_code.items() if name != one.name}
    return replace(config, factory=one.factory, untrusted_code=known)


def with_objects(config: Config, objects: Mapping[str, Any]) -> Config:
    """Return a configuration with a program's objects, which are trusted.

    Args:
        config: Configuration with the objects' names; not modified.
        objects: Objects for keys of section [train], by full name.
    """
    names = {getattr(config.train, name.partition(".")[2]) for name in objects}
    known = {name: origin for name, origin in config.untrusted_code.items() if name not in names}
    return replace(config, objects={**config.objects, **objects}, untrusted_code=known)


def changed(config: Config, settings: Settings, training: bool = True) -> Config:
    """Return a copy of a configuration with other settings, which override files.

    Raises:
        UserError: If the settings are invalid.
    """
    sections = {name: replace(getattr(config, name)) for name in SECTIONS}
    copy = replace(config, **sections, env=dict(config.env), origins=dict(config.origins))
    copy.objects = {name: each for name, each in config.objects.items() if name not in settings}
    for name, value in settings.items():
        section, _, key = name.partition(".")
        if section == "env":
            copy.env[key] = value
        else:
            kind = type(KEYS[section][key].default)
            whole = kind is int and isinstance(value, float) and value.is_integer()
            setattr(getattr(copy, section), key, int(value) if whole else value)
        copy.origins[name] = ARGUMENT
    validate(copy, training)
    if config.family_reloader:
        copy.family_reloader = config.family_reloader.changed(settings, training)
    return copy
