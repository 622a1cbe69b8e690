"""What ``[sweep]`` says, as settings."""

import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from puffer_mlx.config.compatibility import closest
from puffer_mlx.config.values import BOOLS, parse_number, unquoted
from puffer_mlx.errors import UserError
from puffer_mlx.sweep.settings import (
    LINEAR,
    MAXIMIZE,
    MEAN,
    MEDIAN,
    METHODS,
    MINIMIZE,
    PERCENTILE,
    WORST,
    SweepSettings,
)

OLD_METRIC = "sweep.metric"  # the section that 3.0 had for metric and goal
ELSEWHERE = {  # keys of [sweep] that say nothing here: (when that is said, why)
    "use_gpu": "Gaussian processes are fitted on the CPU",
    "match_enemy_model_path": "there is no match of two policies yet",
    "match_num_games": "",
    "match_enemy_hidden_size": "",
    "match_enemy_num_layers": "",
}


def read_settings(
    sections: dict[str, dict[str, str]], notes: list[str], only: str = ""
) -> SweepSettings:
    """The settings of ``[sweep]``; what is odd in it goes to ``notes``.

    Raises:
        UserError: a value that none of its key's is.
    """
    given = {key: unquoted(text) for key, text in sections.get("sweep", {}).items()}
    _take_old_metric(sections.get(OLD_METRIC, {}), given, notes)
    _take_old_cost(given, notes)
    if only:
        given["sweep_only"] = only
    known = {field.name for field in fields(SweepSettings)}
    found: dict[str, Any] = {}
    for key, text in given.items():
        if key in known:
            found[key] = _READ.get(key, _read_plain)(key, text, notes)
        elif key not in ELSEWHERE:
            near = closest(key, sorted(known))
            notes.append(f"[sweep] {key} is no key of a sweep{f' ({near} is)' * bool(near)}")
        elif ELSEWHERE[key] and text and BOOLS.get(text.lower()) is None:
            notes.append(f"[sweep] {key} does nothing: {ELSEWHERE[key]}")
    return SweepSettings(**found)


def _take_old_metric(old: dict[str, str], given: dict[str, str], notes: list[str]) -> None:
    """3.0's ``[sweep.metric]`` with ``name`` and ``goal``, where ``[sweep]`` doesn't say them."""
    if not old:
        return
    for key, new in (("name", "metric"), ("goal", "goal")):
        if key in old:
            given.setdefault(new, unquoted(old[key]))
    notes.append(
        "[sweep.metric] is PufferLib 3.0's form, and is read as metric and goal of [sweep]"
    )


def _take_old_cost(given: dict[str, str], notes: list[str]) -> None:
    """``max_cost``, as some files call ``max_suggestion_cost``."""
    if (text := given.pop("max_cost", None)) is not None:
        given.setdefault("max_suggestion_cost", text)
        notes.append("[sweep] max_cost is no key of a sweep, and is read as max_suggestion_cost")


def method_named(text: str) -> str | None:
    """The method that a text means, also in small letters or with underscores; None: none."""
    plain = {name.lower(): name for name in METHODS}
    return plain.get(text.lower().replace("_", "").replace("-", ""))


def _read_method(key: str, text: str, notes: list[str]) -> str:
    name = method_named(text)
    if name is None:
        known = ", ".join(METHODS)
        notes.append(f"[sweep] {key} {text} does not exist, Protein is taken ({known})")
        return "Protein"
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


def _one_of(words: dict[str, str]) -> Callable[[str, str, list[str]], str]:
    def read(key: str, text: str, notes: list[str]) -> str:
        if text not in words:
            message = f"[sweep] {key} is {text!r}, and should be {' or '.join(words)}"
            raise UserError(message, f"{key} = {next(iter(words))}")
        return words[text]

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
_READ: dict[str, Callable[[str, str, list[str]], Any]] = {
    "method": _read_method,
    "metric": _read_metric,
    "metric_distribution": _one_of({LINEAR: LINEAR, PERCENTILE: PERCENTILE, "logit": PERCENTILE}),
    "goal": _one_of({MAXIMIZE: MAXIMIZE, MINIMIZE: MINIMIZE}),
    "sweep_only": _read_words,
    "target_score": _read_target,
    "seeds_score": _one_of({name: name for name in (MEAN, MEDIAN, WORST)}),
}
