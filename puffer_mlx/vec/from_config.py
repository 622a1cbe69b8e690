"""Make the environments that a configuration names, or read their spaces and family."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from puffer_mlx.config import Config, releases
from puffer_mlx.config.families import family_of
from puffer_mlx.config.finding import ENVPOOL_PREFIX, GYM_PREFIX
from puffer_mlx.config.fit import Misfit, fit_agents, is_explicit, rollout_threads
from puffer_mlx.config.resolving import needs_family, take_family
from puffer_mlx.config.trust import as_argument, refuse_untrusted_code
from puffer_mlx.errors import UserError
from puffer_mlx.spec import EnvSpec
from puffer_mlx.system.import_string import load_object
from puffer_mlx.vec import puffer, zoo
from puffer_mlx.vec.base import Environments, ReportsFinalObservations, VecEnv
from puffer_mlx.vec.gym import envpool
from puffer_mlx.vec.gym.make import GymFactory
from puffer_mlx.vec.gym.wrapping import changed_keys
from puffer_mlx.vec.instances import EnvFactory, WrongEnvClass
from puffer_mlx.vec.native.c_functions import load_library
from puffer_mlx.vec.native.compiling import compile_environment
from puffer_mlx.vec.native.make import find_environment, read_spec
from puffer_mlx.vec.native.sources import environments_folder
from puffer_mlx.vec.native.vec import NativeVec
from puffer_mlx.vec.normalize import Normalized, shows_normalised
from puffer_mlx.vec.processes import cores
from puffer_mlx.vec.python_vec import PythonVec

RESCALE_KEY, CHANNELS_KEY = "vec.rescale_actions", "vec.image_channels"


def make(config: Config, threads: int, *, render: bool = False) -> Environments:
    """Make the vectorised environments of a configuration.

    Args:
        config: Configuration with the environment, its parameters, agents and buffers. It is
            changed: the settings of the environment's family are filled in, and agents and buffers
            from a file that don't fit are lowered, with a note (``config.fit.fit_agents``).
        threads: Maximum number of threads that step environments
            (``config.fit.rollout_threads``).
        render: True to make a Python environment that can be rendered.

    Raises:
        UserError: The environment doesn't exist or doesn't compile, its parameters are wrong, or
            agents and buffers from the command line don't fit it.
    """
    settle_family(config)
    return _make_settled(config, threads, render)


def _make_settled(config: Config, threads: int, render: bool = False) -> Environments:
    """Make the vectorised environments of a configuration whose family is known already."""
    threads = rollout_threads(config, threads)
    try:
        environments = _make(config, threads, render)
    except Misfit as misfit:
        fit_agents(config, misfit.counts)
        environments = _make(config, threads, render)
    observations = shows_normalised(config, environments.spec)
    rewards = config.vec.normalize_rewards
    if not observations and not rewards:
        return environments
    return Normalized(environments, observations, rewards, config.train.gamma, threads)


def settle_family(config: Config) -> None:
    """Fill in the settings of a Python environment's family in a configuration.

    The family depends on the environment's spaces, so one environment is made. A family from a
    file, an option, or a saved run isn't changed. See ``config.families``.

    Args:
        config: Configuration to change. Values that were changed since it was read stay.

    Raises:
        UserError: The environment can't be made, or options don't fit the family's settings.
    """
    if needs_family(config):
        take_family(config, look_up_family(config))


def look_up_family(config: Config) -> str:
    """Look up the family of a Python environment, such as ``atari``, from its spaces.

    Makes one environment.

    Raises:
        UserError: The environment can't be made.
    """
    measure = config.vec.backend == "auto" and config.vec.total_agents > 1 and cores() > 1
    return family_of(_probed_factory(config, measure=measure).layout.spec)


def look_up_spec(config: Config) -> EnvSpec:
    """Return one agent's observations and actions (``EnvSpec``) in a configuration's environment.

    Raises:
        UserError: The environment can't be made.
    """
    if config.python:
        return _probed_factory(config).layout.spec
    sources = source_folder(config)
    return read_spec(sources, load_library(compile_environment(sources)))


@contextlib.contextmanager
def probe(config: Config) -> Iterator[Environments]:
    """Context manager: make as few environments of a configuration as possible, to inspect them.

    Makes one Python environment if possible, else one group. The working directory is restored
    afterwards, in case the environment changes it.

    Args:
        config: Configuration with the environment. Its family may be unset.

    Raises:
        UserError: The environment can't be made.
    """
    with contextlib.chdir("."), _open_probe(config) as environments:
        yield environments


def _open_probe(config: Config) -> Environments:
    """Make as few vectorised environments of a configuration as possible, to inspect them."""
    if config.python:
        single = replace(config.vec, total_agents=1, num_buffers=1)
        with contextlib.suppress(UserError):  # several agents share one environment, for example
            return _make_settled(replace(config, vec=single, origins={}, notes=[]), 1)
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
    factory = _probed_factory(config, render, threads=threads)
    settings |= {"backend": config.vec.backend, "timeout": config.vec.timeout}
    return PythonVec(factory, **settings)


def _probed_factory(
    config: Config, render: bool = False, measure: bool = False, threads: int = 1
) -> EnvFactory:
    """Make the factory of a configuration's Python environment, and read the properties of one.

    Args:
        config: Configuration with the environment.
        render: True to make environments that can be rendered.
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
    has_zoo_prefix = config.factory is None and name.startswith(zoo.PREFIX)
    if has_zoo_prefix or parallel.is_probed():
        parallel.probe(**probe)
        return parallel
    more = {"final_observations": config.train.bootstrap_truncated, "wrap": config.wrap}
    if config.factory is None and name.startswith(ENVPOOL_PREFIX):
        pools = envpool.EnvPoolFactory(
            name, constructor, *arguments, **more, total=vec.total_agents, threads=threads
        )
        pools.probe(**probe)
        return pools
    try:
        gym = GymFactory(name, constructor, *arguments, **more, total=vec.total_agents)
        gym.probe(**probe)
        return gym
    except WrongEnvClass:
        with contextlib.suppress(WrongEnvClass):
            parallel.probe(**probe)
            return parallel
        raise


