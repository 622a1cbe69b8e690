"""Every rule of "why slow?": when it speaks, and when the run has what it would advise."""

from dataclasses import replace

from puffer_mlx.display.bottleneck import LARGE, PerfContext, find_bottleneck

CPU = PerfContext("cpu", "cpu", False, "fp32", 4, 4, 4, 4096, 8192, 32, 200_000)
GPU = PerfContext("gpu", "gpu", False, "fp32", 16, 16, 2, 4096, 8192, 32, 200_000, True)
BOTH = replace(GPU, rollout_device="cpu", num_buffers=8)


def logs(largest: str, **more: float) -> dict[str, float]:
    """A record of epoch 30 in which one phase takes half the time."""
    spent = {"eval_act": 0.1, "eval_env": 0.1, "train_forward": 0.1, "train_backward": 0.1}
    spent.pop(largest, None)
    spent[largest] = sum(spent.values())
    return {"epoch": 30.0, **{f"perf/{name}": value for name, value in (spent | more).items()}}


def advised(largest: str, conditions: PerfContext, **more: float) -> str:
    """The option alone; empty if there is none."""
    return find_bottleneck(logs(largest, **more), conditions).rpartition(": ")[2]


def test_the_option_for_the_largest_phase():
    for largest, conditions, expected in [
        # what a GPU would do
        ("eval_act", replace(CPU, has_gpu=True), "--device gpu (now cpu)"),
        ("train_optimizer", replace(CPU, has_gpu=True), "--device gpu (now cpu)"),
        ("eval_act", replace(BOTH, overlap=True), "--train.rollout-device gpu (now cpu)"),
        ("train_copy", replace(BOTH, overlap=True), "--train.rollout-device gpu (now cpu)"),
        # groups on a GPU
        ("eval_act", replace(GPU, num_buffers=8), "--vec.num-buffers 2 (now 8)"),
        ("eval_copy_out", replace(GPU, num_buffers=8), "--vec.num-buffers 2 (now 8)"),
        ("eval_store", replace(GPU, num_buffers=3), "--vec.num-buffers 2 (now 3)"),
        ("eval_sample", replace(GPU, num_buffers=1), "--vec.num-buffers 2 (now 1)"),
        ("eval_act", replace(GPU, num_buffers=1, total_agents=7), ""),
        ("eval_act", GPU, ""),
        ("eval_store", GPU, ""),
        ("eval_copy_in", GPU, "--train.rollout-device cpu (now gpu)"),
        # and on a CPU
        ("eval_act", replace(CPU, num_buffers=2), "--vec.num-buffers 4 (now 2)"),
        ("eval_act", replace(CPU, num_buffers=1, cores=3), "--vec.num-buffers 2 (now 1)"),
        ("eval_act", replace(CPU, num_buffers=1, cores=64), "--vec.num-buffers 8 (now 1)"),
        ("eval_act", replace(CPU, num_buffers=1, total_agents=6), "--vec.num-buffers 2 (now 1)"),
        ("eval_sample", CPU, ""),
        ("eval_sample", replace(CPU, num_buffers=8, cores=16), ""),
        ("eval_act", CPU, ""),
        # environments
        ("eval_env", replace(CPU, num_threads=2), "--vec.num-threads 4 (now 2)"),
        ("eval_env", replace(GPU, num_threads=0), "--vec.num-threads 16 (now 0)"),
        ("eval_env", replace(CPU, num_threads=16, num_buffers=1), "--vec.num-buffers 2 (now 1)"),
        ("eval_env", replace(CPU, num_buffers=1, total_agents=5), ""),
        ("eval_env", CPU, ""),
        ("eval_env", replace(CPU, num_threads=0, cores=1), ""),
        # arithmetic
        ("train_backward", replace(CPU, precision="bf16"), "--train.precision fp32 (now bf16)"),
        ("train_forward", replace(GPU, parameters=LARGE), "--train.precision bf16 (now fp32)"),
        ("train_forward", replace(GPU, parameters=LARGE, precision="fp16"), ""),
        ("train_forward", GPU, "--train.minibatch-size 16384 (now 8192), if it still learns"),
        ("train_forward", replace(GPU, minibatches=1), ""),
        ("train_recompute", CPU, ""),
        # per minibatch
        ("train_optimizer", CPU, "--train.minibatch-size 16384 (now 8192), if it still learns"),
        ("train_advantage", GPU, "--train.minibatch-size 16384 (now 8192), if it still learns"),
        ("train_optimizer", replace(CPU, minibatches=1), ""),
        ("train_optimizer", replace(CPU, minibatch_size=0), ""),
        # no rule
        ("train_misc", CPU, ""),
        ("eval_misc", GPU, ""),
    ]:
        assert advised(largest, conditions) == expected


