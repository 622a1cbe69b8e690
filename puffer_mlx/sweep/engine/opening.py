"""A sweep's study is begun, or found again and compared with what is asked for now."""

import contextlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import DuplicatedStudyError
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage

from puffer_mlx.config import Config, to_dict
from puffer_mlx.errors import UserError
from puffer_mlx.sweep.engine.study import DEFAULT, GIVEN, Study, quiet
from puffer_mlx.sweep.reading import Sweep
from puffer_mlx.sweep.space import Values

ABOUT = "puffer_mlx"  # the study's attribute that says what is swept
MAY_DIFFER = {  # from one process of a sweep to another
    *("base.device", "base.checkpoint_dir", "base.log_dir", "base.profile"),
    *("base.track", "base.wandb", "base.wandb_project", "base.wandb_group", "base.tag"),
    *("vec.num_threads", "vec.max_threads", "base.checkpoint_interval", "base.checkpoint_keep"),
}


def open_study(
    storage: BaseStorage,
    name: str,
    swept: Sweep,
    about_now: Mapping[str, Any],
    sampler: BaseSampler,
    given: Mapping[str, Values] = {},
) -> Study:
    """The study of a name, begun if it isn't there; its first run has the configuration's values.

    Args:
        storage: where it is.
        name: the study's.
        swept: what, and how.
        about_now: what it is to be about, as ``described``.
        sampler: of its runs.
        given: whose values the first runs after the configuration's own have: a file's name, and
            its values of what is swept.

    Raises:
        UserError: there is one that is about something else.
    """
    if about(storage, name) is None:
        space, goal = swept.space, "maximize" if swept.settings.sign > 0 else "minimize"
        recorded = {p.name: p.recorded_default for p in space.parameters}
        defaults = {name: value for name, value in recorded.items() if value is not None}
        with quiet(), contextlib.suppress(DuplicatedStudyError):  # another process begins it, too
            study = optuna.create_study(
                storage=storage, study_name=name, directions=[goal, "minimize"]
            )
            study.set_metric_names(["score", "cost"])
            study.enqueue_trial(defaults, user_attrs={DEFAULT: True})
            for file, values in given.items():
                study.enqueue_trial(values, user_attrs={GIVEN: file})
            study.set_user_attr(ABOUT, json.dumps(about_now))
    if line := difference(about(storage, name) or {}, about_now):
        hint = "go on with the options it began with, or begin another one with another --name"
        raise UserError(f"the sweep {name} is about something else: {line}", hint)
    with quiet():
        study = optuna.load_study(storage=storage, study_name=name, sampler=sampler)
    return Study(study, swept.space, swept.settings)


def described(swept: Sweep, config: Config) -> dict[str, Any]:
    """What has to be the same for trials to be of one sweep, by names for messages."""
    plain, space = to_dict(config), swept.space
    ranges = {
        f"the range of {p.name}": f"{p.distribution} {p.low:g} to {p.high:g}"
        for p in space.parameters
    }
    keys = {
        f"{section}.{key}": value
        for section in ("base", "vec", "wrap", "policy", "torch", "train", "selfplay", "env")
        for key, value in plain[section].items()
    }
    return {
        "env": config.env_name,
        "source": Path(plain["source"]).name,
        "sweep.metric": swept.settings.metric,
        "sweep.goal": swept.settings.goal,
        "what is swept": ", ".join(space.names),
        **ranges,
        **{name: keys[name] for name in keys if name not in {*MAY_DIFFER, *space.names}},
    }


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
        saved = json.loads(text)
        words = saved.get("words", [])
        right = isinstance(words, list) and all(isinstance(word, str) for word in words)
    except (TypeError, ValueError, AttributeError, RecursionError):
        right = False
    if not right:
        what = f"what the study {name} says of itself makes no sense"
        raise UserError(what, "it is damaged: begin another one with another --name")
    return saved


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
