"""Read the settings and the searched ranges of a sweep from a configuration's ``[sweep]`` sections.

PufferLib's files contain sections that its sweep can't use: unknown keys, values outside their
ranges, names older than 4.0. Each becomes a one-line note, and the sweep runs without it. Only a
sweep that can't run at all is an error.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from puffer_mlx.config import Config
from puffer_mlx.config.compatibility import RENAMES, UNUSED, closest
from puffer_mlx.config.fit import is_explicit
from puffer_mlx.config.key import Setting
from puffer_mlx.config.option_names import option
from puffer_mlx.config.schema import DECLARED, KEYS, METRIC_SECTION_OF_3
from puffer_mlx.config.validation import MAX_PROBLEMS
from puffer_mlx.config.values import BOOLS, parse_number, read_value, unquoted
from puffer_mlx.errors import UserError
from puffer_mlx.sweep import settings
from puffer_mlx.sweep.settings import METHODS, PROTEIN, SweepSettings
from puffer_mlx.sweep.space import AUTO_SCALE, DISTRIBUTIONS, TIMESTEPS, Parameter, Space
from puffer_mlx.tracking.scores import EVALUATION_PREFIX

RANGE_KEYS = ("distribution", "min", "max", "scale")
RANGE_EXAMPLE = {"distribution": "uniform", "min": "0.1", "max": "0.9"}
IGNORED_KEY = "mean"  # key of the ranges in PufferLib's files that is ignored without a note
UNUSED_KEYS = {  # keys of [sweep] without effect, with the reason for the note; "" without a note
    "use_gpu": "Gaussian processes are fitted on the CPU",
    "match_enemy_model_path": "a sweep can't score by matches of two policies",
    "match_num_games": "",
    "match_enemy_hidden_size": "",
    "match_enemy_num_layers": "",
}


class Sweep(NamedTuple):
    """A sweep as configured: settings and searched parameters.

    Args:
        settings: Settings of ``[sweep]``.
        space: Parameters of the ``[sweep.SECTION.KEY]`` sections.
        notes: Notes for the user, one sentence each.
    """

    settings: SweepSettings
    space: Space
    notes: list[str]


def read_sweep(config: Config) -> Sweep:
    """Read the sweep of a checked configuration: its ``[sweep]`` sections over the default ranges.

    Keys set on the command line are not searched, unless their range was set there too.

    Raises:
        UserError: If a range is empty, a distribution is unknown, no parameter is searched, or runs
            don't report the metric.
    """
    if config.metric.startswith(EVALUATION_PREFIX) and not config.base.eval_interval:
        raise UserError(
            f"sweep.metric {config.metric} needs evaluations while training, and base.eval_interval"
            " is 0",
            "for example --base.eval-interval 100_000, or sweep.metric score",
        )
    notes: list[str] = []
    sweep_settings = _read_settings(config, notes)
    texts, sections = _ranges(config, sweep_settings.searched_words, notes)
    fixed = [name for name in texts if _is_fixed(config, name, sections.get(name, name))]
    parameters = [
        _read_parameter(config, name, each, notes)
        for name, each in texts.items()
        if name not in fixed
    ]
    if not parameters:
        words = sweep_settings.searched_words
        condition = f" whose name contains {', '.join(words)}" if words else ""
        hint = "write a section [sweep.train.learning_rate], or another sweep_only"
        if fixed:
            condition = f": the command line sets {', '.join(fixed)}"
            hint = f"leave it out, or also set its range: {option('sweep', f'{fixed[0]}.min')}"
        raise UserError(f"there is no parameter to sweep{condition}", hint)
    for parameter in parameters:
        _note_range_problems(parameter, sections.get(parameter.name), notes)
    return Sweep(sweep_settings, Space(parameters), notes)


def describe_space(config: Config, sweep: Sweep) -> tuple[str, str]:
    """Return two lines to print when a sweep starts: the searched keys and the fixed keys."""
    space = sweep.space
    ranges = ", ".join(f"{p.name} {p.low:g} to {p.high:g}" for p in space.parameters)
    values = {name: config.value(name) for name in DECLARED if not name.startswith("base.")}
    values |= {f"env.{key}": value for key, value in config.env.items()}
    origins = {name: " (typed)" for name in values if is_explicit(config, name)}
    fixed_keys = dict.fromkeys(name for name in [*origins, TIMESTEPS] if name not in space.names)
    fixed = [f"{name} {values[name]}{origins.get(name, '')}" for name in fixed_keys]
    fixed.append("and all other keys as configured" if fixed else "all other keys, as configured")
    keys = "key" if len(space) == 1 else "keys"
    return f"searching {len(space)} {keys}: {ranges}", f"fixed: {', '.join(fixed)}"


def _range_texts(values: Sequence[str | float]) -> dict[str, str]:
    """Convert a key's range (``settings.Range``) to texts by key, as in a configuration file."""
    return dict(zip(RANGE_KEYS, map(str, values), strict=True))


