"""Where the policy acts and where it is trained: what is asked for, or what ``auto`` measures.

Acting is many small steps, each of which the host waits for. A GPU takes them in less time from
some number of agents on, which depends on the machine, the policy and the groups; so it is
measured: the rollout's own code, on both devices, with environments that stand still. Where a GPU
can step the environments, too, all three ways step them: whole rollouts, where it makes those in
one launch.
"""

import hashlib
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from puffer_mlx.config import Config
from puffer_mlx.config.fit import rollout_threads
from puffer_mlx.errors import UserError
from puffer_mlx.machines.single_process import SingleProcess
from puffer_mlx.ops.cpu_extension import threads
from puffer_mlx.policy.acting_on_gpu import FEWEST, step_on_gpu
from puffer_mlx.policy.policy import Policy
from puffer_mlx.policy.rollout_on_gpu import MOST_NUMBERS, RolloutOnGPU
from puffer_mlx.ppo.precision import lower
from puffer_mlx.profiling.phases import PhaseTimer
from puffer_mlx.rollout.act_functions import ActFunctions
from puffer_mlx.rollout.acting import FrozenEnvs, choose_acting
from puffer_mlx.rollout.buffer import RolloutBuffer
from puffer_mlx.rollout.in_steps import RolloutInSteps
from puffer_mlx.rollout.on_gpu import (
    BufferOnGPU,
    EnvironmentsOnGPU,
    GPURollouts,
    RolloutSpec,
    game_of,
    rollouts_on_gpu,
)
from puffer_mlx.rollout.seats import Seats
from puffer_mlx.rollout.verified_rollouts import rollouts_agree
from puffer_mlx.spec import EnvSpec
from puffer_mlx.system.devices import building, device_memory, for_cpu, has_gpu, kind
from puffer_mlx.system.files import publish
from puffer_mlx.system.private_folders import cache_directory
from puffer_mlx.system.version import version_text
from puffer_mlx.training.streams import acting_streams
from puffer_mlx.trees import named
from puffer_mlx.vec.base import VecEnv

WHOLE = "gpu-kernel"  # of train.rollout_device
NAMES = {  # of its values, in messages
    "cpu": "rollouts on the CPU",
    "gpu": "rollouts on the GPU",
    WHOLE: "rollouts and environments on the GPU",
}
STEPS = 4  # of one measurement where environments stand still
MORE_STEPS = 16  # where a GPU steps them in launches of their own, which also begin and end it
WAYS = 8  # grows when a device acts in another way: what was measured before is measured again
BUDGET = 0.25  # seconds for each device, kernels compiled
CORE = 2e11  # multiplications and additions of float32 that no CPU's core makes in a second
# Overlapped, acting on the CPU costs nothing while it is the shorter half; a GPU that acts has no
# time to train. So there the CPU may be slower by this factor, a guess at training's share.
PATIENCE = 2.0


class Acting(NamedTuple):
    """What acts in which environments.

    Attributes:
        config: a valid configuration.
        vec: the environments.
        policy: what acts.
        run: its compiled functions.
        seats: of self-play: who acts for which agents.
    """

    config: Config
    vec: VecEnv
    policy: Policy
    run: ActFunctions
    seats: Seats | None = None


@dataclass
class Placement:
    """Where a run computes.

    Attributes:
        learner: the device that trains: MLX's default one.
        rollout: the device that acts.
        overlap: whether the next rollout is collected beside training.
        precision: what the policy is trained in.
        reason: why it acts there, one line; empty where there was no choice.
        measured: whether that was measured, now or earlier.
        one_kernel: whether a GPU acts by one kernel, which knows fp32 alone.
        whole: how a GPU makes whole rollouts, environments included; None: these are C's.
        agents: how many there are.
    """

    learner: mx.Device
    rollout: mx.Device
    overlap: bool = False
    precision: str = "fp32"
    reason: str = ""
    one_kernel: bool = False
    whole: GPURollouts | None = None
    agents: int = 0
    measured: bool = False

    @property
    def rollout_device(self) -> str:
        """What ``train.rollout_device`` would ask for this."""
        return WHOLE if self.whole else kind(self.rollout)

    @property
    def acting_precision(self) -> str:
        """What the policy acts in: the learner's on its device, fp32 elsewhere.

        And where one kernel acts, which takes less time than the lower type saves.
        """
        if self.whole is not None:
            return self.whole.acting_precision
        alone = self.one_kernel and self.rollout == mx.gpu
        return "fp32" if alone or self.rollout != self.learner else self.precision

    @property
    def away(self) -> bool:
        """Whether acting and training round differently: another device, or another type."""
        if self.whole is not None and self.rollout == self.learner:
            return self.whole.precision(self.agents) != self.precision
        return self.rollout != self.learner or self.acting_precision != self.precision