def source_folder(config: Config) -> Path:
    """Return the folder with the sources of a configuration's C environment.

    Raises:
        UserError: The folder doesn't exist, or is untrusted code (``puffer_mlx.config.trust``).
    """
    if not config.source:
        return find_environment(config.env_name)
    folder = Path(config.source)
    if folder.resolve().parent != environments_folder().resolve():  # shipped environments
        refuse_untrusted_code(config, "base", "env")
    return folder


def has_cuda_network(config: Config) -> bool:
    """Return True if PufferLib 5.0 trains a configuration's environment with a network in CUDA."""
    return bool(config.source) and releases.folder_has_cuda_network(config.source)


def python_factory(config: Config) -> Any:
    """Return the constructor of a configuration's Python environment, or its Gymnasium id.

    Raises:
        UserError: The constructor doesn't exist, or is untrusted code
            (``puffer_mlx.config.trust``).
    """
    if config.factory is not None:
        refuse_untrusted_code(config, "env")
        return config.factory
    refuse_untrusted_code(config, "base", "env")
    name = config.env_name
    if name.startswith(zoo.PREFIX):
        return zoo.find_parallel(name.removeprefix(zoo.PREFIX))
    if name.startswith(puffer.PREFIX):
        return puffer.find_ocean(name.removeprefix(puffer.PREFIX))
    if name.startswith(ENVPOOL_PREFIX):
        return envpool.find_envpool(name.removeprefix(ENVPOOL_PREFIX))
    if name.startswith(GYM_PREFIX):
        return name.removeprefix(GYM_PREFIX)
    try:
        return load_object(name)
    except UserError as error:
        if name not in config.untrusted_code:
            raise
        hint = f"{error.hint}; or pass it: in Python {as_argument(name)}"
        raise UserError(error.message, hint) from None


def unused_env_keys(config: Config, vec: VecEnv) -> list[str]:
    """Return the configuration keys that have no effect on the made environments, with reasons."""
    keys = [f"env.{key}" for key in vec.unused]
    reports_ends = vec.final_observations or (
        isinstance(vec, ReportsFinalObservations) and vec.reports_final_observations
    )
    if config.train.bootstrap_truncated and not reports_ends:
        keys.append(
            "train.bootstrap_truncated (episodes don't report that a time limit ended them)"
        )
    if config.vec.normalize_observations and not shows_normalised(config, vec.spec):
        keys.append("vec.normalize_observations (bytes have a known scale)")
    if is_explicit(config, "policy.log_std_init") and not vec.spec.action.continuous:
        keys.append("policy.log_std_init (actions are discrete)")
    wrapped = changed_keys(config.wrap)
    factory = getattr(getattr(vec, "inner", vec), "factory", None)
    if wrapped and not isinstance(factory, GymFactory):
        keys += [f"wrap.{key} (for Gymnasium's)" for key in wrapped]
    if not config.python:
        names = ("base.family", "vec.backend", "vec.timeout", RESCALE_KEY, CHANNELS_KEY)
        keys += [f"{name} (for Python)" for name in names if name in config.origins]
        return keys
    if (
        is_explicit(config, RESCALE_KEY)
        and config.vec.rescale_actions
        and not vec.spec.action.bounds
    ):
        keys.append(f"{RESCALE_KEY} (no action has finite bounds other than -1 and 1)")
    if is_explicit(config, CHANNELS_KEY) and not (
        vec.spec.observation_shape or vec.spec.image_parts
    ):
        keys.append(f"{CHANNELS_KEY} (observations contain no images of bytes)")
    return keys
