"""A run with opponents, killed and resumed, equals an uninterrupted one."""

from pathlib import Path

from running import killed_and_resumed, learned, only, records, run, timeless

AGENTS, T, EPOCHS = 64, 16, 30
BATCH = AGENTS * T
WORDS = f"""
    connect4_two --device cpu --policy.hidden-size 8 --policy.num-layers 1 --train.overlap 1
    --vec.total-agents {AGENTS} --vec.num-buffers 2 --train.horizon {T}
    --train.minibatch-size {BATCH} --train.total-timesteps {EPOCHS * BATCH} --eval-episodes 0
    --checkpoint-interval 1 --vec.num-frozen-banks 2 --vec.frozen-bank-pct 0.125
    --selfplay.enabled 1 --selfplay.max-size 6 --selfplay.min-games 20
    --selfplay.swap-winrate 0.5 --selfplay.snapshot-interval {3 * BATCH}
    --selfplay.opp-timeout-steps {9 * BATCH}
""".split()


def final(folder: Path) -> dict[str, bytes]:
    return timeless(only(folder, f"checkpoints/connect4_two/*/{EPOCHS * BATCH:016d}"))


def test_a_killed_and_resumed_run_equals_an_uninterrupted_one(tmp_path):
    folder, whole = tmp_path / "killed", tmp_path / "whole"
    for each in folder, whole:
        each.mkdir()
    done = run("train", *WORDS, cwd=whole)
    assert done.returncode == 0, done.stderr
    assert killed_and_resumed(WORDS, "connect4_two", folder, kills=2) >= 1
    found = [list(map(learned, records(each))) for each in (folder, whole)]
    assert found[0] == found[1]
    assert final(folder) == final(whole)
    epochs = [record for record in records(whole) if "pool/size" in record]
    assert len(epochs) == EPOCHS and max(record["pool/size"] for record in epochs) == 6
    assert all(record["pool/num_banks"] == 2 for record in epochs)
    assert epochs[-1]["pool/swaps"] > 3 and epochs[-1]["pool/epochs_to_align"] >= 1
    assert {"pool/winrate_bank_0", "pool/opponent_elo_bank_1", "env/elo"} <= epochs[-1].keys()
    for record in epochs:
        assert all(0 <= value <= 1 for name, value in record.items() if "winrate" in name)