def overlaps(config: Config) -> bool:
    """Whether the next rollout is collected beside training; auto: where a GPU trains.

    The cores alone would have to be divided: then nothing is gained by a policy that lags.
    """
    chosen = config.train.overlap
    return mx.default_device() == mx.gpu if chosen == "auto" else bool(chosen)


def rollout_cores(config: Config) -> int:
    """Cores for environments and for acting on a CPU.

    All of them, unless training goes on beside. On a CPU it needs half of them; a GPU's work is
    submitted faster if a quarter is left (an epoch with 12 of 16 is 15 % shorter than with all).
    """
    cores = threads()
    if overlaps(config):
        cores -= -(-cores // 2) if mx.default_device() == mx.cpu else cores // 4
    return max(1, cores)


def notes(config: Config, placement: Placement) -> list[str]:
    """Lines to print before the run: the placement's reason, and switches that can't help."""
    lines = [placement.reason] if placement.reason else []
    one_gpu = placement.rollout == placement.learner == mx.gpu
    if placement.overlap and one_gpu and not config.facts.lags:
        lines.append(
            "train.overlap: one GPU does both halves, so they take turns and the policy still lags;"
            " hint: --train.rollout-device cpu, or --train.overlap 0"
        )
    elif placement.overlap and placement.learner == mx.cpu:
        count = threads()
        lines.append(
            f"train.overlap: no GPU, so each half has its own part of {count} cores"
            if count > 1
            else "train.overlap: one core does both halves; hint: --train.overlap 0"
        )
    if placement.precision != "fp32" and placement.learner == mx.cpu:
        lines.append(
            f"train.precision {placement.precision}: CPUs compute in fp32 and only store less;"
            " hint: fp32 is faster here"
        )
    return lines


def as_on_first(
    ranks: SingleProcess, config: Config, place: Callable[[Config], Placement]
) -> Placement:
    """A placement that the first of several ranks finds, for all of them.

    Each would measure something else, and some the other way round; on one machine they would
    measure each other.

    Args:
        ranks: of which this process is one.
        config: this rank's part.
        place: finds the placement that a configuration asks for.

    Raises:
        UserError: as ``place``; also where this rank can't act as the first one does.
    """
    placement = None if ranks.rank else place(config)
    if placement and ranks.size == 1:
        return placement
    keys = placement and {"rollout_device": placement.rollout_device, "overlap": placement.overlap}
    of_first = json.loads(ranks.first(json.dumps(keys)))
    if placement is None:
        return place(replace(config, train=replace(config.train, **of_first)))
    if placement.measured:
        placement.reason += f", measured by rank 0 for all {ranks.size}"
    return placement


def place(acting: Acting, weights: Any, before: Mapping[str, Any]) -> Placement:
    """The placement that a configuration asks for; measured if it leaves that open.

    Args:
        acting: what is to be placed.
        weights: its own, evaluated.
        before: of the run that goes on, ``rollout_device``: what ``auto`` was.

    Raises:
        UserError: acting on a GPU was asked for, and this MLX has none.
    """
    config, vec, policy, run, seats = acting
    learner = mx.default_device()
    overlap = overlaps(config)
    kernel = step_on_gpu(policy) is not None
    placement = Placement(
        learner, learner, overlap, config.train.precision, one_kernel=kernel, agents=vec.num_agents
    )
    wanted = config.train.rollout_device
    if wanted in ("gpu", WHOLE) and not has_gpu():
        raise UserError(
            f"train.rollout_device is {wanted}, but this build of MLX has no GPU",
            "--train.rollout-device cpu, or auto",
        )
    spec = RolloutSpec(vec, config.train.horizon, config.train.precision, seats)
    whole = rollouts_on_gpu(policy, run, spec)
    possible = whole is not None and learner == mx.gpu and wanted in (WHOLE, "auto")
    if possible and not rollouts_agree(policy, vec, whole, weights, seats):  # type: ignore
        whole = None
        wanted = "gpu" if wanted == WHOLE else wanted
    if wanted == WHOLE:
        _refuse_without(whole, learner, vec, config.train.horizon)
    if _too_large(whole, config.train.horizon, vec.num_agents) and wanted != WHOLE:
        whole = None
    was, lost = before.get("rollout_device", "auto"), ""
    if wanted == "auto" and learner == mx.gpu and was != "auto":
        if was == WHOLE and whole is None:
            lost = "; environments can't be stepped by this GPU, as they were before"
        else:
            wanted = was
            placement.reason = f"{NAMES[was]}, as before"
    if wanted == "cpu" or (learner == mx.cpu and wanted == "auto"):
        placement.rollout = mx.Device(mx.cpu)
    elif wanted == "gpu":
        placement.rollout = mx.Device(mx.gpu)
    elif wanted == WHOLE:
        placement.rollout, placement.whole = mx.Device(mx.gpu), whole
    else:
        measure = partial(_calibrate, acting, weights, whole)
        seconds, cached = _cached(config, vec.spec, measure, seats, whole.form if whole else "")
        placement.rollout, placement.reason = _choose(seconds, overlap, whole)
        placement.reason += (" (measured before)" if cached else "") + lost
        placement.measured = True
        placement.whole = whole if _environments_there_win(seconds) else None
        if whole is not None and WHOLE not in seconds:
            placement.reason += f"; this GPU refuses to make rollouts {whole.form}"
    if placement.whole and config.train.overlap == "auto":
        placement.overlap = False  # one GPU does both halves: they would take turns
    return placement


def _refuse_without(
    whole: GPURollouts | None, learner: mx.Device, vec: VecEnv, horizon: int
) -> None:
    """Nothing if a GPU can make whole rollouts, and training reads them there.

    Raises:
        UserError: it can't, or its memory is too small.
    """
    asked, hint = f"train.rollout_device is {WHOLE}, but", "--train.rollout-device auto"
    if learner != mx.gpu:
        raise UserError(f"{asked} training is on the CPU", f"--base.device gpu, or {hint}")
    if needed := _too_large(whole, horizon, vec.num_agents):
        raise UserError(
            f"{asked} {vec.num_agents} agents for {horizon} steps need {needed / 1e9:,.1f} GB"
            f" at least, and the GPU has {device_memory() / 1e9:,.1f} GB",
            f"fewer vec.total_agents, a shorter train.horizon, or {hint}",
        )
    if whole is not None:
        return
    if game_of(vec) is None:
        raise UserError(
            f"{asked} the rules of {vec.spec.name} compile for a CPU alone",
            f"{hint}; docs/writing_envs.md says what such rules look like",
        )
    raise UserError(
        f"{asked} there are {vec.num_environments} environments: at least {FEWEST}, and fewer than"
        f" {MOST_NUMBERS} numbers of all observations, are stepped at once",
        f"another vec.total_agents, or {hint}",
    )


def _too_large(whole: GPURollouts | None, horizon: int, agents: int) -> int:
    """Bytes that rollouts in steps need, if a GPU is known to have less; else 0."""
    needed = whole.nbytes(horizon, agents) if isinstance(whole, RolloutInSteps) else 0
    return needed if 0 < device_memory() < needed else 0


def _environments_there_win(seconds: dict[str, float]) -> bool:
    """Whether a GPU acts and steps the environments in less time than the host's ways do."""
    return seconds.get(WHOLE, math.inf) <= min(seconds["cpu"], seconds["gpu"])


def _choose(
    seconds: dict[str, float], overlap: bool, whole: GPURollouts | None = None
) -> tuple[mx.Device, str]:
    """The device to act on, and why, from the seconds of a step on each."""
    cpu, gpu = seconds["cpu"], seconds["gpu"]
    if whole and _environments_there_win(seconds):
        return mx.Device(mx.gpu), (
            f"rollouts and environments on the GPU, {whole.form}: a step of all agents takes"
            f" {1000 * seconds[WHOLE]:.3f} ms; environments on the cores and acting on the GPU"
            f" {1000 * gpu:.3f} ms, on the CPU {_milliseconds(cpu)}"
        )
    chosen = "cpu" if cpu <= gpu * (PATIENCE if overlap else 1.0) else "gpu"
    other = "gpu" if chosen == "cpu" else "cpu"
    reason = (
        f"rollouts on the {chosen.upper()}: a step of all agents takes"
        f" {1000 * seconds[chosen]:.2f} ms, on the {other.upper()} {1000 * seconds[other]:.2f} ms"
    )
    if overlap and gpu < cpu <= gpu * PATIENCE:
        reason += ", which overlaps with training"
    return mx.Device(getattr(mx, chosen)), reason


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.3f} ms" if math.isfinite(seconds) else "more by arithmetic alone"


