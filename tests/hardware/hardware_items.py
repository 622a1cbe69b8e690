"""Every item: what only developers need beside those of ``puffer-mlx check-gpu``."""

import hardware_kernels as kernels
import hardware_overlap as overlap
import hardware_runs as runs

from puffer_mlx.check.gpu.items import Item

ITEMS = (
    Item("around", "advantages, draw, gathers on the GPU as on the CPU", kernels.around_gradients),
    Item("loss", "the loss and its gradients by closed form as on the CPU", kernels.closed_form),
    Item("steps", "steps of a policy are its scan", kernels.steps_and_scan),
    Item("acting", "a rollout's step as one kernel, against the CPU", kernels.acting),
    Item("several", "several policies in one launch, each as in its own", kernels.several),
    Item("gradients", "a policy's gradients, against float32 on the CPU", kernels.gradients),
    Item("round-trip", "arrays from CPU to GPU and back", runs.round_trip),
    Item("where-to-act", "auto finds the device to act on", runs.where_to_act),
    Item("rollouts", "overlap: rollouts as in a serial run", overlap.same_rollouts),
    Item("losses", "overlap: losses as in a serial run of the same lag", overlap.same_losses),
    Item("torn-slots", "overlap: no torn slot", overlap.no_torn_slot),
    Item("exceptions", "overlap: an exception loses nothing", overlap.exceptions),
    Item("overlap", "overlap: both halves at once", overlap.real),
    Item("precisions", "every precision trains", runs.trains),
    Item("overflow", "an overflow is skipped", runs.skips),
    Item("not-finite", "ten skipped steps in a row stop the run", runs.stops),
    Item("memory", "memory stays", runs.memory),
    Item("profile", "the profile adds up", runs.profile),
    Item("profile-cost", "the profile costs little", runs.profile_cost),
    Item("trace", "a timeline is written", runs.trace),
    Item("capture", "a GPU capture is written", runs.capture),
    Item("files", "checkpoint, export, import: one policy", runs.files),
)
