"""Item: how fast Breakout is here, beside what a chip's public figures predict."""

import mlx.core as mx

from puffer_mlx.check.gpu.halves import Halves
from puffer_mlx.check.gpu.overlap import measured
from puffer_mlx.check.gpu.tools import Effort, Failed, need_gpu, need_time, trainer
from puffer_mlx.rollout.on_gpu import RolloutsOnGPU
from puffer_mlx.system.backend import backend

OPTIONS = ("--device", "gpu", "--train.total-timesteps", "1e12")
IN_ONE_LAUNCH = ("--train.rollout-device", "gpu-kernel", "--train.overlap", "0")
ROUNDS = 7
CHIPS = {  # largest figures of each: TFLOP/s of float32, GB/s
    **{"Apple M1": (2.6, 68), "Apple M4": (4.2, 120)},
    **{"Apple M4 Pro": (8.5, 273), "Apple M4 Max": (17, 546)},
}
LAUNCH = 2.5e-3  # ms of a small kernel on a Mac
HALVES = {  # of PufferLib 4.0's Breakout: GFLOP, GB, kernels of an epoch
    "rollout": (17, 0.12, 1),
    "training": (76, 3.5, 5 * 406),
}


def speeds(effort: Effort) -> str:
    """Milliseconds of a rollout, of training and of an epoch: in one launch, in pieces, overlapped.

    Raises:
        Failed: one of them can't be had; the text has the others.
    """
    need_gpu()
    need_time(effort)
    pieces = "0" if backend() == "metal" else "4"  # 0: measured
    ways = {
        "one launch": (*IN_ONE_LAUNCH, "--train.launch-steps", "1000"),
        "in pieces": (*IN_ONE_LAUNCH, "--train.launch-steps", pieces),
        "overlapped, rollouts on the CPU": (
            *("--train.rollout-device", "cpu", "--train.overlap", "1"),
        ),
    }
    found, failed = [], False
    for name, options in ways.items():
        try:
            found.append(f"{name}: {_measured(*options)}")
        except Exception as error:  # the others are worth knowing all the same
            found.append(f"{name}: {type(error).__name__}: {error}")
            failed = True
    text = "\n".join([*found, predicted(str(mx.device_info(mx.gpu).get("device_name", "")))])
    if failed:
        raise Failed(text)
    return text


def _measured(*options: str) -> str:
    with trainer(*options, env="breakout", base=OPTIONS) as made:
        rollout, training, epoch = measured(Halves(made), ROUNDS)
        rate = made.config.batch_size / epoch / 1000
        acting = made.collector.acting
        launches = ""
        if isinstance(acting, RolloutsOnGPU):
            launches = f" ({min(acting.steps, made.config.train.horizon)} steps a launch)"
    return (
        f"rollout {rollout:.1f} ms{launches}, training {training:.1f} ms,"
        f" epoch {epoch:.1f} ms: {rate:.2f} M steps/s"
    )


def predicted(chip: str) -> str:
    """The least time of both halves by a chip's arithmetic, memory and launches, in words."""
    if chip not in CHIPS:
        return f"predicted for {chip or 'this GPU'}: none"
    teraflops, bandwidth = CHIPS[chip]
    least = {
        name: max(gigaflop / teraflops, 1000 * gigabytes / bandwidth) + kernels * LAUNCH
        for name, (gigaflop, gigabytes, kernels) in HALVES.items()
    }
    times = ", ".join(f"{name} {milliseconds:.1f} ms" for name, milliseconds in least.items())
    return f"predicted for {chip}, at least: {times} ({teraflops} TFLOP/s, {bandwidth} GB/s)"
