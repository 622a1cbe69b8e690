"""All sections together, and what follows from several of their keys."""

import ctypes
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from puffer_mlx.config.key import Key, Named, sections_of
from puffer_mlx.config.parts import Facts, facts
from puffer_mlx.config.schema.base import Base
from puffer_mlx.config.schema.policy import Policy, Torch, says_memory
from puffer_mlx.config.schema.selfplay import AUTO, OF_4, OF_5, RELEASES, RULES, Selfplay
from puffer_mlx.config.schema.train import Train
from puffer_mlx.config.schema.vec import Vec, Wrap
from puffer_mlx.config.values import unquoted

RECORDED = "env", "eval", "loss", "memory", "perf", "pool", "util"  # groups of a record's numbers
GOALS = {"maximize": 1, "minimize": -1}  # of [sweep], with their signs
OLD_METRIC = "sweep.metric"  # PufferLib 3.0's section for metric and goal


@dataclass
class Config(Named):
    """Everything that describes a run.

    Args:
        env_name: the environment.
        base: section [base]; likewise vec, wrap, policy, torch, train and selfplay.
        env: the environment's own parameters; floats, and for Python's also int, bool, str, None
            and lists, tuples and dictionaries of these.
        bot_eval: section [bot_eval]: those that are others in games against its scripted opponents.
        source: the folder of its C sources, if it isn't one that comes with puffer_mlx.
        sweep: section name -> its keys and texts, for [sweep] and every [sweep.*].
        unused: names of keys that were given, are accepted and do nothing here.
        origins: name of a key that isn't at its default, or was typed -> where it was set:
            "breakout.ini:12", or ``COMMAND_LINE``. Of [env] only what was typed.
        files: those that it was read from, the later ones winning.
        named_by: C sources and Python objects that only a file names, as it names them -> the
            file's line. ``trust.permit`` refuses them unless the person knows them.
        allow_code: they may run whatever they are: ``--allow-code``.
        chosen_by: what says whose trainer the run gets, in words; empty if nothing does.
        rate_for: the optimizer that the learning rate was chosen for, if it isn't typed.
        notes: what was found or changed for the person, a line each, to be said at the start.
        again: a ``loading.Again``, which reads the same files and options with the settings of a
            family; None if no family's settings count.
        factory: what makes the environment in Python that ``env_name`` names: a class, or what
            returns an environment. None: the name says where it is found.
        objects: what a program gave for keys that may name code, by section.key: a function for
            ``train.loss``. Of other keys the name says where it is found.
    """

    env_name: str = ""
    base: Base = field(default_factory=Base)
    vec: Vec = field(default_factory=Vec)
    wrap: Wrap = field(default_factory=Wrap)
    env: dict[str, Any] = field(default_factory=dict)
    source: str = ""
    policy: Policy = field(default_factory=Policy)
    torch: Torch = field(default_factory=Torch)
    train: Train = field(default_factory=Train)
    selfplay: Selfplay = field(default_factory=Selfplay)
    bot_eval: dict[str, Any] = field(default_factory=dict)
    sweep: dict[str, dict[str, str]] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list, compare=False)
    origins: dict[str, str] = field(default_factory=dict, compare=False, repr=False)
    files: list[str] = field(default_factory=list, compare=False, repr=False)
    named_by: dict[str, str] = field(default_factory=dict, compare=False, repr=False)
    allow_code: bool = field(default=False, compare=False, repr=False)
    chosen_by: str = field(default="", compare=False, repr=False)
    rate_for: str = field(default="", compare=False, repr=False)
    notes: list[str] = field(default_factory=list, compare=False, repr=False)
    again: Any = field(default=None, compare=False, repr=False)
    factory: Callable[..., Any] | None = field(default=None, compare=False, repr=False)
    objects: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def python(self) -> bool:
        """True for an environment in Python: ``gym:ID`` or ``module:factory``."""
        return ":" in self.env_name

    @property
    def slug(self) -> str:
        """The environment's name as a file's name: gym:ALE/Pong-v5 is gym-ALE-Pong-v5."""
        return re.sub(r"[^\w.+=-]+", "-", self.env_name).strip("-.")

    @property
    def batch_size(self) -> int:
        """N * T: environment steps of one epoch."""
        return self.vec.total_agents * self.train.horizon

    @property
    def segments(self) -> int:
        """S = M / T: segments of one minibatch."""
        return self.train.minibatch_size // self.train.horizon

    @property
    def facts(self) -> Facts:
        """What the algorithm says of itself.

        Raises:
            UserError: there is none of that name.
        """
        return facts(self.train.algorithm)

    @property
    def shuffles_samples(self) -> bool:
        """Whether minibatches are of samples, not of segments."""
        return self.facts.by_samples and not says_memory(self.torch.network)

    @property
    def minibatches(self) -> int:
        """K: minibatches of one epoch."""
        return minibatches(self.train.replay_ratio, self.batch_size, self.train.minibatch_size)

    @property
    def epochs(self) -> int:
        """E = total_timesteps / (N * T), rounded down: upstream's native rule."""
        return self.train.total_timesteps // self.batch_size

    @property
    def selfplay_rules(self) -> str:
        """Whose rules the opponents are chosen by, ``OF_4`` or ``OF_5``; also if there are none.

        ``auto``: of the release whose key says how many there are; of the trainer's if both do.
        """
        if self.selfplay.rules != AUTO:
            return self.selfplay.rules
        by_4, by_5 = (self._opponents_by(rules) > 0 for rules in (OF_4, OF_5))
        if by_4 == by_5:
            return OF_5 if self.facts.release == RELEASES[OF_5] else OF_4
        return OF_4 if by_4 else OF_5

    @property
    def opponents(self) -> int:
        """B: opponents of the learner's at the same time; 0 without self-play."""
        return self._opponents_by(self.selfplay_rules) if self.selfplay.enabled else 0

    def _opponents_by(self, rules: str) -> int:
        return self.value(RULES[rules].count) - RULES[rules].none

    @property
    def metric(self) -> str:
        """The number that ranks policies, by its name in a record: ``[sweep] metric``.

        A name that doesn't begin with one of ``RECORDED`` is the environment's: ``score`` is
        ``env/score``. PufferLib 3.0's form, ``environment/score`` or a section [sweep.metric],
        means the same.
        """
        name = self._of_sweep("metric", "name") or "score"
        group, slash, rest = name.partition("/")
        if slash and group == "environment":
            return f"env/{rest}"
        return name if slash and group in RECORDED else f"env/{name}"

    @property
    def evaluation_metric(self) -> str:
        """The metric's name in an evaluation's record; empty if evaluations don't report it."""
        group, _, name = self.metric.partition("/")
        return f"eval/{name}" if group in ("env", "eval") else ""

    @property
    def goal(self) -> str:
        """``[sweep] goal``; ``validate`` checks that it is one of ``GOALS``."""
        return self._of_sweep("goal", "goal") or "maximize"

    @property
    def sign(self) -> int:
        """The factor by which a score is multiplied so that more is better."""
        return GOALS.get(self.goal, 1)

    def _of_sweep(self, key: str, old_key: str) -> str:
        old = self.sweep.get(OLD_METRIC, {}).get(old_key, "")
        return unquoted(self.sweep.get("sweep", {}).get(key, old))

    def value(self, name: str) -> Any:
        """The value of a key with its section: ``train.gamma``."""
        section, _, key = name.partition(".")
        return getattr(getattr(self, section), key)


SECTIONS: dict[str, type] = sections_of(Config)
KEYS: dict[str, dict[str, Key]] = {
    section: {item.name: item.metadata["key"] for item in fields(cls)}
    for section, cls in SECTIONS.items()
}
DECLARED: dict[str, Key] = {  # the same by names with the section: "train.gamma"
    f"{section}.{name}": declared
    for section, keys in KEYS.items()
    for name, declared in keys.items()
}


def minibatches(replay_ratio: float, batch_size: int, minibatch_size: int) -> int:
    """K = trunc(replay_ratio * N * T / M), every step in float32: upstream's native rule."""

    def float32(value: float) -> float:
        return ctypes.c_float(value).value

    samples = float32(float32(replay_ratio) * float32(batch_size))
    return int(float32(samples / float32(minibatch_size)))
