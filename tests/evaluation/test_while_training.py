"""Evaluation while training: what it finds, and that training goes on as if there had been none."""

from pathlib import Path

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
from puffer_mlx.evaluation import episodes
from puffer_mlx.evaluation import evaluator as evaluator_module
from puffer_mlx.evaluation.episodes import AgentStepper, Scores, environments_for, score
from puffer_mlx.evaluation.evaluator import Evaluator, is_due, logs_of, settings, target_reached
from puffer_mlx.training.trainer import Trainer

PYTHON = Path(__file__).parents[1] / "envs" / "python"

N, T, E = 16, 8, 4
SMALL = f"""
    --device cpu --policy.hidden-size 8 --policy.num-layers 1 --vec.total-agents {N}
    --vec.num-buffers 2 --train.horizon {T} --train.minibatch-size 64 --train.replay-ratio 1
    --train.total-timesteps {E * N * T} --train.learning-rate 0.3
""".split()
EVALUATED = ["--eval-interval", str(2 * N * T), "--eval-episodes", "12"]
MANY = "--eval-episodes", "160"  # enough to tell what an epoch changed
SQUARED = "squared", "--env.size", "3"
PAIRS = f"{PYTHON / 'pairs.py'}:Pairs"


def configure(name, *more):
    return c.load(name, [*SMALL, *more])


def make(config):
    return vec.make(config, 2)


def trained(config, epochs=E):
    """What training comes to, as bytes; its records; the trainer."""
    with make(config) as environments:
        trainer = Trainer(config, environments)
        evaluator, logs = Evaluator(trainer, make), []
        while trainer.epoch < epochs:
            logs.append(learned(trainer.step() | evaluator.after_epoch()))
        return everything(trainer), logs, trainer


def without_evaluation(log):
    return {key: value for key, value in log.items() if not key.startswith("eval/")}


# ---- training isn't changed ----------------------------------------------------------------------

OVERLAP = "--train.overlap", "1"
PPO = "--train.algorithm", "ppo"
CASES = {
    "C, overlapped": (*SQUARED, *OVERLAP),
    "C, memory that is carried": (*SQUARED, "--reset-state", "0", "--torch.network", "LSTM"),
    "C, puffer5": (*SQUARED, "--train.algorithm", "puffer5"),
    "C, ppo of a recurrent network": (*SQUARED, *PPO, "--torch.network", "GRU"),
    "C, several agents": ("target",),
    "a folder of 5.0": (str(folder_of(UPSTREAM_5[0])), "--vec.num-buffers", "1"),
    "Gymnasium, vector": ("gym:CartPole-v1", "--vec.backend", "vector"),
    "PufferLib 3.0": (PAIRS, *PPO),
}


@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
def test_a_run_with_evaluations_is_the_run_without(words):
    plain, evaluated = (configure(*words, *more) for more in ([], EVALUATED))
    arrays, logs, _ = trained(plain)
    found, records, _ = trained(evaluated)
    assert arrays.keys() == found.keys()
    assert [key for key in arrays if arrays[key] != found[key]] == []
    assert [without_evaluation(log) for log in records] == logs
    due = [is_due(evaluated, epoch) for epoch in (1, 2, 3, 4)]
    assert ["eval/n" in log for log in records] == due and due.count(True) in (2, 3)


def test_with_processes():
    """Of environments too; a rollout is under way nowhere."""
    words = "gym:CartPole-v1", "--vec.backend", "async", "--vec.total-agents", "4", *OVERLAP
    words = *words, "--vec.num-buffers", "2", "--train.minibatch-size", "16"
    few = "--eval-interval", "1", "--eval-episodes", "4"
    arrays, logs, _ = trained(configure(*words), 2)
    found, records, _ = trained(configure(*words, *few), 2)
    assert arrays == found and [without_evaluation(log) for log in records] == logs
    assert [log["eval/n"] for log in records] == [4, 4]


# ---- what is played ------------------------------------------------------------------------------


