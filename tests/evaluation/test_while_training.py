"""Evaluation during training: its result, and that it doesn't change the training."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_envs import UPSTREAM_5, folder_of
from running import BATCH, EPOCHS, TINY, learned, only, records
from watching import everything

from puffer_mlx import config as c
from puffer_mlx import vec
from puffer_mlx.checkpoint import CheckpointManager
from puffer_mlx.checkpoint.branches import checkpoint_info
from puffer_mlx.errors import UserError
from puffer_mlx.evaluation import evaluator as evaluator_module
from puffer_mlx.evaluation.episodes import AgentStepper, Scores, score_episodes
from puffer_mlx.evaluation.evaluator import (
    Evaluator,
    evaluate_after_training,
    evaluation_config,
    evaluation_is_due,
    evaluation_logs,
    target_reached,
)
from puffer_mlx.training.trainer import Trainer

PYTHON = Path(__file__).parents[1] / "envs" / "python"

N, T, E = 16, 8, 4
SMALL = f"""
    --device cpu --policy.hidden-size 8 --policy.num-layers 1 --vec.total-agents {N}
    --vec.num-buffers 2 --train.horizon {T} --train.minibatch-size 64 --train.replay-ratio 1
    --train.total-timesteps {E * N * T} --train.learning-rate 0.3
