"""Choose the collector of a placement."""

from puffer_mlx.machines.single_process import SINGLE_PROCESS, SingleProcess
from puffer_mlx.profiling.phases import PhaseTimer
from puffer_mlx.training.collector import Collector
from puffer_mlx.training.device_collector import DeviceCollector
from puffer_mlx.training.host_collector import HostCollector
from puffer_mlx.training.placement import Acting, Placement


def make_collector(
    acting: Acting, placement: Placement, timer: PhaseTimer, ranks: SingleProcess = SINGLE_PROCESS
) -> Collector:
    """Return a collector for environments that the host steps, or that a GPU steps.

    Args: see ``Collector``.
    """
    if placement.whole is None:
        return HostCollector(acting, placement, timer, ranks)
    return DeviceCollector(acting, placement, timer, ranks, placement.whole)
