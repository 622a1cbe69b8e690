"""Read a configuration's ``[sweep]`` sections as settings and a space.

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
from puffer_mlx.config.schema import DECLARED, KEYS, OLD_METRIC_SECTION
from puffer_mlx.config.validation import MAX_PROBLEMS
from puffer_mlx.config.values import BOOLS, parse_number, read_value, unquoted
from puffer_mlx.errors import UserError
from puffer_mlx.sweep import settings
from puffer_mlx.sweep.settings import METHODS, PROTEIN, SweepSettings
from puffer_mlx.sweep.space import AUTO_SCALE, COST, DISTRIBUTIONS, Parameter, Space
from puffer_mlx.tracking.scores import EVALUATION

OF_A_RANGE = ("distribution", "min", "max", "scale")
EXAMPLE = {"distribution": "uniform", "min": "0.1", "max": "0.9"}
UNREAD = "mean"  # key of a range in PufferLib's files that is ignored
ELSEWHERE = {  # keys of [sweep] without effect, with the reason to print if one is set
    "use_gpu": "Gaussian processes are fitted on the CPU",
    "match_enemy_model_path": "there is no match of two policies yet",
    "match_num_games": "",
    "match_enemy_hidden_size": "",
    "match_enemy_num_layers": "",
}


class Sweep(NamedTuple):
    """A sweep as configured.

    Args:
        settings: Settings of ``[sweep]``.
        space: Parameters of the ``[sweep.SECTION.KEY]`` sections.
        notes: Notes for the user, one sentence each.
    """

    settings: SweepSettings
    space: Space
    notes: list[str]


def read_sweep(config: Config) -> Sweep:
    """Return the sweep of a checked configuration: its ``[sweep]`` over the default ranges.

    Keys set on the command line are not searched, unless their range was set there too.

    Raises:
        UserError: If a range is empty, a distribution is unknown, no parameter is searched, or runs
            don't report the metric.
    """
    if config.metric.startswith(EVALUATION) and not config.base.eval_interval:
        raise UserError(
            f"sweep.metric {config.metric} is of evaluations while training, and there are none",
            "base.eval_interval 100_000, say, or sweep.metric score",
        )
    notes: list[str] = []
    how = _read_settings(config, notes)
    texts, sections = _ranges(config, how.words, notes)
    fixed = [name for name in texts if _is_fixed(config, name, sections.get(name, name))]
    parameters = [
        _read_parameter(config, name, each, notes)
        for name, each in texts.items()
        if name not in fixed
    ]
    if not parameters:
        named = f" whose name contains {', '.join(how.words)}" if how.words else ""
        hint = "write a section [sweep.train.learning_rate], or another sweep_only"
        if fixed:
            named = f": {', '.join(fixed)} {'is' if len(fixed) == 1 else 'are'} typed"
            hint = f"leave it out, or type its range: {option('sweep', f'{fixed[0]}.min')}"
        raise UserError(f"there is no parameter{named} to sweep", hint)
    for parameter in parameters:
        _note_default(parameter, sections.get(parameter.name), notes)
    return Sweep(how, Space(parameters), notes)


def description(config: Config, sweep: Sweep) -> tuple[str, str]:
    """Return two lines for the start of a sweep: searched and fixed keys."""
    space = sweep.space
    ranges = ", ".join(f"{p.name} {p.low:g} to {p.high:g}" for p in space.parameters)
    values = {name: config.value(name) for name in DECLARED if not name.startswith("base.")}
    values |= {f"env.{key}": value for key, value in config.env.items()}
    given = {name: " (typed)" for name in values if is_explicit(config, name)}
    shown = {name: given.get(name, "") for name in [*given, COST] if name not in space.names}
    words = [f"{name} {values[name]}{how}" for name, how in shown.items()]
    rest = "and all other keys as configured" if words else "all other keys, as configured"
    keys = "key" if len(space) == 1 else "keys"
    return f"searching {len(space)} {keys}: {ranges}", f"fixed: {', '.join([*words, rest])}"


def _texts(spec: Sequence[str | float]) -> dict[str, str]:
    """Return the keys and values of a range as text."""
    return dict(zip(OF_A_RANGE, map(str, spec), strict=True))


# ---- [sweep] -------------------------------------------------------------------------------------


def _read_settings(config: Config, notes: list[str]) -> SweepSettings:
    """Return the settings of ``[sweep]``, and add problems to ``notes``."""
    texts = {key: unquoted(text) for key, text in config.sweep.get("sweep", {}).items()}
    metric = texts.pop("metric", "")
    texts |= {"metric": config.metric, "goal": config.goal}
    if metric.startswith("environment/"):
        notes.append(f"[sweep] metric {metric} is PufferLib 3.0's name of {config.metric}")
    if OLD_METRIC_SECTION in config.sweep:
        notes.append(
            "[sweep.metric] is PufferLib 3.0's form, and is read as metric and goal of [sweep]"
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
            if key != "sweep_only" and (fault := declared.problem(values[key])):
                raise UserError(f"sweep.{key} {fault[0]}", fault[1])
        elif key not in ELSEWHERE:
            near = closest(key, [*settings.KEYS]) if len(notes) < MAX_PROBLEMS else ""
            notes.append(f"[sweep] {key} isn't a key of [sweep]{f' ({near} is)' * bool(near)}")
        elif ELSEWHERE[key] and text and BOOLS.get(text.lower()) is None:
            notes.append(f"[sweep] {key} does nothing: {ELSEWHERE[key]}")
    if "method" in values:
        values["method"] = _known_method(values["method"], notes)
    how = SweepSettings(**values)
    if values.get("early_stop_quantile") and how.method == PROTEIN:
        notes.append(
            "[sweep] early_stop_quantile is unused by Protein, which chooses the lengths of runs"
        )
    return how


def method_named(text: str) -> str | None:
    """Return the method with a name, ignoring case, underscores and hyphens, or None."""
    plain = {name.lower(): name for name in METHODS}
    return plain.get(text.lower().replace("_", "").replace("-", ""))


def _known_method(text: str, notes: list[str]) -> str:
    name = method_named(text)
    if name is None:
        known = ", ".join(METHODS)
        notes.append(f"[sweep] method {text} doesn't exist; Protein is used ({known})")
    elif name != text:
        notes.append(f"[sweep] method {text} is read as {name}")
    return name or PROTEIN


# ---- [sweep.SECTION.KEY] -------------------------------------------------------------------------


def _ranges(
    config: Config, only: tuple[str, ...], notes: list[str]
) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Return the ranges as text, in the order of first mention, fixed keys included.

    Args:
        config: The configuration.
        only: Words of ``sweep_only``.
        notes: List to which a line per problematic section is added.

    Returns:
        Texts of the ranges by our key names, and for ranges from a file or an option the section's
        name there, which may differ.
    """
    further = {name: _texts(spec) for name, spec in settings.further_ranges(config).items()}
    texts = {name: _texts(spec) for name, spec in settings.default_ranges(config).items()}
    texts |= further if only else {}
    sections: dict[str, str] = {}
    for section, keys in config.sweep.items():
        if section in ("sweep", OLD_METRIC_SECTION):
            continue
        file_name = section.partition(".")[2]
        if name := _our_name(config, file_name, notes):
            texts[name] = {**texts.get(name, further.get(name, {})), **keys}
            sections[name] = file_name
    chosen = (name for name in texts if not only or any(word in name for word in only))
    return {name: texts[name] for name in chosen}, sections


