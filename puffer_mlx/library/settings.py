"""Build configurations from the keywords, dictionaries and environments that a program passes.

Settings are keywords (``learning_rate=1e-3``) or dictionaries (``{"train.learning_rate": 1e-3}``,
``{"train": {"learning_rate": 1e-3}}``). They have the same effect as command line options: they
override all files and are never changed silently. An environment is a name, a class, a function
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
from puffer_mlx.ppo.schedules import SCHEDULED_KEYS, value_at
from puffer_mlx.vec.gym.make import constructor_of
from puffer_mlx.vec.puffer import is_puffer_env

ENV = "env."  # prefix of the environment's own keys
ENVIRONMENT_HINT = (
    'a name ("gym:CartPole-v1"), a class, a function that makes one, or a gymnasium.Env'
)
LAYERS_HINT = "hidden_size, num_layers, activation and others of section policy"
ARGUMENT_HINTS = {  # by argument of another library: what to use instead
    "policy_kwargs": LAYERS_HINT,
    "net_arch": LAYERS_HINT,
    "env_kwargs": '{"env": {…}}',
    "tensorboard_log": 'track=["tensorboard"] and log_dir',
    "verbose": "progress",
    "progress_bar": "progress",
    "callback": "the body of the loop over a Trainer, or train(env, callback=function)",
}

OBJECT_KEYS = {f"train.{key}" for key, declared in KEYS["train"].items() if declared.custom}
Schedule = Callable[[float], float]  # (fraction of finished epochs, in [0, 1)) -> value

Value = int | float | bool | str
SettingValues = dict[str, Any]  # by section.key


class Objects(NamedTuple):
    """A run's settings that are Python objects, such as functions, and don't fit in a file.

    Args:
        schedules: Coefficients as functions of the fraction of finished epochs, by key of [train].
        by_name: Other objects (loss, advantages, optimizer) by ``section.key``.
    """

    schedules: dict[str, Schedule]
    by_name: dict[str, Any]


def without_objects(*sources: Mapping[str, Any]) -> tuple[Objects, list[dict[str, Any]]]:
    """Split a program's settings into Python objects and plain settings. Returns both.

    In the settings, a schedule is replaced by its value in the first epoch, other objects by their
    names. If several sources have a key, the last one counts.

    Args:
        sources: Settings, as for ``collect_settings``.

    Raises:
        UserError: A key is unknown, or a schedule doesn't return a number.
    """
    objects: dict[str, Any] = {}
    schedules: dict[str, Schedule] = {}
    plain: list[dict[str, Any]] = []
    for source in sources:
        settings = dict(_flat(source))
        for name, value in settings.items():
            full_name = _full_name(name)
            objects.pop(full_name, None)
            section, _, key = full_name.partition(".")
            if section == "train":
                schedules.pop(key, None)
            if section == "train" and key in SCHEDULED_KEYS and callable(value):
                schedules[key] = cast(Schedule, value)
                settings[name] = value_at(schedules[key], 0.0, key)
            elif full_name in OBJECT_KEYS and not isinstance(value, Value):
                objects[full_name] = value
                settings[name] = object_name(value)
        plain.append(settings)
    return Objects(schedules, objects), plain


def object_name(value: Any) -> str:
    """Return the name ``module:name`` by which a configuration refers to a Python object.

    The object is a class, a function or an optimizer.
    """
    name = getattr(value, "__qualname__", "")
    if not name:  # an optimizer, a tuple of functions: named as the variable of their module
        optimizer = value
        value = getattr(value, "step", value)
        name = getattr(value, "__qualname__", type(value).__qualname__)
        defining_module = sys.modules.get(getattr(value, "__module__", ""), sys)
        for variable, each in vars(defining_module).items():
            if each is optimizer:
                name = variable
                break
    module = getattr(value, "__module__", type(value).__module__)
    return f"{module}:{name}".replace(".<locals>", "").replace("<lambda>", "function")


def collect_settings(*sources: Mapping[str, Any]) -> SettingValues:
    """Merge settings from several sources into one dictionary by ``section.key``.

    If several sources have a key, the last one counts.

    Args:
        sources: Values by key (if only one section or [base] has the key), values by
            ``section.key``, or dictionaries of keys by section.

    Raises:
        UserError: A key is unknown, or its value can't be written to a file.
    """
    settings: SettingValues = {}
    for source in sources:
        for name, value in _flat(source):
            settings[_full_name(name)] = _plain_value(name, value)
    return settings


def _flat(source: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield name and value of each setting in a dict that may contain a dict per section.

    Such a setting's name is ``section.key``.
    """
    for name, value in source.items():
        # The dictionary in {"env.layout": {…}} is a value.
        if isinstance(value, Mapping) and "." not in name:
            yield from ((f"{name}.{key}", inner) for key, inner in value.items())
        else:
            yield name, value


def _full_name(name: str) -> str:
    """Return a setting's full name ``section.key``, also for a ``key`` without its section.

    Raises:
        UserError: No section, or several sections, have this key.
    """
    section, dot, key = name.partition(".")
    if key in KEYS.get(section, {}) or (name.startswith(ENV) and key):
        return name
    sections = [] if dot else [section for section, keys in KEYS.items() if name in keys]
    if "base" in sections:
        return f"base.{name}"
    if len(sections) == 1:
        return f"{sections[0]}.{name}"
    if sections:
        full_names = " or ".join(f"{each}.{name}" for each in sections)
        raise UserError(f"{name} is a key of several sections", f"{full_names}, in a dictionary")
    _, _, our_key = OTHER_LIBRARY_KEYS.get(name.rpartition(".")[2], "").partition(".")
    if our_name := our_key or ARGUMENT_HINTS.get(section):
        raise UserError(f"there is no setting {name}", f"here it is {our_name}")
    names = [f"{each}.{key}" if dot else key for each, keys in KEYS.items() for key in keys]
    near = closest(name, names)
    hint = f"did you mean {near}?" if near else EVERY_KEY_HINT
    raise UserError(f"there is no setting {name}", hint)


