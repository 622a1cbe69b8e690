"""The configuration of a run: all sections, and values that are derived from several keys."""

import ctypes
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from puffer_mlx.config.components import Facts, facts
from puffer_mlx.config.key import Key, StrictFields, sections_of
from puffer_mlx.config.schema.base import Base
from puffer_mlx.config.schema.policy import Policy, Torch, may_be_recurrent
from puffer_mlx.config.schema.selfplay import (
    AUTO_RULES,
    RULE_KEYS,
    RULES_OF_4,
    RULES_OF_5,
    RULES_RELEASE,
    Selfplay,
)
from puffer_mlx.config.schema.train import Train
from puffer_mlx.config.schema.vec import Vec, Wrap
from puffer_mlx.config.values import unquoted

# First components of a metric's name in a record: env/score
METRIC_GROUPS = "env", "eval", "loss", "memory", "perf", "pool", "util"
GOAL_SIGNS = {"maximize": 1, "minimize": -1}  # values of [sweep] goal, with signs
METRIC_SECTION_OF_3 = "sweep.metric"  # PufferLib 3.0's section for metric and goal


@dataclass
class Config(StrictFields):
    """The complete configuration of a run.

    Args:
        env_name: Name of the environment.
        base: Section [base]; vec, wrap, policy, torch, train and selfplay are the other sections.
        env: Parameters of the environment: floats; for Python environments also int, bool, str,
            None, and lists, tuples and dictionaries of these.
        bot_eval: Section [bot_eval]: parameters that differ against scripted opponents.
        source: Folder of C sources; empty for an environment that comes with puffer_mlx.
        sweep: Section name -> keys and texts, for [sweep] and every [sweep.*].
        unused: Names of accepted keys that have no effect.
        origins: Name of a key that was typed or differs from its default -> origin, such as
            "breakout.ini:12" or ``COMMAND_LINE``. Keys of [env] are listed only if typed.
        files: .ini files that were read; later ones win.
        untrusted_code: C sources and Python objects that only a file names -> the file's line.
            ``trust.refuse_untrusted_code`` refuses them.
        allow_code: True to allow untrusted code: ``--allow-code``.
        trainer_reason: Reason for the trainer, as text; may be empty.
        rate_optimizer: Optimizer that a learning rate from a file was chosen for.
        notes: Lines to print when the run starts.
        family_reloader: A ``resolving.FamilyReloader``, which loads the configuration again with a
            family's settings; None if no family's settings are used.
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
    untrusted_code: dict[str, str] = field(default_factory=dict, compare=False, repr=False)
    allow_code: bool = field(default=False, compare=False, repr=False)
    trainer_reason: str = field(default="", compare=False, repr=False)
    rate_optimizer: str = field(default="", compare=False, repr=False)
    notes: list[str] = field(default_factory=list, compare=False, repr=False)
    family_reloader: Any = field(default=None, compare=False, repr=False)
    factory: Callable[..., Any] | None = field(default=None, compare=False, repr=False)
    objects: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def python(self) -> bool:
        """True if the configured environment is in Python: ``gym:ID`` or ``module:factory``."""
        return ":" in self.env_name

    @property
    def slug(self) -> str:
        """Name of the environment, usable in file names: gym-ALE-Pong-v5 for gym:ALE/Pong-v5."""
        return re.sub(r"[^\w.+=-]+", "-", self.env_name).strip("-.")

    @property
    def batch_size(self) -> int:
        """Number of environment steps in an epoch: agents times ``train.horizon``."""
        return self.vec.total_agents * self.train.horizon

    @property
    def segments(self) -> int:
        """Number of segments, of ``train.horizon`` steps each, in a minibatch."""
        return self.train.minibatch_size // self.train.horizon

    @property
    def facts(self) -> Facts:
        """Properties of the configured training algorithm, such as its title and unused keys.

        Raises:
            UserError: If the algorithm doesn't exist.
        """
        return facts(self.train.algorithm)

    @property
    def shuffles_samples(self) -> bool:
        """True if minibatches consist of shuffled samples instead of segments."""
        return self.facts.by_samples and not may_be_recurrent(self.torch.network)

    @property
    def minibatches(self) -> int:
        """Number of minibatches in an epoch."""
        return minibatches(self.train.replay_ratio, self.batch_size, self.train.minibatch_size)

    @property
    def epochs(self) -> int:
        """Number of complete epochs in ``train.total_timesteps`` steps, as in PufferLib."""
        return self.train.total_timesteps // self.batch_size

    @property
    def selfplay_rules(self) -> str:
        """Rules that choose the opponents in self-play, PufferLib 4.0's or 5.0's.

        ``auto`` means the release whose key sets a number of opponents. If both keys or neither do,
        it means the trainer's release.
        """
        if self.selfplay.rules != AUTO_RULES:
            return self.selfplay.rules
        by_4, by_5 = (self._opponents_by(rules) > 0 for rules in (RULES_OF_4, RULES_OF_5))
        if by_4 == by_5:
            return RULES_OF_5 if self.facts.release == RULES_RELEASE[RULES_OF_5] else RULES_OF_4
        return RULES_OF_4 if by_4 else RULES_OF_5

    @property
    def opponents(self) -> int:
        """Number of opponents that play at the same time in self-play; 0 without self-play."""
        return self._opponents_by(self.selfplay_rules) if self.selfplay.enabled else 0

    def _opponents_by(self, rules: str) -> int:
        return self.value(RULE_KEYS[rules].count) - RULE_KEYS[rules].count_without

    @property
    def metric(self) -> str:
        """Name of the metric that ranks policies, ``[sweep] metric``: ``env/score``, for example.

        A name without one of ``METRIC_GROUPS`` is the environment's: ``score`` becomes
        ``env/score``. PufferLib 3.0's names (``environment/score``, a section [sweep.metric]) also
        work.
        """
        name = self._sweep_text("metric", "name") or "score"
        group, slash, rest = name.partition("/")
        if slash and group == "environment":
            return f"env/{rest}"
        return name if slash and group in METRIC_GROUPS else f"env/{name}"

    @property
    def evaluation_metric(self) -> str:
        """Name of the ranking metric in an evaluation's record; empty if evaluations lack it."""
        group, _, name = self.metric.partition("/")
        return f"eval/{name}" if group in ("env", "eval") else ""

    @property
    def goal(self) -> str:
        """Direction in which the metric that ranks policies improves, ``[sweep] goal``.

        ``validate`` checks it.
        """
        return self._sweep_text("goal", "goal") or "maximize"

    @property
    def sign(self) -> int:
        """Factor, 1 or -1, for the metric that ranks policies: larger products are better."""
        return GOAL_SIGNS.get(self.goal, 1)

    def _sweep_text(self, key: str, old_key: str) -> str:
        old = self.sweep.get(METRIC_SECTION_OF_3, {}).get(old_key, "")
        return unquoted(self.sweep.get("sweep", {}).get(key, old))

    def value(self, name: str) -> Any:
        """Return the value of a configuration key named with its section: ``train.gamma``."""
        section, _, key = name.partition(".")
        return getattr(getattr(self, section), key)


SECTIONS: dict[str, type] = sections_of(Config)
KEYS: dict[str, dict[str, Key]] = {
    section: {item.name: item.metadata["key"] for item in fields(cls)}
    for section, cls in SECTIONS.items()
}
DECLARED: dict[str, Key] = {  # all keys by their names with the section: "train.gamma"
    f"{section}.{name}": declared
    for section, keys in KEYS.items()
    for name, declared in keys.items()
}


def minibatches(replay_ratio: float, batch_size: int, minibatch_size: int) -> int:
    """Return the number of minibatches in an epoch: ratio * batch / minibatch size, truncated.

    Every operation is in float32, as in PufferLib's CUDA trainer.
    """

    def float32(value: float) -> float:
        return ctypes.c_float(value).value

    samples = float32(float32(replay_ratio) * float32(batch_size))
    return int(float32(samples / float32(minibatch_size)))
