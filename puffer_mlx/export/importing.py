"""Import policies from files of other programs or of puffer_mlx.

Each format infers the policy's settings from its files, such as the weight layout
(``policy.dialect``). The command line overrides them: a policy is converted to the requested weight
layout, and wrong sizes are an error. A file can't set other configuration keys. Custom classes that
it names aren't imported.
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
from puffer_mlx.config.memory_needs import refuse_large_file
from puffer_mlx.errors import UserError
from puffer_mlx.export import formats
from puffer_mlx.export.file_format import FileFormat, PolicyFile
from puffer_mlx.export.parity import Comparison, compare_outputs, random_observations
from puffer_mlx.export.weight_layouts import layout_of, to_layout
from puffer_mlx.policy.policy import Policy, configured_policy
from puffer_mlx.spec import EnvSpec
from puffer_mlx.system.files import open_file, report_read_errors

Weights = Any
OUTPUT_TOLERANCE = 1e-5  # relative to an output's scale
HEAD_BYTES = 64  # bytes that identify a format


def read_any_policy_file(path: Path) -> PolicyFile:
    """Read a policy file of any format, and the normalization statistics next to it.

    The format is detected from the file's first bytes, or else its suffix.

    Raises:
        UserError: If the file can't be read, or holds an unknown policy.
    """
    with report_read_errors(path, "check the path"):
        with open_file(path) as file:
            head = file.read(HEAD_BYTES)
            refuse_large_file(path, os.fstat(file.fileno()).st_size)
        source = read_policy_file(path, formats.detect_format(path, head))
    source.statistics_inside = bool(source.statistics)
    source.statistics = source.statistics or environment_statistics.read_statistics(path)
    if normalization.normalises(source.statistics):
        source.settings[NORMALIZE_KEY] = "True"
    if source.bounds:
        source.settings[RESCALE_KEY] = "True"
    return source


def read_policy_file(path: Path, file: FileFormat) -> PolicyFile:
    """Read a policy file of a known format, and separate statistics and bounds from its tensors.

    Raises:
        UserError: If the file, its statistics or its bounds are damaged.
        OSError: If the file can't be read.
    """
    source = file.read(path)
    source.tensors, source.statistics = normalization.split_statistics(path, source.tensors)
    source.tensors, source.bounds = rescaling.split_bounds(path, source.tensors)
    return source


def convert_weights(source: PolicyFile, spec: EnvSpec, config: Config) -> tuple[Policy, Weights]:
    """Convert a file's policy and its weights to the configured weight layout.

    Args:
        source: The file.
        spec: Spec of the environment that the policy will play.
        config: Effective configuration, including the file's settings.

    Returns:
        The policy and its weights.

    Raises:
        UserError: If the policy belongs to another environment or configuration, or can't have the
            configured weight layout.
    """
    _refuse_custom_classes(source, config)
    _check_spec(source, spec)
    _check_sizes(source, config)
    normalization.check_size(source.path, source.statistics, spec)
    _check_bounds(source, spec)
    layout = source.file.weight_layout(source, config.policy.dialect)
    file_config = replace(config, policy=replace(config.policy, dialect=layout))
    policy = configured_policy(spec, file_config)
    return to_layout(policy, source.file.weights(source, policy), config.policy.dialect)


def compare_with_file(
    source: PolicyFile, policy: Policy, weights: Weights, spec: EnvSpec
) -> Comparison | None:
    """Compare an imported policy's outputs with those of its file, on random observations.

    Returns:
        Result of ``compare_outputs``; None for formats that only puffer_mlx runs.
    """
    if not source.file.external:
        return None
    statistics = source.statistics if source.statistics_inside else {}
    observations = random_observations(spec, statistics)
    layout = source.settings.get("policy.dialect", layout_of(policy))
    file_policy, _ = to_layout(policy, weights, layout)
    outputs = source.file.run(replace(source, statistics=statistics), file_policy, observations)
    return compare_outputs(policy, weights, observations, statistics, outputs, OUTPUT_TOLERANCE)


def _check_spec(source: PolicyFile, spec: EnvSpec) -> None:
    """Raise an error if a policy file's metadata describes another environment."""
    for key, expected in (
        ("observation_size", spec.observation_size),
        ("observation_shape", list(spec.observation_shape)),
        ("actions", list(spec.action.sizes)),
    ):
        if source.metadata.get(key, json.dumps(expected)) != json.dumps(expected):
            raise UserError(
                f"{source.path} is a policy for"
                f" {_escape_untrusted(source.metadata.get('env', 'another environment'))}:"
                f" {key} {_escape_untrusted(source.metadata[key])}, but {spec.name} has {expected}",
                "name the environment that it was trained for",
            )


def _check_bounds(source: PolicyFile, spec: EnvSpec) -> None:
    """Raise an error if a policy file's action bounds differ from the environment's."""
    file_bounds = source.bounds
    expected = spec.action.bounds
    if source.file.rescales and file_bounds != expected:
        behaviour = (
            f"rescales actions to {file_bounds}" if file_bounds else "doesn't rescale actions"
        )
        raise UserError(
            f"{source.path} {behaviour}, and {spec.name} "
            + (f"needs them rescaled to {expected}" if expected else "needs them unchanged"),
            "leave out vec.rescale_actions, and name the environment of the policy's training",
        )


def _check_sizes(source: PolicyFile, config: Config) -> None:
    """Raise an error if a policy file's tensors don't have the configured sizes."""
    for key, size in source.sizes.items():
        configured = str(attrgetter(key)(config))
        if size != configured:
            raise UserError(
                f"{source.path}: its tensors have {key} {size}, not {configured}",
                f"leave out {key}; if the file contains this value, it is damaged",
            )


def _escape_untrusted(text: str) -> str:
    """Make untrusted text safe for a message: shorten it and escape control characters."""
    return text if text.isprintable() and len(text) < 80 else repr(text[:80])


def _refuse_custom_classes(source: PolicyFile, config: Config) -> None:
    """Raise an error if a policy file names a custom class that the user didn't request.

    Importing the class could run untrusted code.
    """
    for key, name in source.classes.items():
        if ":" not in str(attrgetter(key)(config)):
            raise UserError(
                f"{source.path} names a custom class, {key} {_escape_untrusted(name)}, which isn't"
                " imported unless you request it",
                f"if you trust the class: --{key} MODULE:CLASS",
            )
