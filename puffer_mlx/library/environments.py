"""Environments as a program has them: a name, a class, a function that makes one, or one."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from puffer_mlx import config as configuration
from puffer_mlx.config import Config, validate
from puffer_mlx.config.schema import ARGUMENT, KEYS, SECTIONS
from puffer_mlx.errors import UserError
from puffer_mlx.library.settings import Settings, called, collected, object_name, words
from puffer_mlx.vec.gym.lent import lend
from puffer_mlx.vec.puffer.make import is_puffer_env

FORMS = 'a name ("gym:CartPole-v1"), a class, a function that makes one, or a gymnasium.Env'


class EnvironmentSource(NamedTuple):
    """An environment under the name that files know it by.

    Args:
        name: as on a command line.
        factory: what makes it; None: the name says where it is found.
        alone: whether there is only one, which its owner made.
    """

    name: str
    factory: Callable[..., Any] | None = None
    alone: bool = False


def source_of(env: Any) -> EnvironmentSource:
    """What a person calls an environment; what this has returned is returned as it is.

    Raises:
        UserError: it is none.
    """
    if isinstance(env, EnvironmentSource):
        return env
    if isinstance(env, str):
        return EnvironmentSource(env)
    gymnasium = sys.modules.get("gymnasium")  # whoever has an object of it has imported it
    if gymnasium and isinstance(env, gymnasium.Env):
        return EnvironmentSource(object_name(type(env.unwrapped)), lend(env), alone=True)
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
) -> Config:
    """The checked configuration of a run.

    Args:
        config: all of it; or settings, see ``settings``; None: as the environment's files say.
        env: the environment (``source_of``); None if the configuration names it.
        keywords: further settings, which win.
        training: whether it is to train with it.

    Raises:
        UserError: anything wrong.
    """
    if isinstance(config, Config):
        return with_environment(changed(config, collected(keywords), training), env)
    if env is None:
        raise UserError("there is no environment", FORMS)
    settings = collected(config or {}, keywords)
    one = source_of(env)
    load = partial(configuration.load, one.name, words(settings), training=training)
    loaded = called(load)
    loaded.factory = one.factory
    return loaded


def with_environment(config: Config, env: Any) -> Config:
    """A configuration with the environment that a person gave: it is theirs, whoever's file it is.

    Args:
        config: is not changed.
        env: as ``source_of`` takes it; None leaves the configuration's own.

    Raises:
        UserError: it is another one than the configuration's.
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
    known = {name: origin for name, origin in config.named_by.items() if name != one.name}
    return replace(config, factory=one.factory, named_by=known)


def with_objects(config: Config, objects: Mapping[str, Any]) -> Config:
    """A configuration with objects that a person gave: theirs, whoever's file names them, too.

    Args:
        config: has their names already; is not changed.
        objects: by their full names, of section [train].
    """
    names = {getattr(config.train, name.partition(".")[2]) for name in objects}
    known = {name: origin for name, origin in config.named_by.items() if name not in names}
    return replace(config, objects={**config.objects, **objects}, named_by=known)


def changed(config: Config, settings: Settings, training: bool = True) -> Config:
    """A copy of a configuration with other settings, as if they had been typed.

    Raises:
        UserError: they don't fit.
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
    if again := config.again:
        copy.again = lambda family: changed(again(family), settings, training)
    return copy
