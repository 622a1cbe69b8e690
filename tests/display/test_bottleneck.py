"""Rules of "why slow?": when each advises an option, and when the run has it already."""

from dataclasses import replace

import pytest

from puffer_mlx.display.bottleneck import LARGE_POLICY_WEIGHTS, PerfContext, find_bottleneck

CPU = PerfContext("cpu", "cpu", False, "fp32", 4, 4, 4, 4096, 8192, 32, 200_000)
GPU = PerfContext("gpu", "gpu", False, "fp32", 16, 16, 2, 4096, 8192, 32, 200_000, True)
PYTHON = replace(CPU, backend="sync", num_buffers=1, num_threads=1)
BOTH = replace(GPU, rollout_device="cpu", num_buffers=8)


def logs(largest: str, **more: float) -> dict[str, float]:
    """Return the record of an epoch in which one phase takes half of the time."""
    spent = {"eval_act": 0.1, "eval_env": 0.1, "train_forward": 0.1, "train_backward": 0.1}
    spent.pop(largest, None)
    spent[largest] = sum(spent.values())
    return {"epoch": 30.0, **{f"perf/{name}": value for name, value in (spent | more).items()}}


def advised(largest: str, conditions: PerfContext, **more: float) -> str:
    """Return the option that the bottleneck's line advises, or an empty text."""
    return find_bottleneck(logs(largest, **more), conditions).rpartition(": ")[2]


FEWER = "--train.minibatch-size 16384 (now 8192), if it still learns"


@pytest.mark.parametrize(
    ("largest", "conditions", "expected"),
    [
        # devices
        ("eval_act", replace(CPU, has_gpu=True), "--device gpu (now cpu)"),
        ("eval_copy_in", GPU, "--train.rollout-device cpu (now gpu)"),
        # groups
        ("eval_copy_out", replace(GPU, num_buffers=8), "--vec.num-buffers 2 (now 8)"),
        ("eval_act", replace(GPU, num_buffers=1, total_agents=7), ""),
        ("eval_act", replace(CPU, num_buffers=1, cores=64), "--vec.num-buffers 8 (now 1)"),
        # environments
        ("eval_env", replace(CPU, num_threads=2), "--vec.num-threads 4 (now 2)"),
        (
            "eval_env",
            replace(CPU, num_threads=2, cores=16, environments=3),
            "--vec.num-threads 3 (now 2)",
        ),
        ("eval_act", replace(CPU, num_buffers=1, in_c=True), ""),
        ("eval_env", PYTHON, ""),
        ("eval_act", PYTHON, ""),
        (
            "eval_env",
            replace(PYTHON, backend_is_set=True),
            "--vec.backend auto, which measures what is fastest (now sync)",
        ),
        # arithmetic
        ("train_backward", replace(CPU, precision="bf16"), "--train.precision fp32 (now bf16)"),
        (
            "train_forward",
            replace(GPU, parameters=LARGE_POLICY_WEIGHTS),
            "--train.precision bf16 (now fp32)",
        ),
        ("train_forward", GPU, FEWER),
        # minibatches
        ("train_optimizer", CPU, FEWER),
    ],
)
def test_the_largest_phase_decides_the_option(largest, conditions, expected):
    assert advised(largest, conditions) == expected


def test_the_next_phase_is_considered_if_it_takes_enough_time():
    slow = replace(CPU, num_threads=1)
    assert find_bottleneck(logs("eval_misc"), slow) == ""
    assert find_bottleneck(logs("eval_misc", eval_env=0.3), slow) == (
        "environment 30 % of an epoch: --vec.num-threads 4 (now 1)"
    )
    assert find_bottleneck(logs("eval_misc", eval_env=0.3), replace(slow, num_threads=4)) == ""


def test_overlap_is_advised_if_both_halves_take_similar_time():
    near = {"perf/eval_env": 0.3, "perf/train_forward": 0.1, "epoch": 9.0}
    line = "rollout 300 ms, then training 100 ms: --train.overlap 1, if it still learns"
    assert find_bottleneck(near, BOTH) == line
    far = near | {"perf/eval_env": 0.41}
    for logs, conditions in (far, BOTH), (near, GPU), (near, CPU), (near, replace(BOTH, overlap=1)):
        assert "overlap" not in find_bottleneck(logs, conditions)


def test_only_the_longer_half_of_an_overlapped_run_counts():
    conditions = replace(BOTH, overlap=True, num_threads=4)
    waits = {"train_wait": 0.2, "eval_idle": 0.01}
    assert find_bottleneck(logs("eval_env", **waits), conditions) == (
        "rollout is longer: environment 75 % of it: --vec.num-threads 16 (now 4)"
    )
    assert find_bottleneck(logs("train_gather", **waits), conditions) == (
        "rollout is longer: act 50 % of it: --train.rollout-device gpu (now cpu)"
    )
    waits = {"train_wait": 0.01, "eval_idle": 0.2}
    assert find_bottleneck(logs("eval_env", **waits), conditions) == (
        "training is longer: forward 50 % of it: --train.minibatch-size 16384 (now 8192),"
        " if it still learns"
    )


def test_compiling_epochs_and_runs_without_a_profile_get_no_advice():
    slow = replace(CPU, num_threads=1)
    assert find_bottleneck(logs("eval_env") | {"epoch": 2.0}, slow) == ""  # what compiling took
    assert find_bottleneck(logs("eval_env") | {"epoch": 3.0}, slow) != ""
    assert find_bottleneck({"epoch": 9.0, "perf/rollout": 1.0, "perf/train": 1.0}, CPU) == ""
    resumed = replace(slow, epochs_before=30)  # it compiles again
    assert find_bottleneck(logs("eval_env") | {"epoch": 32.0}, resumed) == ""
    assert find_bottleneck(logs("eval_env") | {"epoch": 33.0}, resumed) != ""