def _is_fixed(config: Config, name: str, section: str) -> bool:
    """Return True if a key was set on the command line, and no part of its range was."""
    ranges = (f"sweep.{section}.{key}" for key in OF_A_RANGE)
    return is_explicit(config, name) and not any(is_explicit(config, each) for each in ranges)


def _our_name(config: Config, file_name: str, notes: list[str]) -> str:
    """Return our name of the key of ``[sweep.FILE_NAME]``; "" with a note if it can't be swept."""
    renamed = RENAMES.get(file_name)
    name = f"{renamed.section}.{renamed.key}" if renamed and not renamed.off else file_name
    section, _, key = name.partition(".")
    declared = KEYS.get(section, {}).get(key)
    if section == "env":
        if key in config.env or (config.python and key):
            return name
        known = [f"env.{each}" for each in config.env]
    else:
        if declared and declared.kind in (int, float):
            return name
        known = [
            f"{s}.{k}" for s, keys in KEYS.items() for k, d in keys.items() if d.kind is not str
        ]
    if declared:
        why = f"{name} is no number"
    elif file_name in UNUSED:
        why = f"the key does nothing here ({UNUSED[file_name]})"
    else:
        near = closest(name, known) if len(notes) < MAX_PROBLEMS else ""  # takes a millisecond
        why = f"the configuration has no {name}{f' (the nearest is {near})' * bool(near)}"
    notes.append(f"[sweep.{file_name}] is left out: {why}")
    return ""