# ---- [sweep] -------------------------------------------------------------------------------------


def _read_settings(config: Config, notes: list[str]) -> SweepSettings:
    """Read the settings of ``[sweep]``, and append a line per problem to ``notes``."""
    texts = {key: unquoted(text) for key, text in config.sweep.get("sweep", {}).items()}
    metric = texts.pop("metric", "")
    texts |= {"metric": config.metric, "goal": config.goal}
    if metric.startswith("environment/"):
        notes.append(f"[sweep] metric {metric} is PufferLib 3.0's name for {config.metric}")
    if METRIC_SECTION_OF_3 in config.sweep:
        notes.append(
            "[sweep.metric] is a section of PufferLib 3.0; it is read as metric and goal of [sweep]"
        )
    if (text := texts.pop("max_cost", None)) is not None:
        texts.setdefault("max_suggestion_cost", text)
        notes.append("[sweep] max_cost isn't a key of [sweep]; it is read as max_suggestion_cost")
    if texts.get("gpus") == "-1":  # "all" in PufferLib 5.0
        texts["gpus"] = "0"
    values: dict[str, Any] = {}
    for key, text in texts.items():
        if declared := settings.KEYS.get(key):
            values[key] = read_value(Setting("sweep", key, text, "[sweep]"), declared)
            if key != "sweep_only" and (problem := declared.problem(values[key])):
                raise UserError(f"sweep.{key} {problem[0]}", problem[1])
        elif key not in UNUSED_KEYS:
            near = closest(key, [*settings.KEYS]) if len(notes) < MAX_PROBLEMS else ""
            suggestion = f" ({near} is)" if near else ""
            notes.append(f"[sweep] {key} isn't a key of [sweep]{suggestion}")
        elif UNUSED_KEYS[key] and text and BOOLS.get(text.lower()) is None:
            notes.append(f"[sweep] {key} is unused: {UNUSED_KEYS[key]}")
    if "method" in values:
        values["method"] = _read_method(values["method"], notes)
    sweep_settings = SweepSettings(**values)
    if values.get("early_stop_quantile") and sweep_settings.method == PROTEIN:
        notes.append(
            "[sweep] early_stop_quantile is unused by Protein, which chooses how long runs train"
        )
    return sweep_settings


def find_method(text: str) -> str | None:
    """Find a search method by name, ignoring case, _ and -. Returns None for an unknown name."""
    by_plain_name = {name.lower(): name for name in METHODS}
    return by_plain_name.get(text.lower().replace("_", "").replace("-", ""))


def _read_method(text: str, notes: list[str]) -> str:
    """Return the search method with a name, or Protein for an unknown name, and add a note."""
    name = find_method(text)
    if name is None:
        methods = ", ".join(METHODS)
        notes.append(f"[sweep] method {text} doesn't exist; Protein is used (methods: {methods})")
    elif name != text:
        notes.append(f"[sweep] method {text} is read as {name}")
    return name or PROTEIN


# ---- [sweep.SECTION.KEY] -------------------------------------------------------------------------


