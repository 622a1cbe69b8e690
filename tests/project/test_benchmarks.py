"""Programs of benchmarks/ run and write records."""

import json

import pytest
from running import benchmark

pytestmark = pytest.mark.slow  # they start many runs
SMALL = """--device cpu --env.size 3 --policy.hidden-size 8 --vec.total-agents 8
    --vec.num-buffers 2 --train.horizon 8 --train.minibatch-size 32 --train.total-timesteps 2560"""
FEW = "--vec.total-agents 4 --train.horizon 16 --train.minibatch-size 32"
COMMANDS = {
    "cycling": "--train.total-timesteps 100_000 --base.checkpoint-interval 1 --seeds 1",
    "gym_curves": "CartPole-v1 --seeds 2 --seconds 3 --cores 1",
    "gym_learning": f"CartPole-v1 --seeds 2 --limit 600 {FEW}",
    "gym_peers": "--envs 4,8 --trainers puffer_mlx --passes 2 --seconds 0.01",
    "overlap": f"squared {SMALL} --epochs 2 --repeat 3",
    "precision_learning": "--tasks squared --variants fp32,bf16+overlap --seeds 1 --score"
    f" episode_length {SMALL}",
    "seeds": f"squared --seeds 2 --agents 8 --bounds 2 {SMALL}",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_benchmark_runs_and_writes_its_record(tmp_path, name):
    done = benchmark(name, *COMMANDS[name].split(), "--json", "record.json", cwd=tmp_path)
    assert done.returncode in (0, 1)  # 1: what so short a run learns is too little
    assert "Traceback" not in done.stderr and done.stdout
    text = (tmp_path / "record.json").read_text()
    assert json.loads(text) and str(tmp_path) not in text
