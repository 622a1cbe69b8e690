"""What each ``[sweep.SECTION.KEY]`` says, as parameters, over PufferLib's default ranges."""

import math

from puffer_mlx.config import Config
from puffer_mlx.config.compatibility import RENAMES, UNUSED, closest
from puffer_mlx.config.schema import KEYS
from puffer_mlx.config.values import parse_number, unquoted
from puffer_mlx.errors import UserError
from puffer_mlx.sweep.default_ranges import default_ranges
from puffer_mlx.sweep.reading.of_settings import OLD_METRIC
from puffer_mlx.sweep.space import AUTO_SCALE, COST, DISTRIBUTIONS, Parameter

OF_A_PARAMETER = ("distribution", "min", "max", "scale", "mean")  # nobody reads ``mean``


def read_parameters(config: Config, only: tuple[str, ...], notes: list[str]) -> list[Parameter]:
    """The parameters in the order of their names' first mention; odd ones go to ``notes``."""
    texts: dict[str, dict[str, str]] = {
        name: dict(zip(OF_A_PARAMETER, map(str, spec), strict=False))
        for name, spec in default_ranges(config).items()
    }
    written: dict[str, str] = {}  # a parameter's name here -> its section in the file
    for section, keys in config.sweep.items():
        if section in ("sweep", OLD_METRIC):
            continue
        given = section.partition(".")[2]
        if name := _our_name(config, given, notes):
            texts[name] = {**texts.get(name, {}), **keys}
            written[name] = given
    chosen = [name for name in texts if not only or any(word in name for word in only)]
    parameters = [_read_parameter(config, name, texts[name], notes) for name in chosen]
    for parameter in parameters:
        _note_default(parameter, written, notes)
    return parameters


def _our_name(config: Config, given: str, notes: list[str]) -> str:
    """The key that ``[sweep.GIVEN]`` sweeps, by its name here; empty, and a note, if it is none."""
    renamed = RENAMES.get(given)
    name = f"{renamed.section}.{renamed.key}" if renamed and not renamed.off else given
    section, _, key = name.partition(".")
    if section == "env":
        if key in config.env or (config.python and key):
            return name
        known = [f"env.{each}" for each in config.env]
    else:
        declared = KEYS.get(section, {}).get(key)
        if declared and declared.kind in (int, float):
            return name
        known = [
            f"{s}.{k}" for s, keys in KEYS.items() for k, d in keys.items() if d.kind is not str
        ]
        if declared:
            notes.append(f"[sweep.{given}] is left out: {name} is no number")
            return ""
    if given in UNUSED:
        notes.append(f"[sweep.{given}] is left out: the key does nothing here ({UNUSED[given]})")
        return ""
    near = closest(name, known)
    hint = f" (the nearest is {near})" if near else ""
    notes.append(f"[sweep.{given}] is left out: the configuration has no {name}{hint}")
    return ""


def _read_parameter(
    config: Config, name: str, texts: dict[str, str], notes: list[str]
) -> Parameter:
    """One parameter.

    Raises:
        UserError: no range, one without values, or a distribution that there isn't.
    """
    where = f"[sweep.{name}]"
    if missing := [key for key in OF_A_PARAMETER[:3] if key not in texts]:
        example = {"distribution": "uniform", "min": "0.1", "max": "0.9"}
        hint = ", ".join(f"{key} = {example[key]}" for key in missing)
        raise UserError(f"{where} has no {' and no '.join(missing)}", hint)
    for key in texts.keys() - set(OF_A_PARAMETER):
        notes.append(f"{where} {key} is no key of a range ({', '.join(OF_A_PARAMETER[:4])} are)")
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
    whole = declared.kind is int if declared else DISTRIBUTIONS[distribution].rounds_values
    _check_range(where, distribution, low, high, whole)
    value = config.env.get(key) if section == "env" else getattr(getattr(config, section), key)
    return Parameter(
        section,
        key,
        distribution,
        low,
        high,
        _read_scale(where, unquoted(texts.get("scale", "auto")), distribution, low, high, notes),
        whole or (distribution == "uniform_pow2" and low.is_integer()),
        float(value) if isinstance(value, (int, float)) else None,
    )


def _number(where: str, key: str, text: str) -> float:
    number = parse_number(text)
    if number is None:
        raise UserError(f"{where} {key} is {text!r}, not a number", f"{key} = 0.5")
    return float(number)


def _check_range(where: str, distribution: str, low: float, high: float, whole: bool) -> None:
    """Refuse a range without values.

    Raises:
        UserError: it has none, or its distribution doesn't know its ends.
    """
    shape = DISTRIBUTIONS[distribution]
    if not low < high:
        raise UserError(f"{where} min {low:g} is not below max {high:g}", "exchange them, or widen")
    if low <= shape.above:
        hint = "a small number, or distribution = uniform"
        raise UserError(f"{where} min is {low:g}, and {distribution} needs one above 0", hint)
    if high >= shape.below:
        hint = "0.9999, or distribution = uniform"
        raise UserError(f"{where} max is {high:g}, and {distribution} needs one below 1", hint)
    ends = [Parameter("", "", distribution, low, high, whole=whole).to_value(z) for z in (-1, 1)]
    if not low <= ends[0] < ends[1] <= high:
        kind = "powers of two" if shape.rounds_places else "whole numbers"
        raise UserError(f"{where} min {low:g} to max {high:g} has no two {kind}", "widen it")


def _read_scale(
    where: str, text: str, distribution: str, low: float, high: float, notes: list[str]
) -> float:
    """Half the width of the box around a good value: ``auto``, ``time`` or a number."""
    if text == "auto":
        return AUTO_SCALE
    if text == "time" and distribution == "log_normal":
        return 1 / math.log2(high / low)  # the root of two to each side
    if text == "time":
        notes.append(f"{where} scale time is for log_normal; with {distribution} it is auto")
        return AUTO_SCALE
    number = parse_number(text)
    if number is None or not 0 < number < float("inf"):
        raise UserError(f"{where} scale is {text!r}, not auto, time or above 0", "scale = auto")
    return float(number)


def _note_default(parameter: Parameter, written: dict[str, str], notes: list[str]) -> None:
    """Say what of the configuration's own values and ranges don't fit one another."""
    where = f"[sweep.{written.get(parameter.name, parameter.name)}]"
    value, low, high = parameter.default, parameter.low, parameter.high
    if value is not None and not low <= value <= high:
        usual = "" if parameter.name in written else ", PufferLib's default"
        notes.append(
            f"{parameter.name} {value:g} is outside of {where} {low:g} to {high:g}{usual}:"
            " the first run has it, later ones don't"
        )
    declared = KEYS.get(parameter.section, {}).get(parameter.key)
    for unit in (-1, 1):
        end = parameter.to_value(unit)
        if declared and (fault := declared.fault(end if declared.kind is int else float(end))):
            notes.append(f"{where} {fault[0]}: runs with it fail ({fault[1]})")
    rounded = parameter.name in written and parameter.name != COST and parameter.whole
    if rounded and parameter.distribution == "uniform":
        notes.append(f"{where} is uniform, and {parameter.name} is a whole number: it is rounded")
