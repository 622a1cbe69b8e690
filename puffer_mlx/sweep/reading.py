"""A configuration's ``[sweep]`` sections: settings and a space of parameters, and back.

PufferLib's own files have sections that its sweep stumbles over: keys that nothing has, values
outside their ranges, names of before 4.0. Each is one sentence for the person, and the sweep goes
on without it; only what leaves nothing sensible to do is an error.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from puffer_mlx.config import Config
from puffer_mlx.config.compatibility import RENAMES, UNUSED, closest
from puffer_mlx.config.schema import KEYS
from puffer_mlx.config.values import BOOLS, parse_number, unquoted
from puffer_mlx.errors import UserError
from puffer_mlx.sweep.default_ranges import default_ranges
from puffer_mlx.sweep.settings import (
    LINEAR,
    MAXIMIZE,
    MEAN,
    MEDIAN,
    METHODS,
    MINIMIZE,
    PERCENTILE,
    PROTEIN,
    WORST,
    SweepSettings,
)
from puffer_mlx.sweep.space import AUTO_SCALE, COST, DISTRIBUTIONS, Parameter, Space

OLD_METRIC = "sweep.metric"  # the section that 3.0 had for metric and goal
OF_A_RANGE = ("distribution", "min", "max", "scale")
UNREAD = "mean"  # of a range, in PufferLib's files
ELSEWHERE = {  # keys of [sweep] that say nothing here: (when that is said, why)
    "use_gpu": "Gaussian processes are fitted on the CPU",
    "match_enemy_model_path": "there is no match of two policies yet",
    "match_num_games": "",
    "match_enemy_hidden_size": "",
    "match_enemy_num_layers": "",
}
Read = Callable[[str, str, list[str]], Any]  # a key, its text, notes -> its value


class Sweep(NamedTuple):
    """What is to be swept, and how.

    Args:
        settings: of ``[sweep]``.
        space: of the ``[sweep.SECTION.KEY]``.
        notes: what is odd, a sentence each, for the person.
    """

    settings: SweepSettings
    space: Space
    notes: list[str]


def read_sweep(config: Config) -> Sweep:
    """What a checked configuration's ``[sweep]`` sections say, over PufferLib's default ranges.

    Raises:
        UserError: what can't be swept: an empty range, an unknown distribution, nothing at all.
    """
    notes: list[str] = []
    settings = _read_settings(config.sweep, notes)
    parameters = _read_parameters(config, settings.sweep_only, notes)
    if not parameters:
        words = f" whose name contains {', '.join(settings.sweep_only)}" * bool(settings.sweep_only)
        message = f"there is no parameter{words} to sweep"
        raise UserError(
            message, "write a section [sweep.train.learning_rate], or another sweep_only"
        )
    return Sweep(settings, Space(parameters), notes)


def sections(config: Config, space: Space) -> dict[str, dict[str, str]]:
    """[sweep] and all its sections, also of ranges that no file says: viewers look for them."""
    written = {"sweep": {}} | {name: dict(keys) for name, keys in config.sweep.items()}
    for name, spec in default_ranges(config).items():
        written.setdefault(f"sweep.{name}", _texts(spec))
    for p in space.parameters:
        keys = written.setdefault(f"sweep.{p.name}", {})
        for key, text in _texts((p.distribution, p.low, p.high, p.scale)).items():
            keys.setdefault(key, text)
    return written


def _texts(spec: Sequence[str | float]) -> dict[str, str]:
    """A range as an .ini file says it."""
    return dict(zip(OF_A_RANGE, map(str, spec), strict=True))


# ---- [sweep] -------------------------------------------------------------------------------------


def _read_settings(sections: dict[str, dict[str, str]], notes: list[str]) -> SweepSettings:
    """The settings of ``[sweep]``; what is odd in it goes to ``notes``."""
    given = {key: unquoted(text) for key, text in sections.get("sweep", {}).items()}
    if old := sections.get(OLD_METRIC):
        for key, name in (("metric", "name"), ("goal", "goal")):
            if name in old:
                given.setdefault(key, unquoted(old[name]))
        notes.append(
            "[sweep.metric] is PufferLib 3.0's form, and is read as metric and goal of [sweep]"
        )
    if (text := given.pop("max_cost", None)) is not None:
        given.setdefault("max_suggestion_cost", text)
        notes.append("[sweep] max_cost is no key of a sweep, and is read as max_suggestion_cost")
    known = {field.name for field in fields(SweepSettings)}
    values: dict[str, Any] = {}
    for key, text in given.items():
        if key in known:
            values[key] = _READ.get(key, _read_plain)(key, text, notes)
        elif key not in ELSEWHERE:
            near = closest(key, sorted(known))
            notes.append(f"[sweep] {key} is no key of a sweep{f' ({near} is)' * bool(near)}")
        elif ELSEWHERE[key] and text and BOOLS.get(text.lower()) is None:
            notes.append(f"[sweep] {key} does nothing: {ELSEWHERE[key]}")
    return SweepSettings(**values)


def method_named(text: str) -> str | None:
    """The method that a text means, also in small letters or with underscores; None: none."""
    plain = {name.lower(): name for name in METHODS}
    return plain.get(text.lower().replace("_", "").replace("-", ""))


def _read_method(key: str, text: str, notes: list[str]) -> str:
    name = method_named(text)
    if name is None:
        known = ", ".join(METHODS)
        notes.append(f"[sweep] {key} {text} does not exist, Protein is taken ({known})")
        return PROTEIN
    if name != text:
        notes.append(f"[sweep] {key} {text} is taken for {name}")
    return name


def _read_metric(key: str, text: str, notes: list[str]) -> str:
    """A record's name: of a text with / as it is, else of env/."""
    if text.startswith("environment/"):
        name = f"env/{text.partition('/')[2]}"
        notes.append(f"[sweep] {key} {text} is PufferLib 3.0's name of {name}")
        return name
    return text if "/" in text else f"env/{text}"