@pytest.fixture
def seen(monkeypatch):
    """How long each evaluation may take."""
    found = []

    def watched(stepper, episodes, **how):
        found.append(how["max_steps"])
        return score(stepper, episodes, **how)

    monkeypatch.setattr(evaluator_module, "score", watched)
    return found


@pytest.mark.parametrize("greedy", [False, True])
def test_what_it_finds_is_the_score_of_those_weights(seen, greedy):
    config = configure(*SQUARED, *EVALUATED, *MANY, "--eval-greedy", str(greedy), "--vec.seed", "3")
    _, logs, trainer = trained(config)
    with make(settings(config, trainer.vec)) as environments:
        stepper = AgentStepper(
            trainer.policy, trainer.weights, environments, config.base.seed, greedy
        )
        expected = score(stepper, 160, max_steps=100_000)
    assert logs[-1]["eval/score"] == expected.summary()["score"].mean
    assert logs[-1]["eval/score_std"] == expected.summary()["score"].std > 0
    assert logs[-1]["eval/n"] == 160
    assert seen == [episodes.MAX_STEPS] * 2


def test_it_depends_on_the_weights_alone():
    """However often was evaluated before: a run that goes on finds what it would have found."""
    often, seldom = (
        trained(configure(*SQUARED, *MANY, "--eval-interval", str(steps)))[1]
        for steps in (1, E * N * T)
    )
    assert [len(log) for log in often] == [len(often[-1])] * E
    assert often[-1] == seldom[-1] and often[0]["eval/score"] != often[-1]["eval/score"]


def test_no_environment_is_one_that_is_trained_on():
    config = configure(*SQUARED, *EVALUATED, "--vec.seed", "3")
    with make(config) as environments:
        own = settings(config, environments).vec
    assert (own.total_agents, own.num_buffers) == (12, 1)
    assert not {*range(3, 3 + N)} & {*range(own.seed, own.seed + 12)}
    assert config.vec.seed == 3 and config.vec.num_buffers == 2
    config.vec.seed = 2**31 - 1
    with make(config) as environments:
        assert settings(config, environments).vec.seed == 2**30 - 1


def test_as_many_environments_as_the_episodes_need():
    for words, agents in [
        ([], 12),
        (["--eval-episodes", "1000"], 16),
        (["--eval-episodes", "17"], 9),  # two episodes of each
        (["--eval-agents", "5"], 5),
    ]:
        config = configure(*SQUARED, *EVALUATED, *words)
        with make(config) as environments:
            assert settings(config, environments).vec.total_agents == agents


def test_environments_of_several_agents():
    """More episodes of each: see ``environments_for``."""
    config = configure("target", *EVALUATED)
    with make(config) as environments:
        agents = environments.num_agents // environments.num_environments
        assert agents > 1 and settings(config, environments).vec.total_agents == agents
    assert [environments_for(n, 8, 1) for n in (1, 8, 9, 100)] == [1, 8, 5, 8]
    assert [environments_for(n, 8, 2) for n in (1, 20, 21, 400)] == [1, 1, 2, 8]


def test_statistics_are_as_they_are_and_stay(seen, monkeypatch):
    config = configure("cartpole", "--vec.normalize-observations", "1", *EVALUATED)
    kept = []

    def kept_score(stepper, episodes, **how):
        before = stepper.vec.memory()
        found = score(stepper, episodes, **how)
        kept.append((before, stepper.vec.memory()))
        return found

    monkeypatch.setattr(evaluator_module, "score", kept_score)
    with make(config) as environments:
        trainer = Trainer(config, environments)
        evaluator = Evaluator(trainer, make)
        trainer.step()
        trainer.step()
        trained_on = environments.memory()  # type: ignore
        assert evaluator.after_epoch()
    ((before, after),) = kept
    for name, array in trained_on.items():
        np.testing.assert_array_equal(before[name], array)
        np.testing.assert_array_equal(after[name], array)


