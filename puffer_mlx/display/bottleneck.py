"""Find the longest phase of a run that an option would shorten, and suggest the option.

The first rule that fits the phase and the run is used. A rule must not suggest an option that the
run already uses or its machine doesn't support.
"""

import math
from dataclasses import dataclass

from puffer_mlx.display.run_view import PHASES, Record
from puffer_mlx.profiling.phases import WAIT_PHASES

COMPILING_EPOCHS = 2  # of a run: the first epoch, and the first with profiled phases
MIN_FRACTION = 0.2  # of an epoch's time; no option is suggested for shorter phases
OVERLAP_RATIO = 3.0  # largest ratio of the times of rollout and training for which overlap helps
LARGE_POLICY_WEIGHTS = 1_000_000  # with more weights, matrix products take most of a GPU's time
MAX_GROUPS = 8  # with more groups, Python takes longer than acting


@dataclass(frozen=True)
class PerfContext:
    """Options and hardware of a training run, from which a hint on speeding it up is derived.

    Args:
        device: Device that trains, ``cpu`` or ``gpu``.
        rollout_device: Device of the policy in rollouts, ``cpu`` or ``gpu``.
        overlap: True if rollouts and training run at the same time.
        precision: ``fp32``, ``bf16`` or ``fp16``.
        cores: Number of cores for rollouts.
        num_threads: Number of threads that step environments.
        num_buffers: Number of groups of agents.
        total_agents: Number of agents N.
        minibatch_size: Steps per minibatch M; 0 if unknown.
        minibatches: Number of minibatches per epoch K.
        parameters: Number of weights of the policy; 0 if unknown.
        has_gpu: True if MLX has a GPU on this machine.
        backend: ``native`` for C environments; ``vector``, ``sync`` or ``async`` in Python.
        backend_is_set: True if ``vec.backend`` isn't auto, so that backends weren't measured.
        environments: Number of environments; 0 if unknown. More threads would have no work.
        in_c: True if C code computes entire rollouts, so that groups have no effect.
        epochs_before: Number of epochs before the run was started or resumed.
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
    backend_is_set: bool = False
    environments: int = 0
    in_c: bool = False
    epochs_before: int = 0

    @property
    def max_threads(self) -> int:
        """Largest useful number of threads that step environments; 0 for Python environments."""
        return min(self.cores, self.environments or self.cores) if self.native else 0

    @property
    def native(self) -> bool:
        """True if the environments are written in C."""
        return self.backend == "native"

    @property
    def max_groups(self) -> int:
        """Largest useful number of equal groups of agents: a power of 2, at most one per core."""
        powers = [2**i for i in range(MAX_GROUPS.bit_length())]
        limit = min(self.cores, MAX_GROUPS)
        return max(n for n in powers if n <= limit and self.total_agents % n == 0)


ACTING_PHASES = ("eval_act", "eval_sample")
COPY_PHASES = ("eval_copy_in", "eval_copy_out")
LEARNING_PHASES = ("train_recompute", "train_forward", "train_backward")
MINIBATCH_PHASES = ("train_advantage", "train_priorities", "train_gather", "train_optimizer")


def _option(phase: str, context: PerfContext) -> str:
    """Return the option to change so that a phase of training gets shorter, or "" if there is none.

    For example ``--device gpu (now cpu)``.
    """
    is_acting = phase in ACTING_PHASES
    is_copying = phase in COPY_PHASES
    is_learning = phase in LEARNING_PHASES
    is_stepping = phase == "eval_env"
    per_minibatch = phase in MINIBATCH_PHASES
    native = context.native
    acts_on_gpu = context.rollout_device == "gpu"
    trains_on_gpu = context.device == "gpu"
    groups = context.num_buffers
    even_groups = groups == 1 and context.total_agents % 2 == 0
    # The CPU is used although there is a GPU.
    if (is_acting or is_learning or per_minibatch) and context.has_gpu and not trains_on_gpu:
        return "--device gpu (now cpu)"
    if (is_acting or phase == "train_copy") and trains_on_gpu and not acts_on_gpu:
        return "--train.rollout-device gpu (now cpu)"
    # On a GPU, each group costs launches and copies. With two, one acts while the other is stepped.
    if (is_acting or is_copying or phase == "eval_store") and acts_on_gpu and groups > 2:
        return f"--vec.num-buffers 2 (now {groups})"
    if is_acting and acts_on_gpu and native and even_groups:
        return "--vec.num-buffers 2 (now 1)"
    if is_copying and acts_on_gpu:
        return "--train.rollout-device cpu (now gpu)"
    # On a CPU, each thread computes entire rollouts of some agents, or one stream acts per group.
    computes_steps = (is_acting and context.in_c) or is_stepping
    if computes_steps and max(1, context.num_threads) < context.max_threads:
        return f"--vec.num-threads {context.max_threads} (now {context.num_threads})"
    acts_in_groups = not acts_on_gpu and not context.in_c and native
    if is_acting and acts_in_groups and groups < context.max_groups:
        return f"--vec.num-buffers {context.max_groups} (now {groups})"
    # Python environments of this process alternate with acting, so more groups only add calls.
    if is_stepping and native and not context.in_c and even_groups:
        return "--vec.num-buffers 2 (now 1)"
    if is_stepping and context.backend_is_set and not native:
        return f"--vec.backend auto, which measures what is fastest (now {context.backend})"
    # Low precision is slower on a CPU, and faster on a GPU if products take most of the time.
    is_large = context.parameters >= LARGE_POLICY_WEIGHTS
    if is_learning and not trains_on_gpu and context.precision != "fp32":
        return f"--train.precision fp32 (now {context.precision})"
    if is_learning and trains_on_gpu and context.precision == "fp32" and is_large:
        return "--train.precision bf16 (now fp32)"
    # These phases cost time per minibatch. With a small policy on a GPU, learning does so too,
    # because launches take most of the time.
    size = context.minibatch_size
    small_policy = is_learning and trains_on_gpu and context.parameters > 0 and not is_large
    if ((per_minibatch and size > 0) or small_policy) and context.minibatches > 1:
        return f"--train.minibatch-size {2 * size} (now {size}), if it still learns"
    return ""


def find_bottleneck(logs: Record, context: PerfContext) -> str:
    """Return a hint on a run's speed: the longest phase that an option would shorten.

    Args:
        logs: Newest record of the run, with ``perf/*``.
        context: Options and machine of the run.

    Returns:
        For example ``environment 62 % of an epoch: --vec.num-threads 8 (now 4)``; empty if no
        option would help, phases weren't measured, or the epoch compiled kernels.
    """
    spent = {name: logs.get(f"perf/{name}", 0.0) for name, _, parent in PHASES if parent}
    epochs = logs.get("epoch", math.inf) - context.epochs_before
    if not sum(spent.values()) or epochs <= COMPILING_EPOCHS:
        return ""
    busy = {name: seconds for name, seconds in spent.items() if name not in WAIT_PHASES}
    rollout = sum(seconds for name, seconds in busy.items() if name.startswith("eval_"))
    train = sum(busy.values()) - rollout
    if _overlap_helps(context, rollout, train):
        return (
            f"rollout {1000 * rollout:.0f} ms, then training {1000 * train:.0f} ms:"
            " --train.overlap 1, if it still learns"
        )
    prefix = ""
    unit = "of an epoch"
    if context.overlap:  # only the longer one of rollout and training determines the speed
        training_waits = rollout > 0 and spent["train_wait"] >= spent["eval_idle"]
        longer = "eval_" if training_waits else "train_"
        busy = {name: seconds for name, seconds in busy.items() if name.startswith(longer)}
        prefix = f"{'rollout' if longer == 'eval_' else 'training'} is longer: "
        unit = "of it"
    total = sum(busy.values()) or 1.0
    for name in sorted(busy, key=busy.__getitem__, reverse=True):
        fraction = busy[name] / total
        if fraction >= MIN_FRACTION and (option := _option(name, context)):
            return f"{prefix}{_label(name)} {100 * fraction:.0f} % {unit}: {option}"
    return ""


def _overlap_helps(context: PerfContext, rollout: float, train: float) -> bool:
    """Return True if a run would be faster if rollouts and training ran at the same time.

    This is assumed if they now alternate on two devices and take similar times.
    """
    alternating = context.device == "gpu" and context.rollout_device == "cpu"
    similar = max(rollout, train) <= OVERLAP_RATIO * min(rollout, train)
    return alternating and not context.overlap and similar


def _label(phase: str) -> str:
    """Return the name that the dashboard shows for a phase of an epoch."""
    label, parent = next((label, parent) for name, label, parent in PHASES if name == phase)
    return f"{parent} {label}" if label in ("misc", "copy") else label
