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
    """All settings of a run.

    Args:
        env_name: Name of the environment.
        base: Section [base]; vec, wrap, policy, torch, train and selfplay hold the other sections.
        env: Parameters of the environment: floats; in Python also int, bool, str, None, and lists,
            tuples and dictionaries of these.
        bot_eval: Section [bot_eval]: parameters that differ against scripted opponents.
        source: Folder of C sources; empty for an environment that comes with puffer_mlx.
        sweep: Section name -> keys and texts, for [sweep] and every [sweep.*].
        unused: Names of accepted keys that have no effect.
        origins: Name of a key that was typed or differs from its default -> origin, such as
            "breakout.ini:12" or ``COMMAND_LINE``. Keys of [env] are listed only if typed.
        files: Files that were read; later ones win.
        named_by: C sources and Python objects that only a file names -> the file's line.
            ``trust.permit`` refuses them.
        allow_code: True to allow them: ``--allow-code``.
        chosen_by: Reason for the trainer, as text; may be empty.
        rate_for: Optimizer that a learning rate from a file was chosen for.
        notes: Lines to print at the start.
        again: A ``resolving.Again`` that reads the same files and options with the settings of a
            family, or None if no family's settings count.
        factory: Function or class that makes the environment in Python, or None to import
            ``env_name``.
        objects: Objects that a program passed for keys that may name code, by section.key.
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
        """Properties of the algorithm.

        Raises:
            UserError: The algorithm doesn't exist.
        """
        return facts(self.train.algorithm)

    @property
    def shuffles_samples(self) -> bool:
        """True if minibatches consist of samples, not segments."""
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
        """Release whose rules choose the opponents: ``OF_4`` or ``OF_5``.

        ``auto`` is the release whose key sets a number of opponents. If both or neither do, it is
        the trainer's release.
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
        """Factor that makes larger scores better: 1 or -1."""
        return GOALS.get(self.goal, 1)

    def _of_sweep(self, key: str, old_key: str) -> str:
        old = self.sweep.get(OLD_METRIC, {}).get(old_key, "")
        return unquoted(self.sweep.get("sweep", {}).get(key, old))

    def value(self, name: str) -> Any:
        """Return the value of a key with its section: ``train.gamma``."""
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