@pytest.mark.parametrize("more", [EVALUATED, []])
def test_an_evaluation_says_all_along_that_it_goes_on(more):
    config = configure(*SQUARED, *more)
    with make(config) as environments:
        trainer, signs = Trainer(config, environments), []
        evaluator = Evaluator(trainer, make, lambda: signs.append(trainer.epoch))
        for _ in trainer:
            evaluator.after_epoch()
        while_training, rollouts = len(signs), len(list(evaluator.after_training()))
    if more:
        assert while_training > 10 and {*signs} == {2, 4}  # each of their steps
    else:
        assert while_training == 0 < rollouts == len(signs)


def test_episodes_that_do_not_end(monkeypatch):
    monkeypatch.setattr(evaluator_module, "MAX_STEPS", 3)
    config = configure("gym:CartPole-v1", *EVALUATED, "--vec.backend", "vector")
    _, logs, _ = trained(config)
    assert logs[-1]["eval/unfinished"] == 12 and logs[-1]["eval/n"] == 0
    assert "eval/score" not in logs[-1]


EACH_EPOCH = "--eval-interval", str(N * T)


def test_so_many_episodes_unless_somebody_says_how_many(tmp_path):
    """Also of a run that goes on: its own file says what it has."""
    assert configure(*SQUARED).base.eval_episodes == 10_000
    config = configure(*SQUARED, *EACH_EPOCH)
    (note,) = config.notes
    assert config.base.eval_episodes == 100 and "100 episodes, not 10,000: eval_episodes" in note
    asked = configure(*SQUARED, *EACH_EPOCH, "--eval-episodes", "10000")
    assert asked.base.eval_episodes == 10_000 and asked.notes == []
    for before in asked, config:
        c.write_ini(before, tmp_path / "config.ini")
        again = c.load("squared", [], [tmp_path / "config.ini"])
        assert again.base.eval_episodes == before.base.eval_episodes and again.notes == []


# ---- when, and what follows ----------------------------------------------------------------------


def test_after_the_epochs_that_reach_the_steps_and_the_last():
    for interval, epochs in [
        *((0, []), (128, [1, 2, 3, 4]), (129, [2, 3, 4]), (256, [2, 4]), (300, [3, 4]))
    ]:
        config = configure(*SQUARED, "--eval-interval", str(interval))
        assert [epoch for epoch in range(E + 1) if is_due(config, epoch)] == epochs


def test_the_score_that_ends_a_run():
    for bound, goal, ends in [
        ("none", "maximize", []),
        ("2", "maximize", [2, 3]),
        ("-1", "minimize", [-2, -1]),
    ]:
        config = configure(*SQUARED, *EVALUATED, "--stop-at-score", bound, "--sweep.goal", goal)
        assert [found for found in (-2, -1, 0, 1.9, 2, 3) if target_reached(config, found)] == ends
        assert not target_reached(config, None)


def test_a_score_that_is_not_reported():
    words = *SQUARED, *EVALUATED, "--sweep.metric", "luck"
    scores = Scores([{"n": 1.0, "score": 2.0, "env": 0.0}], 1, 1, 0, 5, 0.1)
    assert logs_of(scores, configure(*words)) == {"eval/score": 2, "eval/n": 1}
    with pytest.raises(UserError) as caught:
        logs_of(scores, configure(*words, "--stop-at-score", "1"))
    assert caught.value.message == "base.stop_at_score is of luck, which squared doesn't report"
    assert caught.value.hint == "[sweep] metric = one of score"


# ---- after training, and the checkpoints ---------------------------------------------------------


def test_the_last_weights_are_evaluated_once(seen):
    config = configure(*SQUARED, *EVALUATED)
    with make(config) as environments:
        trainer = Trainer(config, environments)
        evaluator, logs = Evaluator(trainer, make), {}
        for logs in trainer:
            logs |= evaluator.after_epoch()
        (last,) = evaluator.after_training()
        assert len(seen) == 2
        (again,) = Evaluator(trainer, make).after_training()  # killed before that record
    assert last == again
    assert last["agent_steps"] == E * N * T and last["env/score"] == logs["eval/score"]
    assert {*last} == {"agent_steps", *(f"env/{key[5:]}" for key in logs if key[:5] == "eval/")}


