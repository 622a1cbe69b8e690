"""Why is it slow: the longest phase that an option would shorten, and that option.

A table of rules, tried in order; the first that fits the phase and the run wins. A rule must not
advise what the run has already, or what its machine can't do. Where no rule fits, nothing is said.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from puffer_mlx.display.run_view import PHASES, Logs
from puffer_mlx.profiling.phases import WAITS

COMPILING = 2  # epochs of a start: one compiles, the next measures each phase, which does too
WORTH = 0.2  # of the time: shorter phases aren't worth an option
NEAR = 3.0  # rollout and training within this factor of each other gain from overlap
LARGE = 1_000_000  # weights from which a GPU's time goes into products, which bf16 shortens
GROUPS = 8  # more than that and Python takes longer than acting


@dataclass(frozen=True)
class Setting:
    """What advice depends on: a run's options as they took effect, and its machine.

    Args:
        device: where it trains, ``cpu`` or ``gpu``.
        rollout_device: where it acts, ``cpu`` or ``gpu``.
        overlap: whether it collects and trains at the same time.
        precision: ``fp32``, ``bf16`` or ``fp16``.
        cores: that rollouts may use.
        num_threads: that step environments, as many as there are.
        num_buffers: groups of agents.
        total_agents: N.
        minibatch_size: M; 0 if unknown.
        minibatches: K.
        parameters: weights of the policy; 0 if unknown.
        has_gpu: whether MLX has a GPU here.
        backend: how environments are stepped: ``native`` in C; ``vector``, ``sync`` or ``async``.
        chosen: whether ``vec.backend`` asked for that, so that nothing was measured.
        environments: that share the agents, none of which two threads step; 0 if unknown.
        in_c: whether rollouts are one call, act and all: groups make no difference then.
        started: epochs before this start of the run.
    """

    device: str
    rollout_device: str
    overlap: bool
    precision: str
    cores: int
    num_threads: int
    num_buffers: int
    total_agents: int
    minibatch_size: int = 0
    minibatches: int = 1
    parameters: int = 0
    has_gpu: bool = False
    backend: str = "native"
    chosen: bool = False
    environments: int = 0
    in_c: bool = False
    started: int = 0

    @property
    def threads(self) -> int:
        """Threads that step environments if there are cores for them."""
        return max(1, self.num_threads)

    @property
    def most_threads(self) -> int:
        """The most threads that could step environments: those of Python step in none."""
        return min(self.cores, self.environments or self.cores) if self.native else 0

    @property
    def native(self) -> bool:
        """Whether environments are C."""
        return self.backend == "native"

    @property
    def groups(self) -> int:
        """The largest sensible number of groups for the cores, which divides the agents."""
        powers = (2**i for i in range(GROUPS.bit_length()))
        fits = [n for n in powers if n <= min(self.cores, GROUPS) and self.total_agents % n == 0]
        return max(fits)


class Rule(NamedTuple):
    """An option that helps where one of the phases takes longest."""

    phases: str  # names, separated by spaces
    fits: Callable[[Setting], bool]
    option: Callable[[Setting], str]


ACT = "eval_act eval_sample"
LEARN = "train_recompute train_forward train_backward"
EACH = "train_advantage train_priorities train_gather train_optimizer train_write_back"  # minibatch
TRAIN = f"{LEARN} {EACH}"

RULES = (
    # On a CPU though there is a GPU.
    Rule(
        f"{ACT} {TRAIN}",
        lambda s: s.has_gpu and s.device == "cpu",
        lambda s: "--device gpu (now cpu)",
    ),
    Rule(
        f"{ACT} train_copy",
        lambda s: s.device == "gpu" and s.rollout_device == "cpu",
        lambda s: "--train.rollout-device gpu (now cpu)",
    ),
    # A GPU's rollout: each group costs launches and copies; two hide the environments' steps.
    Rule(
        f"{ACT} eval_copy_in eval_copy_out eval_store",
        lambda s: s.num_buffers > 2 and s.rollout_device == "gpu",
        lambda s: f"--vec.num-buffers 2 (now {s.num_buffers})",
    ),
    Rule(
        ACT,
        lambda s: (
            s.rollout_device == "gpu"
            and s.native
            and s.num_buffers == 1
            and s.total_agents % 2 == 0
        ),
        lambda s: "--vec.num-buffers 2 (now 1)",
    ),
    Rule(
        "eval_copy_in eval_copy_out",
        lambda s: s.rollout_device == "gpu",
        lambda s: "--train.rollout-device cpu (now gpu)",
    ),
    # A CPU's: threads take some agents each through a whole rollout, or a stream acts for a group.
    Rule(
        ACT,
        lambda s: s.in_c and s.threads < s.most_threads,
        lambda s: f"--vec.num-threads {s.most_threads} (now {s.num_threads})",
    ),
    Rule(
        ACT,
        lambda s: (
            s.rollout_device == "cpu" and not s.in_c and s.native and s.num_buffers < s.groups
        ),
        lambda s: f"--vec.num-buffers {s.groups} (now {s.num_buffers})",
    ),
    Rule(
        "eval_env",
        lambda s: s.threads < s.most_threads,
        lambda s: f"--vec.num-threads {s.most_threads} (now {s.num_threads})",
    ),
    # Python's in this process take turns with acting; several groups only make more calls.
    Rule(
        "eval_env",
        lambda s: s.native and not s.in_c and s.num_buffers == 1 and s.total_agents % 2 == 0,
        lambda s: "--vec.num-buffers 2 (now 1)",
    ),
    Rule(
        "eval_env",
        lambda s: s.chosen and not s.native,
        lambda s: f"--vec.backend auto, which measures what is fastest (now {s.backend})",
    ),
    # Low precision is slow on a CPU, and pays on a GPU where products take the time.
    Rule(
        LEARN,
        lambda s: s.device == "cpu" and s.precision != "fp32",
        lambda s: f"--train.precision fp32 (now {s.precision})",
    ),
    Rule(
        LEARN,
        lambda s: s.device == "gpu" and s.precision == "fp32" and s.parameters >= LARGE,
        lambda s: "--train.precision bf16 (now fp32)",
    ),
    # What is done once for each minibatch; all of training, where launches take the time.
    Rule(
        EACH,
        lambda s: s.minibatches > 1 and s.minibatch_size > 0,
        lambda s: (
            f"--train.minibatch-size {2 * s.minibatch_size} (now {s.minibatch_size}),"
            " if it still learns"
        ),
    ),
    Rule(
        LEARN,
        lambda s: s.device == "gpu" and s.minibatches > 1 and 0 < s.parameters < LARGE,
        lambda s: (
            f"--train.minibatch-size {2 * s.minibatch_size} (now {s.minibatch_size}),"
            " if it still learns"
        ),
    ),
)


def advice(logs: Logs, setting: Setting) -> str:
    """One line: what takes long, and what would help.

    Args:
        logs: the newest values, with ``perf/*``.
        setting: the run's.

    Returns:
        for example ``environment 62 % of an epoch: --vec.num-threads 8 (now 4)``; empty where no
        option would help, phases aren't measured, or kernels were compiled meanwhile.
    """
    spent = {name: logs.get(f"perf/{name}", 0.0) for name, _, parent in PHASES if parent}
    if not sum(spent.values()) or logs.get("epoch", math.inf) - setting.started <= COMPILING:
        return ""
    busy = {name: seconds for name, seconds in spent.items() if name not in WAITS}
    rollout = sum(seconds for name, seconds in busy.items() if name.startswith("eval_"))
    train = sum(busy.values()) - rollout
    if _overlap_helps(setting, rollout, train):
        return (
            f"rollout {1000 * rollout:.0f} ms, then training {1000 * train:.0f} ms:"
            " --train.overlap 1, if it still learns"
        )
    whole, share_of = "", "of an epoch"
    if setting.overlap:  # only the longer half counts
        waited = rollout and spent["train_wait"] >= spent["eval_idle"]
        longer = "eval_" if waited else "train_"
        busy = {name: seconds for name, seconds in busy.items() if name.startswith(longer)}
        whole, share_of = f"{'rollout' if longer == 'eval_' else 'training'} is longer: ", "of it"
    total = sum(busy.values()) or 1.0
    for name in sorted(busy, key=busy.__getitem__, reverse=True):
        share = busy[name] / total
        if share >= WORTH and (option := _option(name, setting)):
            return f"{whole}{_label(name)} {100 * share:.0f} % {share_of}: {option}"
    return ""


def _overlap_helps(setting: Setting, rollout: float, train: float) -> bool:
    """Whether two devices take turns, and neither is idle for most of the time."""
    apart = setting.device == "gpu" and setting.rollout_device == "cpu"
    return apart and not setting.overlap and max(rollout, train) <= NEAR * min(rollout, train)


def _option(phase: str, setting: Setting) -> str:
    rule = next((r for r in RULES if phase in r.phases.split() and r.fits(setting)), None)
    return rule.option(setting) if rule else ""


def _label(phase: str) -> str:
    label, parent = next((label, parent) for name, label, parent in PHASES if name == phase)
    return f"{parent} {label}" if label in ("misc", "copy") else label