def _read_parameter(
    config: Config, name: str, texts: dict[str, str], notes: list[str]
) -> Parameter:
    """Return one parameter.

    Raises:
        UserError: If the range is missing or empty, or the distribution is unknown.
    """
    where = f"[sweep.{name}]"
    if missing := [key for key in OF_A_RANGE[:3] if key not in texts]:
        hint = ", ".join(f"{key} = {EXAMPLE[key]}" for key in missing)
        raise UserError(f"{where} has no {' and no '.join(missing)}", hint)
    for key in texts.keys() - {*OF_A_RANGE, UNREAD}:
        notes.append(f"{where} {key} isn't a key of a range ({', '.join(OF_A_RANGE)} are)")
    distribution = unquoted(texts["distribution"])
    if distribution not in DISTRIBUTIONS:
        near = closest(distribution, list(DISTRIBUTIONS))
        raise UserError(
            f"{where} distribution is {distribution!r}, and should be {', '.join(DISTRIBUTIONS)}",
            f"distribution = {near or 'uniform'}",
        )
    low, high = (_number(where, key, texts[key]) for key in ("min", "max"))
    section, _, key = name.partition(".")
    declared = KEYS.get(section, {}).get(key)
    shape = DISTRIBUTIONS[distribution]
    whole = declared.kind is int if declared else shape.rounds_values
    plain = Parameter(section, key, distribution, low, high, whole=whole)
    if fault := _fault_of_range(plain):
        raise UserError(f"{where} {fault[0]}", fault[1])
    value = config.env.get(key) if section == "env" else getattr(getattr(config, section), key)
    return replace(
        plain,
        scale=_read_scale(where, unquoted(texts.get("scale", "auto")), plain, notes),
        whole=whole or (shape.rounds_places and low.is_integer()),
        default=float(value) if isinstance(value, (int, float)) else None,
    )


def _number(where: str, key: str, text: str) -> float:
    number = parse_number(text)
    if number is None:
        raise UserError(f"{where} {key} is {text!r}, not a number", f"{key} = 0.5")
    return float(number)


def _fault_of_range(p: Parameter) -> tuple[str, str] | None:
    """Return the problem of a range and a hint, or None for a valid range."""
    shape = DISTRIBUTIONS[p.distribution]
    low = p.low
    high = p.high
    if not low < high:
        return f"min {low:g} is not below max {high:g}", "exchange them, or widen"
    if low <= shape.above:
        hint = "a small number, or distribution = uniform"
        return f"min is {low:g}, and {p.distribution} needs one above 0", hint
    if high >= shape.below:
        hint = "0.9999, or distribution = uniform"
        return f"max is {high:g}, and {p.distribution} needs one below 1", hint
    if not low <= p.to_value(-1) < p.to_value(1) <= high:
        kind = "powers of two" if shape.rounds_places else "whole numbers"
        return f"min {low:g} to max {high:g} has no two {kind}", "widen it"
    return None


def _read_scale(where: str, text: str, p: Parameter, notes: list[str]) -> float:
    """Return the scale, half the width of the search box, from ``auto``, ``time`` or a number."""
    if text == "time" and p.distribution == "log_normal":
        return 1 / math.log2(p.high / p.low)  # a factor of the square root of two in each direction
    if text in ("auto", "time"):
        if text == "time":
            notes.append(f"{where} scale time is for log_normal; with {p.distribution} it is auto")
        return AUTO_SCALE
    number = parse_number(text)
    if number is None or not 0 < number < math.inf:
        raise UserError(f"{where} scale is {text!r}, not auto, time or above 0", "scale = auto")
    return float(number)


def _note_default(p: Parameter, file_name: str | None, notes: list[str]) -> None:
    """Add a note if a range excludes the configured value, or has illegal ends.

    Args:
        p: The parameter.
        file_name: Name of its section in a file or an option; None for a default range.
        notes: List to which lines are added.
    """
    where = f"[sweep.{file_name or p.name}]"
    if p.default is not None and not p.low <= p.default <= p.high:
        usual = "" if file_name else ", the default"
        shown = "" if p.recorded_default == p.default else f", shown as {p.recorded_default:g}"
        notes.append(
            f"{p.name} {p.default:g} is outside of {where} {p.low:g} to {p.high:g}{usual}:"
            f" the first run has it{shown}, later ones don't"
        )
    declared = KEYS.get(p.section, {}).get(p.key)
    for end in (p.to_value(-1), p.to_value(1)):
        if declared and (fault := declared.problem(end if declared.kind is int else float(end))):
            notes.append(f"{where} {fault[0]}: runs with it fail ({fault[1]})")
    if file_name and p.name != COST and p.whole and p.distribution == "uniform":
        notes.append(f"{where} is uniform, and {p.name} is a whole number: it is rounded")
