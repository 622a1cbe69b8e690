"""Choose the collector of a placement."""

from typing import cast

from puffer_mlx.machines.single_process import SINGLE_PROCESS, SingleProcess
from puffer_mlx.profiling.phases import PhaseTimer
from puffer_mlx.rollout.on_gpu import EnvironmentsOnGPU
from puffer_mlx.training.collector import Collector
from puffer_mlx.training.device_collector import DeviceCollector
from puffer_mlx.training.host_collector import HostCollector
from puffer_mlx.training.placement import Acting, Placement
from puffer_mlx.vec.native.vec import NativeVec


def make_collector(
    acting: Acting, placement: Placement, timer: PhaseTimer, ranks: SingleProcess = SINGLE_PROCESS
) -> Collector:
    """Return the collector for a placement: see ``Collector``."""
    if placement.gpu_rollouts is None:
        return HostCollector(acting, acting.vec, placement, timer, ranks)
    native = cast(NativeVec, acting.vec)  # a GPU steps no others
    vec = EnvironmentsOnGPU(native, placement.gpu_rollouts)
    return DeviceCollector(acting, vec, placement, timer, ranks)
