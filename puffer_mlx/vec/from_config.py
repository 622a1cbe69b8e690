"""Vectorised environments: ``make`` builds the ones that a configuration names."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from puffer_mlx.config import Config, dialects
from puffer_mlx.config.families import family_of
from puffer_mlx.config.fit import Misfit, fit_agents, rollout_threads, typed
from puffer_mlx.config.loading import take_family, undecided
from puffer_mlx.config.trust import as_argument, permit
from puffer_mlx.errors import UserError
from puffer_mlx.spec import EnvSpec
from puffer_mlx.system.import_string import load_object
from puffer_mlx.vec.base import Environments, ShowsLast, VecEnv
from puffer_mlx.vec.gym.vec import GymVec
from puffer_mlx.vec.gym.wrapping import changed
from puffer_mlx.vec.native.c_functions import load
from puffer_mlx.vec.native.compiling import compile_environment
from puffer_mlx.vec.native.make import find_environment, read_spec
from puffer_mlx.vec.native.sources import environments_folder
from puffer_mlx.vec.native.vec import NativeVec
from puffer_mlx.vec.normalize import Normalized, shows_normalised
from puffer_mlx.vec.puffer import ocean
from puffer_mlx.vec.puffer.make import is_puffer_env
from puffer_mlx.vec.puffer.vec import PufferVec
from puffer_mlx.vec.zoo.names import PREFIX as ZOO
from puffer_mlx.vec.zoo.names import ParallelFactory
from puffer_mlx.vec.zoo.names import find as find_parallel
from puffer_mlx.vec.zoo.vec import ZooVec, makes_parallel

GYM = "gym:"
RESCALE, CHANNELS = "vec.rescale_actions", "vec.image_channels"


def make(config: Config, threads: int, *, render: bool = False) -> Environments:
    """The environments of a configuration.

    Args:
        config: names the environment and gives its parameters, agents and buffers. Settings of
            its family are filled in (``settle_family``), and agents and buffers from a file that
            don't fit the environments are lowered in it, with a note: from here on it says what
            there is (``config.fit.fit_agents``).
        threads: the most threads that may step environments; there may be fewer
            (``config.fit.rollout_threads``).
        render: whether a Python environment is to draw itself (``GymVec.render``).

    Raises:
        UserError: there is no such environment, it doesn't compile, its parameters are wrong, or
            agents and buffers that were typed don't fit it.
    """
    settle_family(config)
    return _make_settled(config, threads, render)


def _make_settled(config: Config, threads: int, render: bool = False) -> Environments:
    """The environments of a configuration, whose family is settled or doesn't matter."""
    threads = rollout_threads(config, threads)
    try:
        environments = _make(config, threads, render)
    except Misfit as misfit:
        fit_agents(config, misfit.counts)
        environments = _make(config, threads, render)
    normalized = shows_normalised(config, environments.spec), config.vec.normalize_rewards
    if not any(normalized):
        return environments
    return Normalized(environments, *normalized, config.train.gamma, threads)


def settle_family(config: Config) -> None:
    """Have a configuration of an environment in Python say what its family's files say.

    Which family it is, its spaces tell (``config.families``); to see them one environment is made.
    Nothing is done where that is settled: a file or a person says it, or all of it is in a run's
    own configuration.

    Args:
        config: is changed, but for what somebody changed in it since it was read.

    Raises:
        UserError: as ``make``, or options don't go with the family's settings.
    """
    if undecided(config):
        take_family(config, find_family(config))


def find_family(config: Config) -> str:
    """Return the family of an environment in Python; makes as few environments as possible.

    Raises:
        UserError: as ``make``.
    """
    return family_of(look_up_spec(config))


def look_up_spec(config: Config) -> EnvSpec:
    """What an agent of a configuration's environment sees and does; makes as few as possible.

    Raises:
        UserError: as ``make``.
    """
    if not config.python:
        sources = source_folder(config)
        return read_spec(sources, load(compile_environment(sources)))
    with probe(config) as environments:
        return environments.spec


@contextlib.contextmanager
def probe(config: Config) -> Iterator[Environments]:
    """Make environments to see what they are: in Python one if possible, else one group.

    The working directory is restored afterwards, in case the environment changes it.

    Args:
        config: names the environment; its family need not be settled.

    Raises:
        UserError: as ``make``.
    """
    with contextlib.chdir("."), _few(config) as environments:
        yield environments


