"""Import policies from files of other programs or of puffer_mlx.

Each format infers settings such as ``policy.dialect`` from its files. The command line overrides
them: a policy is converted to the requested dialect, and wrong sizes are an error. A file can't set
other configuration keys. Classes that it names aren't imported.
"""

import json
import os
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from puffer_mlx.checkpoint import environment_statistics, normalization, rescaling
from puffer_mlx.checkpoint.environment_statistics import NORMALIZE_KEY, RESCALE_KEY
from puffer_mlx.config import Config
from puffer_mlx.config.memory_needs import refuse_file
from puffer_mlx.errors import UserError
from puffer_mlx.export import formats
from puffer_mlx.export.file_format import FileFormat, PolicyFile
from puffer_mlx.export.parity import Comparison, compare_outputs, random_observations
from puffer_mlx.export.weight_layouts import layout_of, to_layout
from puffer_mlx.policy.policy import Policy, configured_policy
from puffer_mlx.spec import EnvSpec
from puffer_mlx.system.files import open_file, report_read_errors

Weights = Any
TOLERANCE = 1e-5  # relative to an output's scale
HEAD = 64  # bytes that identify a format


def inspect(path: Path) -> PolicyFile:
    """Read a policy file of any format. Its contents determine the format.

    Raises:
        UserError: If the file can't be read, or holds an unknown policy.
    """
    with report_read_errors(path, "check the path"):
        with open_file(path) as file:
            head = file.read(HEAD)
            refuse_file(path, os.fstat(file.fileno()).st_size)
        source = read_policy_file(path, formats.detect_format(path, head))
    source.inside = bool(source.statistics)
    source.statistics = source.statistics or environment_statistics.read_statistics(path)
    if normalization.normalises(source.statistics):
        source.settings[NORMALIZE_KEY] = "True"
    if source.bounds:
        source.settings[RESCALE_KEY] = "True"
    return source


def read_policy_file(path: Path, file: FileFormat) -> PolicyFile:
    """Read a file of a known format, and separate statistics and bounds from its tensors.

    Raises:
        UserError: If the file, its statistics or its bounds are damaged.
        OSError: If the file can't be read.
    """
    source = file.read(path)
    source.tensors, source.statistics = normalization.split_statistics(path, source.tensors)
    source.tensors, source.bounds = rescaling.split_bounds(path, source.tensors)
    return source


def convert_weights(source: PolicyFile, spec: EnvSpec, config: Config) -> tuple[Policy, Weights]:
    """Return the policy of a file and its weights, in the configured dialect.

    Args:
        source: The file.
        spec: Spec of the environment that it will play.
        config: Effective configuration, including the file's settings.

    Raises:
        UserError: If the policy belongs to another environment or configuration, or the dialect
            can't express it.
    """
    _refuse_classes(source, config)
    _check_spec(source, spec)
    _check_sizes(source, config)
    normalization.check_size(source.path, source.statistics, spec)
    _check_bounds(source, spec)
    dialect = source.file.dialect(source, config.policy.dialect)
    theirs = replace(config, policy=replace(config.policy, dialect=dialect))
    policy = configured_policy(spec, theirs)
    return to_layout(policy, source.file.weights(source, policy), config.policy.dialect)


def difference(
    source: PolicyFile, policy: Policy, weights: Weights, spec: EnvSpec
) -> Comparison | None:
    """Compare an imported policy's outputs with the file's, on random observations.

    Returns:
        Result of ``compare_outputs``; None for formats that only puffer_mlx runs.
    """
    if not source.file.foreign:
        return None
    statistics = source.statistics if source.inside else {}
    observations = random_observations(spec, statistics)
    dialect = source.settings.get("policy.dialect", layout_of(policy))
    theirs, _ = to_layout(policy, weights, dialect)
    outputs = source.file.run(replace(source, statistics=statistics), theirs, observations)
    return compare_outputs(policy, weights, observations, statistics, outputs, TOLERANCE)


def _check_spec(source: PolicyFile, spec: EnvSpec) -> None:
    """Raise an error if the environment in the metadata differs from this one."""
    for key, expected in (
        ("observation_size", spec.observation_size),
        ("observation_shape", list(spec.observation_shape)),
        ("actions", list(spec.action.sizes)),
    ):
        if source.metadata.get(key, json.dumps(expected)) != json.dumps(expected):
            raise UserError(
                f"{source.path} is a policy for"
                f" {_plain(source.metadata.get('env', 'another environment'))}:"
                f" {key} {_plain(source.metadata[key])}, but {spec.name} has {expected}",
                "name the environment that it was trained for",
            )


def _check_bounds(source: PolicyFile, spec: EnvSpec) -> None:
    """Raise an error if the file's action bounds differ from the environment's."""
    in_file, expected = source.bounds, spec.action.bounds
    if source.file.rescales and in_file != expected:
        how = f"rescales actions to {in_file}" if in_file else "doesn't rescale actions"
        raise UserError(
            f"{source.path} {how}, and {spec.name} "
            + (f"has them rescaled to {expected}" if expected else "takes them as they are"),
            "leave vec.rescale_actions out, and name the environment that it was trained for",
        )


def _check_sizes(source: PolicyFile, config: Config) -> None:
    """Raise an error if configured sizes differ from the tensors', before creating a policy."""
    for key, size in source.sizes.items():
        asked = str(attrgetter(key)(config))
        if size != asked:
            raise UserError(
                f"{source.path}: its tensors are of {key} {size}, not {asked}",
                f"leave {key} out; if the file says so itself, it is damaged",
            )


def _plain(text: str) -> str:
    """Return untrusted text for a message: shortened, with control characters escaped."""
    return text if text.isprintable() and len(text) < 80 else repr(text[:80])


def _refuse_classes(source: PolicyFile, config: Config) -> None:
    """Raise an error for a custom class that only the file names: it may be untrusted code."""
    for key, name in source.classes.items():
        if ":" not in str(attrgetter(key)(config)):
            raise UserError(
                f"{source.path} names a class of its own, {key} {_plain(name)}, which isn't"
                " imported only because a file says so",
                f"if it is yours: --{key} MODULE:CLASS",
            )
