"""A sweep's study is begun, or found again and compared with what is asked for now."""

import contextlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage

from puffer_mlx.config import Config, to_dict
from puffer_mlx.errors import UserError
from puffer_mlx.sweep.engine.study import DEFAULT, GIVEN, Study, quiet
from puffer_mlx.sweep.fit import Values
from puffer_mlx.sweep.settings import SweepSettings
from puffer_mlx.sweep.space import Space

ABOUT = "puffer_mlx"  # the study's attribute that says what is swept
MAY_DIFFER = {  # from one process of a sweep to another
    *("base.device", "base.checkpoint_dir", "base.log_dir", "base.log_format", "base.profile"),
    *("base.track", "base.wandb", "base.wandb_project", "base.wandb_group", "base.tag"),
    *("vec.num_threads", "vec.max_threads", "base.checkpoint_interval", "base.checkpoint_keep"),
}


class Asked(NamedTuple):
    """A sweep that is to be begun, or gone on with.

    Args:
        name: the study's.
        space: what is swept.
        settings: how.
        about: what it is about, as ``described``.
        sampler: of its runs.
        given: whose values the first runs after the configuration's own have: a file's name, and
            its values of what is swept.
    """

    name: str
    space: Space
    settings: SweepSettings
    about: Mapping[str, Any]
    sampler: BaseSampler
    given: Mapping[str, Values] = {}


def open_study(storage: BaseStorage, asked: Asked) -> Study:
    """The study of that name, begun if it isn't there; errors as of the two below."""
    if about(storage, asked.name) is None:
        with contextlib.suppress(optuna.exceptions.DuplicatedStudyError):
            return begin(storage, asked)
    return go_on(storage, asked)  # another process may have begun it just now


def begin(storage: BaseStorage, asked: Asked) -> Study:
    """A new study, whose first run has the configuration's own values.

    Raises:
        optuna.exceptions.DuplicatedStudyError: there is one of this name.
    """
    goal = "maximize" if asked.settings.sign > 0 else "minimize"
    with quiet():
        study = optuna.create_study(
            storage=storage,
            study_name=asked.name,
            directions=[goal, "minimize"],
            sampler=asked.sampler,
        )
        study.set_metric_names(["score", "cost"])
        defaults = {p.name: p.default for p in asked.space.parameters if p.default is not None}
        study.enqueue_trial(defaults, user_attrs={DEFAULT: True})
        for name, values in asked.given.items():
            study.enqueue_trial(values, user_attrs={GIVEN: name})
        study.set_user_attr(ABOUT, json.dumps(asked.about))
    return Study(study, asked.space, asked.settings)


def go_on(storage: BaseStorage, asked: Asked) -> Study:
    """A study that is there.

    Raises:
        UserError: it is about something else.
    """
    if line := difference(about(storage, asked.name) or {}, asked.about):
        hint = "go on with the options it began with, or begin another one with another --name"
        raise UserError(f"the sweep {asked.name} is about something else: {line}", hint)
    with quiet():
        study = optuna.load_study(storage=storage, study_name=asked.name, sampler=asked.sampler)
    return Study(study, asked.space, asked.settings)


def described(space: Space, settings: SweepSettings, config: Config) -> dict[str, Any]:
    """What has to be the same for trials to be of one sweep, by names for messages."""
    plain = to_dict(config)
    made: dict[str, Any] = {"env": config.env_name, "source": Path(plain["source"]).name}
    made |= {"sweep.metric": settings.metric, "sweep.goal": settings.goal}
    made["what is swept"] = ", ".join(space.names)
    for p in space.parameters:
        made[f"the range of {p.name}"] = f"{p.distribution} {p.low:g} to {p.high:g}"
    for section in ("base", "vec", "wrap", "policy", "torch", "train", "selfplay", "env"):
        for key, value in plain[section].items():
            name = f"{section}.{key}"
            if name not in MAY_DIFFER and name not in space.names:
                made[name] = value
    return made


def about(storage: BaseStorage, name: str, patience: float = 10.0) -> dict[str, Any] | None:
    """What a study that is there is about; None if there is none of this name.

    Args:
        storage: where it is.
        name: the study's.
        patience: seconds that another process may take to say so after it has begun it.

    Raises:
        UserError: it isn't a sweep's, or is damaged.
    """
    try:
        number = storage.get_study_id_from_name(name)
    except KeyError:
        return None
    until = time.monotonic() + patience
    while (text := storage.get_study_user_attrs(number).get(ABOUT)) is None:
        if time.monotonic() > until:
            raise UserError(f"the study {name} is no sweep of puffer_mlx", "choose another --name")
        time.sleep(0.05)
    try:
        found = json.loads(text)
        words = found.get("words", [])
        right = isinstance(words, list) and all(isinstance(word, str) for word in words)
    except (TypeError, ValueError, AttributeError, RecursionError):
        right = False
    if not right:
        what = f"what the study {name} says of itself makes no sense"
        raise UserError(what, "it is damaged: begin another one with another --name")
    return found


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The first thing that differs between what was swept and what is to be; empty if nothing."""
    now = json.loads(json.dumps(now))
    for name in (name for name in before if name in now):
        if before[name] != now[name]:
            return f"{name} was {before[name]}, and is {now[name]}"
    return ""


def names(storage: BaseStorage) -> list[str]:
    """The studies of a storage."""
    return [study.study_name for study in storage.get_all_studies()]
