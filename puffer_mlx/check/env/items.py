"""List the items in the order in which they run, and judge one."""

import traceback
from collections.abc import Callable
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
from puffer_mlx.check.env.subject import Subject
from puffer_mlx.errors import UserError

NOT_LOOKED_AT = "not looked at"
LINES = 3  # lines of a traceback to show


class Item(NamedTuple):
    """One check of an environment.

    Args:
        name: Name without spaces.
        look: Yields the findings.
        needs: Names of items that must pass first.
    """

    name: str
    look: Callable[[Subject], Findings]
    needs: tuple[str, ...] = ("loads", "steps")


def loads(subject: Subject) -> Findings:
    """Check that the environment compiles or imports, and accepts its configuration."""
    facts = subject.whole
    how = f" ({facts.description})" if facts.description else ""
    yield ok(f"{facts.num_agents:,} agents in {facts.num_environments:,} environments{how}")
    if facts.unread:
        keys = ", ".join(f"env.{key}" for key in facts.unread)
        yield warn(f"nobody reads {keys}", "remove what is set for nothing, or correct its name")


def steps(subject: Subject) -> Findings:
    """Play random legal actions for a while."""
    notes = subject.notes
    yield ok(
        f"{notes.steps:,} steps of {notes.agents} agents with random actions, {notes.seconds:.1f} s"
    )


ITEMS = (
    Item("loads", loads, ()),
    Item("spaces", inputs_outputs.spaces, ("loads",)),
    Item("steps", steps, ("loads",)),
    Item("observations", inputs_outputs.observations),
    Item("rewards", inputs_outputs.rewards),
    Item("actions", inputs_outputs.actions),
    Item("seeds", reproducibility.seeds),
    Item("episodes", episodes.episodes),
    Item("endings", episodes.endings),
    Item("resets", episodes.resets),
    Item("log", episodes.log),
    Item("state", reproducibility.state, ("loads", "steps", "seeds")),
    Item("gpu", on_gpu.on_gpu, ("loads", "steps", "seeds")),
    Item("gymnasium", gymnasium_check.gymnasium_says, ("loads",)),
    Item("pictures", pictures.drawn),
    Item("speed", speed_and_training.speed),
    Item("training", speed_and_training.training),
)
BASIC = {name for item in ITEMS for name in item.needs}


def judge(item: Item, subject: Subject, broken: set[str]) -> list[Finding]:
    """Return an item's findings, and add a failed item that others need to ``broken``."""
    if missing := [name for name in item.needs if name in broken]:
        return [skip(f"{NOT_LOOKED_AT}: {missing[0]} failed")]
    findings: list[Finding] = []
    try:
        findings.extend(item.look(subject))
    except UserError as error:
        findings.append(fail(error.message, error.hint))
    except Exception as error:
        lines = "".join(traceback.format_exception(error)).splitlines()[1:-1]
        where = "; ".join(line.strip() for line in lines[-LINES + 1 :])
        findings.append(fail(f"{type(error).__name__}: {error}", where))
    if item.name in BASIC and worst(findings) == FAIL:
        broken.add(item.name)
    return findings
