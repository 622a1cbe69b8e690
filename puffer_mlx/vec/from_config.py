"""Environments of a configuration: made, or probed for their spaces."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from puffer_mlx.config import Config, dialects
from puffer_mlx.config.families import family_of
from puffer_mlx.config.fit import Misfit, fit_agents, rollout_threads, typed
from puffer_mlx.config.resolving import take_family, undecided
from puffer_mlx.config.trust import as_argument, permit
from puffer_mlx.errors import UserError
from puffer_mlx.spec import EnvSpec
from puffer_mlx.system.import_string import load_object
from puffer_mlx.vec import puffer, zoo
from puffer_mlx.vec.base import Environments, ShowsLast, VecEnv
from puffer_mlx.vec.gym import envpool
from puffer_mlx.vec.gym.make import GymFactory
from puffer_mlx.vec.gym.wrapping import changed
from puffer_mlx.vec.instances import EnvFactory, OtherKind
from puffer_mlx.vec.native.c_functions import load
from puffer_mlx.vec.native.compiling import compile_environment
from puffer_mlx.vec.native.make import find_environment, read_spec
from puffer_mlx.vec.native.sources import environments_folder
from puffer_mlx.vec.native.vec import NativeVec
from puffer_mlx.vec.normalize import Normalized, shows_normalised
from puffer_mlx.vec.processes import cores
from puffer_mlx.vec.python_vec import PythonVec

GYM = "gym:"
RESCALE, CHANNELS = "vec.rescale_actions", "vec.image_channels"


def make(config: Config, threads: int, *, render: bool = False) -> Environments:
    """Return the environments of a configuration.

    Args:
        config: Configuration with the environment, its parameters, agents and buffers. Changed: the
            settings of the environment's family are filled in. Agents and buffers from a file that
            don't fit the environments are lowered, with a note (``config.fit.fit_agents``).
        threads: Most threads that step environments; there may be fewer
            (``config.fit.rollout_threads``).
        render: True to make a Python environment that can draw itself.

    Raises:
        UserError: The environment doesn't exist or doesn't compile, its parameters are wrong, or
            agents and buffers from the command line don't fit it.
    """
    settle_family(config)
    return _make_settled(config, threads, render)


def _make_settled(config: Config, threads: int, render: bool = False) -> Environments:
    """Return the environments of a configuration whose family is settled."""
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
    """Fill in the settings of the family of an environment in Python (``config.families``).

    The family depends on the environment's spaces, so one environment is probed. Does nothing if
    the family is known from a file, an option, or a run's configuration.

    Args:
        config: Configuration to change. Values that were changed since it was read stay.

    Raises:
        UserError: As in ``make``, or options don't fit the family's settings.
    """
    if undecided(config):
        take_family(config, find_family(config))


def find_family(config: Config) -> str:
    """Return the family of an environment in Python; make as few environments as possible.

    Raises:
        UserError: As in ``make``.
    """
    measure = config.vec.backend == "auto" and config.vec.total_agents > 1 and cores() > 1
    return family_of(_probed(config, measure=measure).layout.spec)


def look_up_spec(config: Config) -> EnvSpec:
    """Return the observations and actions of one agent of a configuration's environment.

    Raises:
        UserError: As in ``make``.
    """
    if config.python:
        return _probed(config).layout.spec
    sources = source_folder(config)
    return read_spec(sources, load(compile_environment(sources)))


@contextlib.contextmanager
def probe(config: Config) -> Iterator[Environments]:
    """Make environments to inspect them: in Python one if possible, else one group.

    The working directory is restored afterwards, in case the environment changes it.

    Args:
        config: Configuration with the environment. Its family may be unset.

    Raises:
        UserError: As in ``make``.
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
    settings: dict[str, Any] = {
        "total_agents": config.vec.total_agents,
        "num_buffers": config.vec.num_buffers,
        "num_threads": threads,
        "seed": config.vec.seed,
    }
    if not config.python:
        if config.files:
            settings["file"] = config.files[-1]
        return NativeVec(source_folder(config), env=config.env, **settings)
    factory = _probed(config, render, threads=threads)
    settings |= {"backend": config.vec.backend, "timeout": config.vec.timeout}
    return PythonVec(factory, **settings)