def least_on_cpu(weights: Any, agents: int) -> float:
    """Seconds that a step of all agents takes all cores at least: each has its weights once."""
    return 2 * agents * sum(array.size for _, array in named(weights)) / (CORE * threads())


def _calibrate(acting: Acting, weights: Any, whole: GPURollouts | None = None) -> dict[str, float]:
    """Seconds of one step of all agents on each device, medians, kernels compiled before.

    Of acting alone, in a few steps. Where ``whole`` steps the environments, the others do, too, and
    where it makes rollouts of ``train.horizon`` steps in one launch, so do they: its seconds are
    the environments' as well. These are afterwards what they were. A GPU that refuses ``whole`` has
    no seconds of it. Where it takes less than a CPU's arithmetic, that isn't measured, nor its
    extension compiled: infinite.
    """
    config, vec, policy, run, seats = acting
    spec, agents, groups = vec.spec, config.vec.total_agents, config.vec.num_buffers
    T = config.train.horizon
    if not isinstance(whole, RolloutOnGPU):
        T = STEPS if whole is None else min(T, MORE_STEPS)
    host = RolloutBuffer(spec, T, agents, groups)
    before = None if whole is None else vec.state()
    timer, learner = PhaseTimer("", enabled=False), mx.default_device()
    one_kernel = step_on_gpu(policy) is not None
    ways: dict[str, tuple[mx.Device, Any]] = {}
    seconds = {}
    with ThreadPoolExecutor(rollout_threads(config, rollout_cores(config))) as pool:
        still: Any = FrozenEnvs(agents, groups, pool) if whole is None else vec
        if whole is not None:
            ways[WHOLE] = mx.Device(mx.gpu), EnvironmentsOnGPU(vec, whole)  # type: ignore
        for device in (mx.Device(mx.cpu), mx.Device(mx.gpu)):
            ways[kind(device)] = device, still
        for name, (device, environments) in ways.items():
            if name == "cpu" and seconds.get(WHOLE, math.inf) < least_on_cpu(weights, agents):
                seconds[name] = math.inf
                continue
            buffer: Any = BufferOnGPU(spec, T, agents, 1) if name == WHOLE else host
            Q = 1 if name == WHOLE else groups
            precision = Placement(
                learner,
                device,
                precision=config.train.precision,
                one_kernel=one_kernel,
                whole=whole if name == WHOLE else None,
            ).acting_precision
            there = lower(weights if device == learner else for_cpu(weights), precision)
            there = there if seats is None else [there] * (1 + seats.opponents)
            way = choose_acting(
                *(device, precision, policy, run, environments),
                partial(acting_streams, device, threads(), Q),
                *(timer, seats, config.train.launch_steps),
            )
            with building, mx.stream(device):
                states = [policy.initial_state(agents // Q) for _ in range(Q)]
                noise = policy.distribution.noise(mx.random.key(0), (T, agents))
            mx.eval(there, states, noise)
            if whole is not None:
                buffer.reset(environments)
                buffer.begin(buffer)
            rollout = partial(way.collect, buffer, environments, there, states, noise)
            try:
                seconds[name] = _median_seconds(rollout) / T
            except RuntimeError:  # MLX's: rules that compile for one GPU are too large for another
                if name != WHOLE:
                    raise
    if whole is not None:
        assert before is not None, "rules that a GPU runs come with a state that can be saved"
        vec.restore(before)
    return seconds


def _median_seconds(work: Callable[[], object]) -> float:
    """The median of up to five calls within ``BUDGET``, after one that compiles."""
    work()
    times: list[float] = []
    end = time.perf_counter() + BUDGET
    while not times or (len(times) < 5 and time.perf_counter() < end):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _cached(
    config: Config,
    spec: EnvSpec,
    measure: Callable[[], dict[str, float]],
    seats: Seats | None = None,
    form: str = "",
) -> tuple[dict[str, float], bool]:
    """The measurement for this machine and configuration: the kept one, or a new one."""
    facts = {
        "spec": replace(spec, spaces="").to_json(),
        "versions": version_text(),
        "ways": WAYS,
        "cores": threads(),
        "gpu": str(mx.device_info(mx.gpu).get("device_name", "")),
        "agents": [config.vec.total_agents, config.vec.num_buffers],
        "threads": rollout_threads(config, rollout_cores(config)),
        "policy": [vars(config.policy), vars(config.torch), config.train.precision],
    }
    if form:  # then environments are measured, too
        train = config.train
        facts["environments"] = [form, train.horizon, config.env, train.launch_steps]
    if seats is not None:
        facts["agents of each policy"] = np.bincount(seats.policy).tolist()
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    path = cache_directory() / f"rollout_device-{digest}.json"
    try:
        kept = json.loads(path.read_text())
        ways = ("cpu", "gpu", WHOLE) if WHOLE in kept else ("cpu", "gpu")
        return {way: float(kept[way]) for way in ways}, True
    except (OSError, ValueError, KeyError, TypeError):
        seconds = measure()
    try:
        with publish(path) as temporary:
            temporary.write_text(json.dumps(seconds))
    except UserError:  # a cache that can't be written costs the next start a measurement
        pass
    return seconds, False