def _ranges(
    config: Config, words: tuple[str, ...], notes: list[str]
) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Read the ranges of all swept keys as text, in the order of first mention.

    Args:
        config: The configuration.
        words: Words of ``sweep_only``; empty to read all ranges.
        notes: List to which a line per problematic section is added.

    Returns:
        Texts of each range, by our name of the key, also for fixed keys; and for ranges that a file
        or an option sets, the name of the section, which may be older than our name of the key.
    """
    optional = {
        name: _range_texts(values) for name, values in settings.optional_ranges(config).items()
    }
    texts = {name: _range_texts(values) for name, values in settings.default_ranges(config).items()}
    texts |= optional if words else {}
    sections: dict[str, str] = {}
    for section, keys in config.sweep.items():
        if section in ("sweep", METRIC_SECTION_OF_3):
            continue
        file_name = section.partition(".")[2]
        if name := _key_name(config, file_name, notes):
            texts[name] = {**texts.get(name, optional.get(name, {})), **keys}
            sections[name] = file_name
    searched = (name for name in texts if not words or any(word in name for word in words))
    return {name: texts[name] for name in searched}, sections


def _is_fixed(config: Config, name: str, section: str) -> bool:
    """Return True if the command line sets a key but not its range, so that it isn't searched."""
    ranges = (f"sweep.{section}.{key}" for key in RANGE_KEYS)
    return is_explicit(config, name) and not any(is_explicit(config, each) for each in ranges)


def _key_name(config: Config, file_name: str, notes: list[str]) -> str:
    """Return our name of the key that a section ``[sweep.FILE_NAME]`` searches.

    Returns "" if it can't be searched, and adds the reason to ``notes``.
    """
    renamed = RENAMES.get(file_name)
    name = f"{renamed.section}.{renamed.key}" if renamed and not renamed.off else file_name
    section, _, key = name.partition(".")
    declared = KEYS.get(section, {}).get(key)
    if section == "env":
        if key in config.env or (config.python and key):
            return name
        candidates = [f"env.{each}" for each in config.env]
    else:
        if declared and declared.kind in (int, float):
            return name
        candidates = [
            f"{each}.{name_in_section}"
            for each, keys in KEYS.items()
            for name_in_section, key_declared in keys.items()
            if key_declared.kind is not str
        ]
    if declared:
        reason = f"{name} isn't a number"
    elif file_name in UNUSED:
        reason = f"the key is unused ({UNUSED[file_name]})"
    else:
        near = closest(name, candidates) if len(notes) < MAX_PROBLEMS else ""  # takes a millisecond
        suggestion = f" (the nearest is {near})" if near else ""
        reason = f"the configuration has no {name}{suggestion}"
    notes.append(f"[sweep.{file_name}] is left out: {reason}")
    return ""


def _read_parameter(
    config: Config, name: str, texts: dict[str, str], notes: list[str]
) -> Parameter:
    """Read the searched parameter of one ``[sweep.SECTION.KEY]`` section.

    Raises:
        UserError: If the range is missing or empty, or the distribution is unknown.
    """
    location = f"[sweep.{name}]"
    if missing := [key for key in RANGE_KEYS[:3] if key not in texts]:
        hint = ", ".join(f"{key} = {RANGE_EXAMPLE[key]}" for key in missing)
        raise UserError(f"{location} has no {' and no '.join(missing)}", hint)
    for key in texts.keys() - {*RANGE_KEYS, IGNORED_KEY}:
        notes.append(f"{location} {key} isn't a key of a range; they are {', '.join(RANGE_KEYS)}")
    distribution_name = unquoted(texts["distribution"])
    if distribution_name not in DISTRIBUTIONS:
        near = closest(distribution_name, list(DISTRIBUTIONS))
        names = ", ".join(DISTRIBUTIONS)
        raise UserError(
            f"{location} distribution is {distribution_name!r}, not one of {names}",
            f"distribution = {near or 'uniform'}",
        )
    low, high = (_read_number(location, key, texts[key]) for key in ("min", "max"))
    section, _, key = name.partition(".")
    declared = KEYS.get(section, {}).get(key)
    distribution = DISTRIBUTIONS[distribution_name]
    integer = declared.kind is int if declared else distribution.rounds_values
    parameter = Parameter(section, key, distribution_name, low, high, integer=integer)
    if problem := _range_problem(parameter):
        raise UserError(f"{location} {problem[0]}", problem[1])
    value = config.env.get(key) if section == "env" else getattr(getattr(config, section), key)
    return replace(
        parameter,
        scale=_read_scale(location, unquoted(texts.get("scale", "auto")), parameter, notes),
        integer=integer or (distribution.rounds_positions and low.is_integer()),
        default=float(value) if isinstance(value, (int, float)) else None,
    )


