"""List every check of a machine: those of ``puffer-mlx check-gpu`` and those for developers."""

import hardware_kernels as kernels
import hardware_overlap as overlap
import hardware_runs as runs

from puffer_mlx.check.gpu import items
from puffer_mlx.check.items import Item

DEVELOPER_ITEMS = (
    Item("around", kernels.around_gradients, "advantages, draw, gathers on the GPU as on the CPU"),
    Item("acting", kernels.acting, "a rollout's step as one kernel, against the CPU"),
    Item("several", kernels.several, "several policies in one launch, each as in its own"),
    Item("round-trip", runs.round_trip, "arrays from CPU to GPU and back"),
    Item("losses", overlap.same_losses, "overlap: losses as in a serial run of the same lag"),
    Item("overlap", overlap.real, "overlap: both halves at once"),
    Item("memory", runs.memory, "memory stays"),
    Item("capture", runs.capture, "a GPU capture is written"),
)
ITEMS = (*items.ITEMS, *DEVELOPER_ITEMS)