def _one_of(*words: str, **aliases: str) -> Read:
    def read(key: str, text: str, notes: list[str]) -> str:
        if text not in words and text not in aliases:
            message = f"[sweep] {key} is {text!r}, and should be {' or '.join([*words, *aliases])}"
            raise UserError(message, f"{key} = {words[0]}")
        return aliases.get(text, text)

    return read


def _read_target(key: str, text: str, notes: list[str]) -> float:
    number = math.inf if text == "none" else parse_number(text)
    if number is None or math.isnan(number):
        raise UserError(f"[sweep] {key} is {text!r}, not a number", f"{key} = none")
    return float(number)


def _read_words(key: str, text: str, notes: list[str]) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _read_plain(key: str, text: str, notes: list[str]) -> int | float | bool:
    """A number or a switch, of the type and in the range of its default."""
    default = getattr(SweepSettings, key)
    if isinstance(default, bool):
        if text.lower() not in BOOLS:
            raise UserError(f"[sweep] {key} is {text!r}, neither true nor false", "true or false")
        return BOOLS[text.lower()]
    number = parse_number(text)
    if key == "gpus" and number == -1:  # 5.0's word for all of them
        number = 0
    least, most = _LIMITS.get(key, (1, float("inf")))
    whole = isinstance(default, int)
    if number is None or not least <= number <= most or (whole and number != int(number)):
        kind = "a whole number" if whole else "a number"
        limits = f"from {least:g} to {most:g}" if most < float("inf") else f"of at least {least:g}"
        raise UserError(f"[sweep] {key} is {text!r}, not {kind} {limits}", f"{key} = {default}")
    return type(default)(number)


_LIMITS = {
    "early_stop_quantile": (0, 0.99),
    "gpus": (0, float("inf")),
    "max_suggestion_cost": (1e-9, float("inf")),
    "num_random_samples": (0, float("inf")),
    "num_keep_top_obs": (0, float("inf")),
    "gp_max_obs": (10, float("inf")),
    "exploration": (-1, 100),
}
_READ: dict[str, Read] = {
    "method": _read_method,
    "metric": _read_metric,
    "metric_distribution": _one_of(LINEAR, PERCENTILE, logit=PERCENTILE),
    "goal": _one_of(MAXIMIZE, MINIMIZE),
    "sweep_only": _read_words,
    "target_score": _read_target,
    "seeds_score": _one_of(MEAN, MEDIAN, WORST),
}


# ---- [sweep.SECTION.KEY] -------------------------------------------------------------------------


def _read_parameters(config: Config, only: tuple[str, ...], notes: list[str]) -> list[Parameter]:
    """The parameters in the order of their names' first mention; odd ones go to ``notes``."""
    texts = {name: _texts(spec) for name, spec in default_ranges(config).items()}
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
    if missing := [key for key in OF_A_RANGE[:3] if key not in texts]:
        example = {"distribution": "uniform", "min": "0.1", "max": "0.9"}
        hint = ", ".join(f"{key} = {example[key]}" for key in missing)
        raise UserError(f"{where} has no {' and no '.join(missing)}", hint)
    for key in texts.keys() - {*OF_A_RANGE, UNREAD}:
        notes.append(f"{where} {key} is no key of a range ({', '.join(OF_A_RANGE)} are)")
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