""".split()
EVALUATED = ["--eval-interval", str(2 * N * T), "--eval-episodes", "12"]
MANY = "--eval-episodes", "160"  # enough to see the change of an epoch
SQUARED = "squared", "--env.size", "3"
PAIRS = f"{PYTHON / 'pairs.py'}:Pairs"


def configure(name, *more):
    return c.load(name, [*SMALL, *more])


def make(config):
    return vec.make(config, 2)


def trained(config):
    """Train with evaluations. Returns final arrays as bytes, records, and the trainer."""
    with make(config) as environments:
        trainer = Trainer(config, environments)
        evaluator = Evaluator(trainer, make)
        logs = [learned(log | evaluator.after_epoch()) for log in trainer]
        return everything(trainer), logs, trainer


def keeping(made):
    """Return a function that makes environments and adds them to the list ``made``."""
    return lambda config: made.append(make(config)) or made[-1]


def without_evaluation(log):
    return {key: value for key, value in log.items() if not key.startswith("eval/")}


# ---- training isn't changed ----------------------------------------------------------------------

PUFFER5 = "--train.algorithm", "puffer5"
FEW = "--vec.total-agents", "4", "--train.minibatch-size", "16", "--train.overlap", "1"
CASES = {
    "C, overlapped": (*SQUARED, "--train.overlap", "1"),
    "C, carried states": (*SQUARED, *PUFFER5, "--reset-state", "0", "--torch.network", "LSTM"),
    "a folder of 5.0": (str(folder_of(UPSTREAM_5[0])), "--vec.num-buffers", "1"),
    "processes": ("gym:CartPole-v1", "--vec.backend", "async", *FEW),
    "PufferLib 3.0": (PAIRS, "--train.algorithm", "ppo"),
}


@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
def test_evaluations_do_not_change_the_training(words):
    plain, evaluated = (configure(*words, *more) for more in ([], EVALUATED))
    arrays, logs, _ = trained(plain)
    found, records, _ = trained(evaluated)
    assert arrays.keys() == found.keys()
    assert [key for key in arrays if arrays[key] != found[key]] == []
    assert [without_evaluation(log) for log in records] == logs
    due = [evaluation_is_due(evaluated, epoch) for epoch in range(1, evaluated.epochs + 1)]
    assert ["eval/n" in log for log in records] == due and due.count(True) in (2, 3)


# ---- what is played ------------------------------------------------------------------------------


@pytest.mark.parametrize("greedy", [False, True])
def test_an_evaluation_is_the_score_of_the_current_weights(greedy):
    config = configure(*SQUARED, *EVALUATED, *MANY, "--eval-greedy", str(greedy), "--vec.seed", "3")
    _, logs, trainer = trained(config)
    with make(evaluation_config(config, trainer.vec)) as environments:
        stepper = AgentStepper(
            trainer.policy, trainer.weights, environments, config.base.seed, greedy
        )
        expected = score_episodes(stepper, 160, max_steps=100_000)
    assert logs[-1]["eval/score"] == expected.summary()["score"].mean
    assert logs[-1]["eval/score_std"] == expected.summary()["score"].std > 0
    assert logs[-1]["eval/n"] == 160


def test_evaluation_environments_have_other_seeds():
    config = configure(*SQUARED, *EVALUATED, "--vec.seed", "3")
    with make(config) as environments:
        own = evaluation_config(config, environments).vec
    assert not {*range(3, 3 + N)} & {*range(own.seed, own.seed + own.total_agents)}
    assert config.vec.seed == 3 and (own.num_buffers, config.vec.num_buffers) == (1, 2)
    config.vec.seed = 2**31 - 1
    with make(config) as environments:
        assert evaluation_config(config, environments).vec.seed == 2**30 - 1


@pytest.mark.parametrize(
    ("words", "agents"),
    [
        (SQUARED, 12),
        ((*SQUARED, "--eval-agents", "5"), 5),
        ((*SQUARED, "--eval-episodes", "17"), 9),  # two episodes of each
        (("target", "--vec.total-agents", "64", "--train.minibatch-size", "512"), 8),
    ],
)
def test_there_are_as_many_environments_as_the_episodes_need(words, agents):
    config = configure(*words[:1], *EVALUATED, *words[1:])
    with make(config) as environments:
        assert evaluation_config(config, environments).vec.total_agents == agents


def test_evaluations_use_the_trainings_statistics_and_do_not_change_them():
    words = "--vec.normalize-observations", "1", "--eval-episodes", "5", *PUFFER5
    config = configure("cartpole", *words, "--eval-interval", "1")
    made: list[Any] = []
    with make(config) as environments:
        trainer = Trainer(config, environments)
        trainer.step()
        before = environments.statistics()  # type: ignore
        assert Evaluator(trainer, keeping(made)).after_epoch()
        assert list(evaluate_after_training(trainer, keeping(made)))
        for each in [environments, *made]:
            found = each.statistics()  # type: ignore
            assert found.keys() == before.keys() and found
            for name, array in before.items():
                np.testing.assert_array_equal(found[name], array)
    assert len(made) == 2


def test_an_evaluation_sends_a_heartbeat_each_step():
    config = configure(*SQUARED, *EVALUATED)
    with make(config) as environments:
        trainer, signs = Trainer(config, environments), []
        evaluator = Evaluator(trainer, make, lambda: signs.append(trainer.epoch))
        for _ in trainer:
            evaluator.after_epoch()
        assert len(signs) > 10 and {*signs} == {2, 4}
        config.base.eval_interval = 0  # only after training
        signs.clear()
        assert 0 < len(list(evaluator.after_training())) == len(signs)


def test_episodes_that_do_not_end_are_counted_as_unfinished(monkeypatch):
    monkeypatch.setattr(evaluator_module, "MAX_STEPS", 3)
    config = configure("gym:CartPole-v1", *EVALUATED, "--vec.backend", "vector")
    _, logs, _ = trained(config)
    assert logs[-1]["eval/unfinished"] == 12 and logs[-1]["eval/n"] == 0
    assert "eval/score" not in logs[-1]


def test_evaluations_have_100_episodes_unless_given(tmp_path):
    config = configure(*SQUARED, "--eval-interval", str(N * T))
    assert config.base.eval_episodes == 100 and len(config.notes) == 1
    c.write_ini(config, tmp_path / "config.ini")
    again = c.load("squared", [], [tmp_path / "config.ini"])  # as a resumed run
    assert again.base.eval_episodes == 100 and again.notes == []


# ---- when, and what follows ----------------------------------------------------------------------


def test_evaluations_are_due_when_an_epoch_reaches_the_interval_and_at_the_end():
    def due(interval: int) -> list[int]:
        config = configure(*SQUARED, "--eval-interval", str(interval))
        return [epoch for epoch in range(E + 1) if evaluation_is_due(config, epoch)]

    assert (due(0), due(128), due(129)) == ([], [1, 2, 3, 4], [2, 3, 4])
    assert (due(256), due(300)) == ([2, 4], [3, 4])


def test_a_run_ends_at_a_score_in_the_direction_of_its_goal():
    def reached(bound: str, goal: str) -> list[float | None]:
        config = configure(*SQUARED, *EVALUATED, "--stop-at-score", bound, "--sweep.goal", goal)
        scores = (-2, -1, 0, 1.9, 2, 3, None)
        return [score for score in scores if target_reached(config, score)]

    assert reached("none", "maximize") == []
    assert reached("2", "maximize") == [2, 3]
    assert reached("-1", "minimize") == [-2, -1]


def test_a_target_of_an_unreported_score_is_refused():
    words = *SQUARED, *EVALUATED, "--sweep.metric", "luck"
    scores = Scores([{"n": 1.0, "score": 2.0, "env": 0.0}], 1, 1, 0, 5, 0.1)
    assert evaluation_logs(scores, configure(*words)) == {"eval/score": 2, "eval/n": 1}
    with pytest.raises(UserError) as caught:
        evaluation_logs(scores, configure(*words, "--stop-at-score", "1"))
    assert caught.value.message == "base.stop_at_score needs luck, which squared doesn't report"
    assert caught.value.hint == "[sweep] metric = one of score"


# ---- after training, and the checkpoints ---------------------------------------------------------


def test_the_final_weights_are_evaluated_once():
    config = configure(*SQUARED, *EVALUATED)
    made: list[Any] = []
    with make(config) as environments:
        trainer = Trainer(config, environments)
        evaluator, logs = Evaluator(trainer, keeping(made)), {}
        for logs in trainer:
            logs |= evaluator.after_epoch()
        (last,) = evaluator.after_training()
        assert len(made) == 2
        (again,) = Evaluator(trainer, make).after_training()  # killed before that record
    assert last == again
    assert last["agent_steps"] == E * N * T and last["env/score"] == logs["eval/score"]
    assert {*last} == {"agent_steps", *(f"env/{key[5:]}" for key in logs if key[:5] == "eval/")}


def test_an_evaluation_improves_if_it_is_better_than_all_earlier_ones(tmp_path):
    config = configure(*SQUARED, *EVALUATED, "--sweep.goal", "minimize")
    keeper = CheckpointManager(tmp_path, config)
    with make(config) as environments:
        trainer = Trainer(config, environments)
        about = environments.spec, trainer.policy, trainer.weights, None
        scores = [None, 5, None, 6, 5, 4, float("nan")]
        improved = []
        for step, found in enumerate(scores, 1):
            logs = {"agent_steps": step, "env/score": 1.0, "env/n": 1.0}
            keeper.observe(logs if found is None else {**logs, "eval/score": found})
            improved.append(keeper.improved)
            keeper.save(step, *about)
    assert [scores[step] for step, better in enumerate(improved) if better] == [5, 4]
    assert (tmp_path / "best").resolve().name == f"{6:016d}"


# ---- the script ----------------------------------------------------------------------------------

EACH = f"--eval-interval {BATCH} --eval-episodes 160 --checkpoint-interval 0".split()
EACH += ["--train.learning-rate", "0.3", "--checkpoint-keep", "0"]


def test_the_command_saves_each_improvement_and_links_the_best(script, here, capsys):
    assert script.main([*TINY, *EACH]) == 0
    out = capsys.readouterr().out
    *logs, last = records(here)
    scores = [log["eval/score"] for log in logs]
    assert len(scores) == EPOCHS and last["env/score"] == scores[-1] and len({*scores}) > 2
    run_folder = only(here, "checkpoints/squared/*")
    best = 1 + max(range(EPOCHS), key=lambda epoch: (scores[epoch], epoch))
    assert (run_folder / "best").resolve().name == f"{best * BATCH:016d}"
    kept = [checkpoint_info(path) for path in sorted(run_folder.glob("0*"))]
    assert [(one.step, one.score) for one in kept if one] == [
        (BATCH * (1 + epoch), found)
        for epoch, found in enumerate(scores)
        if epoch == EPOCHS - 1 or found > max(scores[:epoch], default=-np.inf)
    ]
    assert f"evaluation score {scores[-1]:.3f}" in out
    improved = [found > max(scores[:i], default=-np.inf) for i, found in enumerate(scores)]
    assert out.count("new best, saved: score ") == sum(improved)
    assert f"best  {max(scores):.3f} after {best * BATCH} steps, " in out


def test_a_run_ends_at_its_target_score_and_resumes_without_it(script, here, capsys):
    said = "has reached base.stop_at_score -1e+09: the run ends (--stop-at-score none continues)"
    resume = "squared", "--resume", "latest"
    for words in (*TINY, *EACH, "--stop-at-score", "-1e9"), resume:
        assert script.main([*words]) == 0
        assert said in capsys.readouterr().out and len(records(here)) == 1
    assert script.main([*resume, "--stop-at-score", "none"]) == 0
    assert len(records(here)) == EPOCHS + 1 and records(here)[0]["epoch"] == 1