def test_it_says_nothing_that_nobody_can_change():
    """Then the next phase is looked at, if it takes enough of the time to matter."""
    slow = replace(CPU, num_threads=1)
    assert find_bottleneck(logs("eval_misc"), slow) == ""
    assert find_bottleneck(logs("eval_misc", eval_env=0.3), slow) == (
        "environment 30 % of an epoch: --vec.num-threads 4 (now 1)"
    )
    assert find_bottleneck(logs("eval_misc", eval_env=0.3), replace(slow, num_threads=4)) == ""


def test_two_devices_that_take_turns():
    """Halves of 0.3 and 0.1 s are within the factor; 0.41 and 0.1 aren't."""
    near = {"perf/eval_env": 0.3, "perf/train_forward": 0.1, "epoch": 9.0}
    line = "rollout 300 ms, then training 100 ms: --train.overlap 1, if it still learns"
    assert find_bottleneck(near, BOTH) == line
    assert (
        find_bottleneck({"perf/eval_env": 0.1, "perf/train_forward": 0.3, "epoch": 9.0}, BOTH) != ""
    )
    far = near | {"perf/eval_env": 0.41}
    pairs = (far, BOTH), (near, GPU), (near, CPU), (near, replace(BOTH, overlap=1))
    for logs, conditions in pairs:
        assert "overlap" not in find_bottleneck(logs, conditions)


def test_overlapped_only_the_longer_half_counts():
    """Who waits is the shorter one."""
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


def test_first_epochs_and_runs_without_a_profile():
    slow = replace(CPU, num_threads=1)
    assert find_bottleneck(logs("eval_env") | {"epoch": 2.0}, slow) == ""  # what compiling took
    assert find_bottleneck(logs("eval_env") | {"epoch": 3.0}, slow) != ""
    assert find_bottleneck({"epoch": 9.0, "perf/rollout": 1.0, "perf/train": 1.0}, CPU) == ""
    resumed = replace(slow, started=30)  # it compiles again
    assert find_bottleneck(logs("eval_env") | {"epoch": 32.0}, resumed) == ""
    assert find_bottleneck(logs("eval_env") | {"epoch": 33.0}, resumed) != ""


PYTHON = replace(CPU, backend="sync", num_buffers=1, num_threads=1)


def test_groups_and_threads_are_no_advice_for_python():
    """Nobody steps them in threads, and more groups are more calls of Python."""
    for device in ["cpu", "gpu"]:
        for backend in ["vector", "sync", "async"]:
            for in_c in (False, True):
                there = {"device": device, "rollout_device": device, "has_gpu": device == "gpu"}
                conditions = replace(PYTHON, backend=backend, in_c=in_c, **there)
                for phase in ("eval_env", "eval_act", "eval_sample"):
                    text = advised(phase, conditions)
                    assert "--vec.num-buffers" not in text and "--vec.num-threads" not in text


def test_a_backend_that_was_asked_for_may_not_be_the_fastest():
    for backend in ["vector", "sync", "async"]:
        asked = replace(PYTHON, backend=backend, chosen=True)
        text = f"--vec.backend auto, which measures what is fastest (now {backend})"
        assert advised("eval_env", asked) == text
        assert advised("eval_env", replace(asked, chosen=False)) == ""
        assert "backend" not in advised("eval_env", replace(CPU, chosen=True))  # C has none


def test_no_more_threads_than_environments_or_cores():
    few = replace(CPU, num_threads=2, cores=16)
    for phase in "eval_env", "eval_act":
        in_c = replace(few, environments=3, in_c=True)
        assert advised(phase, in_c) == "--vec.num-threads 3 (now 2)"
        assert "num-threads" not in advised(phase, replace(in_c, environments=2))
    assert advised("eval_env", replace(few, environments=4096)) == "--vec.num-threads 16 (now 2)"


def test_groups_make_no_difference_where_rollouts_are_one_call_of_c():
    for phase in "eval_env", "eval_act":
        assert "num-buffers" in advised(phase, replace(CPU, num_buffers=1))
        assert "num-buffers" not in advised(phase, replace(CPU, num_buffers=1, in_c=True))
