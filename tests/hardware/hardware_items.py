"""List every check of a machine: those of ``puffer-mlx check-gpu`` and those for developers."""

import hardware_kernels as kernels
import hardware_overlap as overlap
import hardware_runs as runs

from puffer_mlx.check.gpu import items
from puffer_mlx.check.items import Item

DEVELOPER_ITEMS = (
    Item("around", kernels.around_gradients, "advantages, draw, gathers on the GPU as on the CPU"),
    Item("loss", kernels.closed_form, "the loss and its gradients by closed form as on the CPU"),
    Item("steps", kernels.steps_and_scan, "steps of a policy are its scan"),
    Item("acting", kernels.acting, "a rollout's step as one kernel, against the CPU"),
    Item("several", kernels.several, "several policies in one launch, each as in its own"),
    Item("gradients", kernels.gradients, "a policy's gradients, against float32 on the CPU"),
    Item("round-trip", runs.round_trip, "arrays from CPU to GPU and back"),
    Item("where-to-act", runs.where_to_act, "auto finds the device to act on"),
    Item("rollouts", overlap.same_rollouts, "overlap: rollouts as in a serial run"),
    Item("losses", overlap.same_losses, "overlap: losses as in a serial run of the same lag"),
    Item("torn-slots", overlap.no_torn_slot, "overlap: no torn slot"),
    Item("exceptions", overlap.exceptions, "overlap: an exception loses nothing"),
    Item("overlap", overlap.real, "overlap: both halves at once"),
    Item("precisions", runs.trains, "every precision trains"),
    Item("overflow", runs.skips, "an overflow is skipped"),
    Item("not-finite", runs.stops, "ten skipped steps in a row stop the run"),
    Item("memory", runs.memory, "memory stays"),
    Item("profile", runs.profile, "the profile adds up"),
    Item("profile-cost", runs.profile_cost, "the profile costs little"),
    Item("trace", runs.trace, "a timeline is written"),
    Item("capture", runs.capture, "a GPU capture is written"),
    Item("files", runs.files, "checkpoint, export, import: one policy"),
)
ITEMS = (*items.ITEMS, *DEVELOPER_ITEMS)