def _read_number(location: str, key: str, text: str) -> float:
    """Read an end of a range, ``min`` or ``max``.

    Raises:
        UserError: If the text isn't a number.
    """
    number = parse_number(text)
    if number is None:
        raise UserError(f"{location} {key} is {text!r}, not a number", f"{key} = 0.5")
    return float(number)


def _range_problem(p: Parameter) -> tuple[str, str] | None:
    """Check the range of a searched parameter. Returns an error and a hint, or None if valid."""
    distribution = DISTRIBUTIONS[p.distribution]
    low = p.low
    high = p.high
    if not low < high:
        return f"min {low:g} is not below max {high:g}", "swap them, or widen the range"
    if low <= distribution.lower_bound:
        hint = "use a small positive number, or distribution = uniform"
        return f"min is {low:g}, and {p.distribution} needs a value above 0", hint
    if high >= distribution.upper_bound:
        hint = "use for example 0.9999, or distribution = uniform"
        return f"max is {high:g}, and {p.distribution} needs a value below 1", hint
    if not low <= p.to_value(-1) < p.to_value(1) <= high:
        kind = "powers of two" if distribution.rounds_positions else "whole numbers"
        return f"min {low:g} to max {high:g} contains fewer than two {kind}", "widen the range"
    return None


def _read_scale(location: str, text: str, p: Parameter, notes: list[str]) -> float:
    """Read a parameter's scale, half the width of its search box, from auto, time or a number.

    The unit of the scale is half the range, so 2 covers the entire range.
    """
    if text == "time" and p.distribution == "log_normal":
        return 1 / math.log2(p.high / p.low)  # a box from value / sqrt(2) to value * sqrt(2)
    if text in ("auto", "time"):
        if text == "time":
            notes.append(
                f"{location} scale time needs log_normal; for {p.distribution}, auto is used"
            )
        return AUTO_SCALE
    number = parse_number(text)
    if number is None or not 0 < number < math.inf:
        raise UserError(
            f"{location} scale is {text!r}, not auto, time or a number above 0", "scale = auto"
        )
    return float(number)


def _note_range_problems(p: Parameter, file_name: str | None, notes: list[str]) -> None:
    """Add a note for each problem of a range that doesn't prevent the sweep.

    The range may exclude the configured value, contain invalid values, or be rounded to integers.

    Args:
        p: The searched parameter.
        file_name: Name of its section in a file or an option; None for a default range.
        notes: List to which lines are added.
    """
    location = f"[sweep.{file_name or p.name}]"
    if p.default is not None and not p.low <= p.default <= p.high:
        suffix = "" if file_name else ", the default range"
        recorded = "" if p.recorded_default == p.default else f", shown as {p.recorded_default:g}"
        notes.append(
            f"{p.name} {p.default:g} is outside {location} {p.low:g} to {p.high:g}{suffix}:"
            f" only the first run uses it{recorded}"
        )
    declared = KEYS.get(p.section, {}).get(p.key)
    for end in (p.to_value(-1), p.to_value(1)):
        if declared and (problem := declared.problem(end if declared.kind is int else float(end))):
            notes.append(f"{location} {problem[0]}: runs with this value fail ({problem[1]})")
    if file_name and p.name != TIMESTEPS and p.integer and p.distribution == "uniform":
        notes.append(f"{location} is uniform, and {p.name} is an integer: values are rounded")
