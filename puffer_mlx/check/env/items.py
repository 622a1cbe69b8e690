"""Every item, in the order in which they run, and how one is judged."""

import traceback
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

from puffer_mlx.check.env import (
    episodes,
    gymnasium_check,
    inputs_outputs,
    on_gpu,
    pictures,
    reproducibility,
    speed_and_training,
)
from puffer_mlx.check.env.findings import FAIL, Finding, Findings, fail, ok, skip, warn, worst
from puffer_mlx.check.env.random_play import Notes, play
from puffer_mlx.check.env.subject import Subject
from puffer_mlx.errors import UserError

NOT_LOOKED_AT = "not looked at"
LINES = 3  # of a traceback that are shown


class Check:
    """A subject, and the notes of playing it, which most items read."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject

    @cached_property
    def notes(self) -> Notes:
        """Made once."""
        return play(self.subject)


class Item(NamedTuple):
    """One thing to check.

    Args:
        name: a word.
        look: says what it found.
        needs: items that must have passed before.
    """

    name: str
    look: Callable[[Check], Findings]
    needs: tuple[str, ...] = ("loads", "steps")


def loads(check: Check) -> Findings:
    """It compiles or imports, and can be made as it is configured."""
    facts = check.subject.whole
    how = f" ({facts.description})" if facts.description else ""
    yield ok(f"{facts.num_agents:,} agents in {facts.num_environments:,} environments{how}")
    if facts.unread:
        keys = ", ".join(f"env.{key}" for key in facts.unread)
        yield warn(f"nobody reads {keys}", "remove what is set for nothing, or correct its name")


def spaces(check: Check) -> Findings:
    """What an agent sees and does."""
    facts = check.subject.whole
    yield ok(inputs_outputs.spaces(facts.spec, facts.agents_each))


def steps(check: Check) -> Findings:
    """Random legal actions for a while."""
    notes = check.notes
    yield ok(
        f"{notes.steps:,} steps of {notes.agents} agents with random actions, {notes.seconds:.1f} s"
    )


ITEMS = (
    Item("loads", loads, ()),
    Item("spaces", spaces, ("loads",)),
    Item("steps", steps, ("loads",)),
    Item("observations", lambda check: inputs_outputs.observations(check.subject, check.notes)),
    Item("rewards", lambda check: inputs_outputs.rewards(check.subject, check.notes)),
    Item("actions", lambda check: inputs_outputs.actions(check.subject, check.notes)),
    Item("seeds", lambda check: reproducibility.seeds(check.subject)),
    Item("episodes", lambda check: episodes.episodes(check.subject, check.notes)),
    Item("endings", lambda check: episodes.endings(check.subject, check.notes)),
    Item("resets", lambda check: episodes.resets(check.subject, check.notes)),
    Item("log", lambda check: episodes.log(check.subject, check.notes)),
    Item("state", lambda check: reproducibility.state(check.subject), ("loads", "steps", "seeds")),
    Item("gpu", lambda check: on_gpu.on_gpu(check.subject), ("loads", "steps", "seeds")),
    Item("gymnasium", lambda check: gymnasium_check.gymnasium_says(check.subject), ("loads",)),
    Item("pictures", lambda check: pictures.drawn(check.subject)),
    Item("speed", lambda check: speed_and_training.speed(check.subject)),
    Item("training", lambda check: speed_and_training.training(check.subject)),
)
BASIC = {name for item in ITEMS for name in item.needs}


def judge(item: Item, check: Check, broken: set[str]) -> list[Finding]:
    """What an item says; one that others need is added to ``broken`` if it fails."""
    if missing := [name for name in item.needs if name in broken]:
        return [skip(f"{NOT_LOOKED_AT}: {missing[0]} failed")]
    found: list[Finding] = []
    try:
        found.extend(item.look(check))
    except UserError as error:
        found.append(fail(error.message, error.hint))
    except Exception as error:
        lines = "".join(traceback.format_exception(error)).splitlines()[1:-1]
        where = "; ".join(line.strip() for line in lines[-LINES + 1 :])
        found.append(fail(f"{type(error).__name__}: {error}", where))
    if item.name in BASIC and worst(found) == FAIL:
        broken.add(item.name)
    return found