def observed(keeper, step, found):
    logs = {"agent_steps": step, "env/score": 100.0, "env/n": 1.0}
    keeper.observe(logs if found is None else {**logs, "eval/score": found})
    return keeper.improved


@pytest.mark.parametrize("goal", ["maximize", "minimize"])
def test_better_than_all_before(tmp_path, goal):
    """The epochs between aren't judged, whatever training told."""
    config, sign = configure(*SQUARED, *EVALUATED, "--sweep.goal", goal), 1
    sign = -1 if goal == "minimize" else 1
    with make(config) as environments:
        trainer = Trainer(config, environments)
        about = environments.spec, trainer.policy, trainer.weights, None
        keeper = CheckpointManager(tmp_path, config)
        judged = [(1, None, 0), (2, 5, 1), (3, None, 0), (4, 4, 0), (5, 5, 0), (6, 6, 1)]
        for step, found, better in judged:
            found = None if found is None else sign * found
            assert observed(keeper, step, found) == bool(better), step
            assert checkpoint_info(keeper.save(step, *about)).score == found  # type: ignore
        assert (tmp_path / "best").resolve().name == f"{6:016d}"
        assert not observed(keeper, 7, float("nan"))
        assert not observed(keeper, 8, sign * 5)
        assert checkpoint_info(keeper.save(9, *about)).score is None  # type: ignore  # of another epoch


# ---- the script ----------------------------------------------------------------------------------

EACH = f"--eval-interval {BATCH} --eval-episodes 160 --checkpoint-interval 0".split()
EACH += ["--train.learning-rate", "0.3", "--checkpoint-keep", "0"]


def test_a_run_and_its_best(script, here, capsys):
    """The best is saved when it is found, and its record has what the checkpoint is called by."""
    assert script.main([*TINY, *EACH]) == 0
    out = capsys.readouterr().out
    *logs, last = records(here)
    scores = [log["eval/score"] for log in logs]
    assert len(scores) == EPOCHS and last["env/score"] == scores[-1]
    run_folder = only(here, "checkpoints/squared/*")
    assert len({*scores}) > 2
    best = 1 + max(range(EPOCHS), key=lambda epoch: (scores[epoch], epoch))
    assert (run_folder / "best").resolve().name == f"{best * BATCH:016d}"
    kept = [checkpoint_info(path) for path in sorted(run_folder.glob("0*"))]
    assert [(one.step, one.score) for one in kept if one] == [
        (BATCH * (1 + epoch), found)
        for epoch, found in enumerate(scores)
        if epoch == EPOCHS - 1 or found > max(scores[:epoch], default=-np.inf)
    ]
    assert f"evaluation score {scores[-1]:.3f}" in out
    (line,) = (x for x in out.splitlines() if x.startswith("evaluation of the final weig"))
    assert f" score {scores[-1]:.3f}," in line


def test_a_run_that_reaches_its_score_has_ended(script, here, capsys):
    said = "has reached base.stop_at_score -1e+09: the run ends (--stop-at-score none goes on)"
    resume = "squared", "--resume", "latest"
    for words in (*TINY, *EACH, "--stop-at-score", "-1e9"), resume:
        assert script.main([*words]) == 0
        assert said in capsys.readouterr().out and len(records(here)) == 1
    assert script.main([*resume, "--stop-at-score", "none"]) == 0
    assert len(records(here)) == EPOCHS + 1 and records(here)[0]["epoch"] == 1
    run_folder = only(here, "checkpoints/squared/*")
    config = c.load("squared", [f"--checkpoint-dir={here}"], [run_folder / "best/config.ini"])
    assert config.base.stop_at_score == "none"