def _few(config: Config) -> Environments:
    """Make the environments of ``probe``."""
    if config.python:
        one = replace(config.vec, total_agents=1, num_buffers=1)
        with contextlib.suppress(UserError):  # several agents share one, or it can't be made at all
            return _make_settled(replace(config, vec=one, origins={}, notes=[]), 1)
        return _make_settled(config, 1)
    group = replace(config.vec, num_buffers=1)
    return _make_settled(replace(config, vec=group, origins={}, notes=[]), 1)


def _make(config: Config, threads: int, render: bool) -> Environments:
    settings = {
        "total_agents": config.vec.total_agents,
        "num_buffers": config.vec.num_buffers,
        "num_threads": threads,
        "env": config.env,
        "seed": config.vec.seed,
    }
    if not config.python:
        return NativeVec(source_folder(config), **settings)
    factory = python_factory(config)
    settings |= {
        "name": config.env_name,
        "backend": config.vec.backend,
        "timeout": config.vec.timeout,
        "render": render,
        "rescale_actions": config.vec.rescale_actions,
        "image_channels": config.vec.image_channels,
    }
    if isinstance(factory, ParallelFactory):
        return ZooVec(factory, **settings)
    if is_puffer_env(factory):
        return PufferVec(factory, **settings)
    finals = config.train.bootstrap_truncated
    try:
        return GymVec(factory, finals=finals, wrap=config.wrap, **settings)
    except UserError:
        if not makes_parallel(config.env_name, factory, config.env):  # what it makes tells
            raise
    return ZooVec(factory, **settings)


def source_folder(config: Config) -> Path:
    """The folder of a native environment's sources.

    Raises:
        UserError: there is none; or only a file names it (``puffer_mlx.config.trust``).
    """
    if not config.source:
        return find_environment(config.env_name)
    folder = Path(config.source)
    if folder.resolve().parent != environments_folder().resolve():  # those are ours
        permit(config, "base", "env")
    return folder


def has_own_network(config: Config) -> bool:
    """Whether PufferLib 5.0 trains the environment with a network of its own, in CUDA."""
    return bool(config.source) and dialects.has_own_network(config.source)


def python_factory(config: Config) -> Any:
    """What makes a Python environment: a Gymnasium id, or the object that is given or named.

    Raises:
        UserError: there is none; or only a file names it (``puffer_mlx.config.trust``).
    """
    if config.factory is not None:
        permit(config, "env")
        return config.factory
    permit(config, "base", "env")
    name = config.env_name
    if name.startswith(ZOO):
        return find_parallel(name.removeprefix(ZOO))
    if name.startswith(ocean.PREFIX):
        return ocean.find(name.removeprefix(ocean.PREFIX))
    if name.startswith(GYM):
        return name.removeprefix(GYM)
    try:
        return load_object(name)
    except UserError as error:
        if name not in config.named_by:
            raise
        hint = f"{error.hint}; or give it: in Python {as_argument(name)}"
        raise UserError(error.message, hint) from None


def unused_keys(config: Config, vec: VecEnv) -> list[str]:
    """Keys that these environments have no use for, and why, for the line that says so."""
    keys = [f"env.{key}" for key in vec.unread]
    shown = vec.finals or (isinstance(vec, ShowsLast) and vec.shows_last)
    if config.train.bootstrap_truncated and not shown:
        keys.append("train.bootstrap_truncated (they don't show where a time limit ended them)")
    if config.vec.normalize_observations and not shows_normalised(config, vec.spec):
        keys.append("vec.normalize_observations (bytes are on a scale that is known)")
    if typed(config, "policy.log_std_init") and not vec.spec.action.continuous:
        keys.append("policy.log_std_init (actions are discrete)")
    wrapped = changed(config.wrap)
    if wrapped and not isinstance(getattr(vec, "inner", vec), GymVec):
        keys += [f"wrap.{key} (for Gymnasium's)" for key in wrapped]
    if not config.python:
        names = ("base.family", "vec.backend", "vec.timeout", RESCALE, CHANNELS)
        keys += [f"{name} (for Python)" for name in names if name in config.origins]
        return keys
    if typed(config, RESCALE) and config.vec.rescale_actions and not vec.spec.action.bounds:
        keys.append(f"{RESCALE} (no action has finite bounds other than -1 and 1)")
    if typed(config, CHANNELS) and not (vec.spec.observation_shape or vec.spec.image_parts):
        keys.append(f"{CHANNELS} (observations hold no images of bytes)")
    return keys