def _plain_value(name: str, value: Any) -> Any:
    """Convert a setting's value to one that a configuration file can store.

    NumPy's numbers become Python's, and a list of words becomes one text.

    Raises:
        UserError: A file can't store the value.
    """
    if name.startswith(ENV) and is_argument(value):
        return value
    if isinstance(value, list | tuple):
        value = _join_words(name, value)
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        value = value.item()
    if value is None and not name.startswith(ENV):
        raise UserError(f"{name} is None", "leave it out to use the environment's value")
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


def _join_words(name: str, value: Sequence[Any]) -> Any:
    """Join a list by commas if its key takes several words; return other lists unchanged."""
    section, _, key = _full_name(name).partition(".")
    several = section in KEYS and KEYS[section][key].several
    if several and all(isinstance(word, str) for word in value):
        return ",".join(value) or NO_TRACKER
    return value


# ---- environments and complete configurations ----------------------------------------------------


class EnvironmentSource(NamedTuple):
    """An environment that a program passes: its name, and a function that creates it.

    Args:
        name: Name in files and on command lines.
        factory: Creates the environment; None to find it by its name.
        is_single_object: True for an environment object that the caller created, so that there is
            only one environment.
    """

    name: str
    factory: Callable[..., Any] | None = None
    is_single_object: bool = False


def environment_source(env: Any) -> EnvironmentSource:
    """Return name and constructor of an environment that a program passes as an argument.

    Args:
        env: Name, class, function that creates one, or object.

    Raises:
        UserError: The object isn't an environment.
    """
    if isinstance(env, EnvironmentSource):
        return env
    if isinstance(env, str):
        return EnvironmentSource(env)
    gymnasium = sys.modules.get("gymnasium")  # imported if the object is from Gymnasium
    if gymnasium and isinstance(env, gymnasium.Env):
        name = object_name(type(env.unwrapped))
        return EnvironmentSource(name, constructor_of(env), is_single_object=True)
    if callable(env):
        return EnvironmentSource(object_name(env), env)
    hint = ENVIRONMENT_HINT
    if hasattr(env, "num_envs") or is_puffer_env(env):
        hint = "pass a function that makes it; one that takes num_envs makes many at once"
    raise UserError(f"the environment is an object of {type(env).__name__}", hint)


def build_config(
    config: Config | Mapping[str, Any] | None,
    env: Any,
    keywords: Mapping[str, Any],
    training: bool = True,
    find_family: Callable[[Config], str] | None = None,
) -> Config:
    """Build and check the configuration of a run from a program's arguments.

    Args:
        config: Configuration or settings; None to use only the environment's files.
        env: Environment, as for ``environment_source``; None for the one in ``config``.
        keywords: More settings, which override the others.
        training: False to check only the settings needed for evaluation.
        find_family: Returns the family of a Python environment; None doesn't determine it.

    Raises:
        UserError: A setting or the environment is invalid.
    """
    if isinstance(config, Config):
        return with_environment(with_settings(config, collect_settings(keywords), training), env)
    if env is None:
        raise UserError("there is no environment", ENVIRONMENT_HINT)
    settings = collect_settings(config or {}, keywords)
    source = environment_source(env)
    return configuration.load(
        source.name,
        training=training,
        keywords=settings,
        factory=source.factory,
        find_family=find_family,
    )


def with_environment(config: Config, env: Any) -> Config:
    """Return a configuration changed to use an environment that a program passes (trusted).

    Args:
        config: Configuration; not modified.
        env: Environment, as for ``environment_source``; None for the one in ``config``.

    Raises:
        UserError: The configuration is for another environment.
    """
    if env is None:
        return config
    source = environment_source(env)
    if source.factory is None and source.name != config.env_name:
        raise UserError(
            f"the configuration is for {config.env_name}, the environment is {source.name}",
            f"pass a configuration for {source.name}, or a dictionary of settings",
        )
    if source.factory is not None and not config.python:
        raise UserError(
            f"the configuration is for {config.env_name}, in C, but the environment is in Python",
            "leave one of the two out",
        )
    untrusted_code = {
        name: origin for name, origin in config.untrusted_code.items() if name != source.name
    }
    return replace(config, factory=source.factory, untrusted_code=untrusted_code)


def with_objects(config: Config, objects: Mapping[str, Any]) -> Config:
    """Return a configuration with the Python objects that it names, whose code is then trusted.

    Args:
        config: Configuration with the objects' names; not modified.
        objects: Objects by ``train.key``.
    """
    names = {getattr(config.train, name.partition(".")[2]) for name in objects}
    untrusted_code = {
        name: origin for name, origin in config.untrusted_code.items() if name not in names
    }
    return replace(config, objects={**config.objects, **objects}, untrusted_code=untrusted_code)


def with_settings(config: Config, settings: SettingValues, training: bool = True) -> Config:
    """Return a copy of a configuration with some settings changed.

    Args:
        config: Configuration; not modified.
        settings: New values by ``section.key``; they override all files.
        training: False to check only the settings needed for evaluation.

    Raises:
        UserError: The settings are invalid.
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
            if kind is int and isinstance(value, float) and value.is_integer():  # 1e6
                value = int(value)
            setattr(getattr(copy, section), key, value)
        copy.origins[name] = ARGUMENT
    validate(copy, training)
    if config.family_reloader:
        copy.family_reloader = config.family_reloader.changed(settings, training)
    return copy