def _probed(
    config: Config, render: bool = False, measure: bool = False, threads: int = 1
) -> EnvFactory:
    """Return the factory of a Python environment, after probing it.

    Args:
        config: Configuration with the environment.
        render: True to make environments that can draw themselves.
        measure: True to measure the duration of a step.
        threads: Threads of EnvPool's pools.

    Raises:
        UserError: The environment can't be made.
    """
    constructor = python_factory(config)
    name = config.env_name
    keywords = dict(config.env)
    vec = config.vec
    arguments = keywords, render, vec.rescale_actions, vec.image_channels
    probe = {"backend": vec.backend, "seed": vec.seed, "measure": measure}
    if puffer.is_puffer_env(constructor):
        factory = puffer.PufferFactory(name, constructor, *arguments)
        factory.probe(**probe)
        return factory
    parallel = zoo.ZooFactory(name, constructor, *arguments)
    named = config.factory is None and name.startswith(zoo.PREFIX)
    if named or parallel.is_probed():
        parallel.probe(**probe)
        return parallel
    more = {"finals": config.train.bootstrap_truncated, "wrap": config.wrap}
    if config.factory is None and name.startswith(envpool.PREFIX):
        pools = envpool.EnvPoolFactory(
            name, constructor, *arguments, **more, total=vec.total_agents, threads=threads
        )
        pools.probe(**probe)
        return pools
    try:
        gym = GymFactory(name, constructor, *arguments, **more, total=vec.total_agents)
        gym.probe(**probe)
        return gym
    except OtherKind:
        with contextlib.suppress(OtherKind):
            parallel.probe(**probe)
            return parallel
        raise


def source_folder(config: Config) -> Path:
    """Return the folder of a native environment's sources.

    Raises:
        UserError: It doesn't exist, or only a file names it (``puffer_mlx.config.trust``).
    """
    if not config.source:
        return find_environment(config.env_name)
    folder = Path(config.source)
    if folder.resolve().parent != environments_folder().resolve():  # shipped environments
        permit(config, "base", "env")
    return folder


def has_own_network(config: Config) -> bool:
    """Return True if PufferLib 5.0 trains the environment with a special network, in CUDA."""
    return bool(config.source) and dialects.has_own_network(config.source)


def python_factory(config: Config) -> Any:
    """Return the constructor of a Python environment: a Gymnasium id, or a given or named object.

    Raises:
        UserError: It doesn't exist, or only a file names it (``puffer_mlx.config.trust``).
    """
    if config.factory is not None:
        permit(config, "env")
        return config.factory
    permit(config, "base", "env")
    name = config.env_name
    if name.startswith(zoo.PREFIX):
        return zoo.find_parallel(name.removeprefix(zoo.PREFIX))
    if name.startswith(puffer.PREFIX):
        return puffer.find_ocean(name.removeprefix(puffer.PREFIX))
    if name.startswith(envpool.PREFIX):
        return envpool.find_pool(name.removeprefix(envpool.PREFIX))
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
    """Return the keys that have no effect on these environments, with reasons."""
    keys = [f"env.{key}" for key in vec.unread]
    shown = vec.finals or (isinstance(vec, ShowsLast) and vec.shows_last)
    if config.train.bootstrap_truncated and not shown:
        keys.append("train.bootstrap_truncated (they don't show where a time limit ended them)")
    if config.vec.normalize_observations and not shows_normalised(config, vec.spec):
        keys.append("vec.normalize_observations (bytes are on a scale that is known)")
    if typed(config, "policy.log_std_init") and not vec.spec.action.continuous:
        keys.append("policy.log_std_init (actions are discrete)")
    wrapped = changed(config.wrap)
    factory = getattr(getattr(vec, "inner", vec), "factory", None)
    if wrapped and not isinstance(factory, GymFactory):
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
