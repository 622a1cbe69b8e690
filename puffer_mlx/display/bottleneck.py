"""Advice on speed: the longest phase that an option would shorten, and that option.

Rules are tried in order, and the first one that fits the phase and the run is used. A rule must not
advise an option that the run already has or its machine lacks.
"""

import math
from dataclasses import dataclass

from puffer_mlx.display.run_view import PHASES, Logs
from puffer_mlx.profiling.phases import WAIT_PHASES

COMPILING = 2  # epochs after a start that compile: the first one, and the next with profiled phases
WORTH = 0.2  # fraction of the time; shorter phases aren't worth an option
NEAR = 3.0  # rollout and training within this factor of each other gain from overlap
LARGE = 1_000_000  # weights; larger policies spend a GPU's time on products, which bf16 shortens
GROUPS = 8  # maximum; with more, Python takes longer than acting


@dataclass(frozen=True)
class PerfContext:
    """Effective options of a run and its machine, from which the hint is made.

    Args:
        device: Device that trains, ``cpu`` or ``gpu``.
        rollout_device: Device of the policy in rollouts, ``cpu`` or ``gpu``.
        overlap: True if rollouts and training run at the same time.
        precision: ``fp32``, ``bf16`` or ``fp16``.
        cores: Number of cores for rollouts.
        num_threads: Number of threads that step environments.
        num_buffers: Number of groups of agents.
        total_agents: Number of agents N.
        minibatch_size: Steps of a minibatch M; 0 if unknown.
        minibatches: Number of minibatches of an epoch K.
        parameters: Number of weights of the policy; 0 if unknown.
        has_gpu: True if MLX has a GPU on this machine.
        backend: ``native`` in C; ``vector``, ``sync`` or ``async`` in Python.
        chosen: True if ``vec.backend`` is set, so that no step was measured.
        environments: Number of environments; 0 if unknown. One thread at most steps each.
        in_c: True if a rollout is one call of C, so that groups have no effect.
        started: Epochs before this start of the run.
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
    def most_threads(self) -> int:
        """Largest useful number of threads; 0 in Python, which uses no threads."""
        return min(self.cores, self.environments or self.cores) if self.native else 0

    @property
    def native(self) -> bool:
        """True for environments in C."""
        return self.backend == "native"

    @property
    def groups(self) -> int:
        """Largest sensible number of groups for the cores that divides the agents."""
        powers = (2**i for i in range(GROUPS.bit_length()))
        fits = [n for n in powers if n <= min(self.cores, GROUPS) and self.total_agents % n == 0]
        return max(fits)


ACT = ("eval_act", "eval_sample")
COPIES = ("eval_copy_in", "eval_copy_out")
LEARN = ("train_recompute", "train_forward", "train_backward")
PER_MINIBATCH = ("train_advantage", "train_priorities", "train_gather", "train_optimizer")


def _option(phase: str, s: PerfContext) -> str:
    """Return the first option that shortens this phase; "" without one."""
    acts = phase in ACT
    copies = phase in COPIES
    learns = phase in LEARN
    steps = phase == "eval_env"
    on_gpu = s.rollout_device == "gpu"
    pairs = s.num_buffers == 1 and s.total_agents % 2 == 0
    # The CPU is used although there is a GPU.
    if (acts or learns or phase in PER_MINIBATCH) and s.has_gpu and s.device == "cpu":
        return "--device gpu (now cpu)"
    if (acts or phase == "train_copy") and s.device == "gpu" and s.rollout_device == "cpu":
        return "--train.rollout-device gpu (now cpu)"
    # On a GPU, each group costs launches and copies; two groups hide the environments' steps.
    if (acts or copies or phase == "eval_store") and on_gpu and s.num_buffers > 2:
        return f"--vec.num-buffers 2 (now {s.num_buffers})"
    if acts and on_gpu and s.native and pairs:
        return "--vec.num-buffers 2 (now 1)"
    if copies and on_gpu:
        return "--train.rollout-device cpu (now gpu)"
    # On a CPU, a thread computes entire rollouts of some agents, or a stream acts per group.
    if ((acts and s.in_c) or steps) and max(1, s.num_threads) < s.most_threads:
        return f"--vec.num-threads {s.most_threads} (now {s.num_threads})"
    if acts and s.rollout_device == "cpu" and not s.in_c and s.native and s.num_buffers < s.groups:
        return f"--vec.num-buffers {s.groups} (now {s.num_buffers})"
    # Python environments in this process alternate with acting, so more groups only add calls.
    if steps and s.native and not s.in_c and pairs:
        return "--vec.num-buffers 2 (now 1)"
    if steps and s.chosen and not s.native:
        return f"--vec.backend auto, which measures what is fastest (now {s.backend})"
    # Low precision is slow on a CPU, and faster on a GPU if products take most of the time.
    if learns and s.device == "cpu" and s.precision != "fp32":
        return f"--train.precision fp32 (now {s.precision})"
    if learns and s.device == "gpu" and s.precision == "fp32" and s.parameters >= LARGE:
        return "--train.precision bf16 (now fp32)"
    # Phases with a cost per minibatch: all with a small policy on a GPU, where launches dominate.
    once = phase in PER_MINIBATCH and s.minibatch_size > 0
    small = learns and s.device == "gpu" and 0 < s.parameters < LARGE
    if (once or small) and s.minibatches > 1:
        size = s.minibatch_size
        return f"--train.minibatch-size {2 * size} (now {size}), if it still learns"
    return ""


def find_bottleneck(logs: Logs, context: PerfContext) -> str:
    """Return the longest phase that an option would shorten, and the option, as one line.

    Args:
        logs: The newest values, with ``perf/*``.
        context: Options of the run.

    Returns:
        For example ``environment 62 % of an epoch: --vec.num-threads 8 (now 4)``; empty if no
        option would help, phases aren't measured, or kernels were compiled meanwhile.
    """
    spent = {name: logs.get(f"perf/{name}", 0.0) for name, _, parent in PHASES if parent}
    if not sum(spent.values()) or logs.get("epoch", math.inf) - context.started <= COMPILING:
        return ""
    busy = {name: seconds for name, seconds in spent.items() if name not in WAIT_PHASES}
    rollout = sum(seconds for name, seconds in busy.items() if name.startswith("eval_"))
    train = sum(busy.values()) - rollout
    if _overlap_helps(context, rollout, train):
        return (
            f"rollout {1000 * rollout:.0f} ms, then training {1000 * train:.0f} ms:"
            " --train.overlap 1, if it still learns"
        )
    whole = ""
    share_of = "of an epoch"
    if context.overlap:  # only the longer half counts
        waited = rollout and spent["train_wait"] >= spent["eval_idle"]
        longer = "eval_" if waited else "train_"
        busy = {name: seconds for name, seconds in busy.items() if name.startswith(longer)}
        whole = f"{'rollout' if longer == 'eval_' else 'training'} is longer: "
        share_of = "of it"
    total = sum(busy.values()) or 1.0
    for name in sorted(busy, key=busy.__getitem__, reverse=True):
        share = busy[name] / total
        if share >= WORTH and (option := _option(name, context)):
            return f"{whole}{_label(name)} {100 * share:.0f} % {share_of}: {option}"
    return ""


def _overlap_helps(context: PerfContext, rollout: float, train: float) -> bool:
    """Return True if two devices alternate and need about the same time."""
    apart = context.device == "gpu" and context.rollout_device == "cpu"
    return apart and not context.overlap and max(rollout, train) <= NEAR * min(rollout, train)


def _label(phase: str) -> str:
    label, parent = next((label, parent) for name, label, parent in PHASES if name == phase)
    return f"{parent} {label}" if label in ("misc", "copy") else label
