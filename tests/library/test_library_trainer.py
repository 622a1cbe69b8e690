"""``puffer_mlx.train`` and ``puffer_mlx.Trainer``."""

import gc
import json
import sys
import warnings
import weakref
from dataclasses import replace
from typing import Any

import gymnasium
import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from oracles import named, same

import puffer_mlx
from puffer_mlx import config, vec
from puffer_mlx.cli import export
from puffer_mlx.cli import train as script
from puffer_mlx.errors import UserError
from puffer_mlx.library.settings import collect_settings
from puffer_mlx.ppo.loss import ppo_loss
from puffer_mlx.training import trainer as training

SQUARED: dict[str, Any] = {
    "total_agents": 8,
    "horizon": 32,
    "minibatch_size": 128,
    "hidden_size": 8,
}
SQUARED |= {"num_layers": 1, "total_timesteps": 2048, "num_threads": 1, "device": "cpu"}
FALLING: dict[str, Any] = {**SQUARED, "min_lr_ratio": 0.1}
CARTPOLE: dict[str, Any] = {"total_timesteps": 1024, "total_agents": 2, "horizon": 64}
STEPS = 2048 // 256


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head, self.value = nn.Linear(4, 8), nn.Linear(8, 2), nn.Linear(8, 1)

    def __call__(self, x):
        h = nn.tanh(self.body(x))
        return self.head(h), self.value(h)


def body(trainer) -> np.ndarray:
    """Return the weights of the first layer of a trainer's custom module."""
    return np.array(dict(named(trainer.weights))["network.body.weight"])


def alike(one, other) -> bool:
    return same(one.weights, other.weights)


def test_train_equals_the_trainer_of_the_command_line():
    options = [f"--{name}={value}" for name, value in collect_settings(SQUARED).items()]
    settings = config.load("squared", options)
    with vec.make(settings, 1) as environments:
        plain = training.Trainer(settings, environments)
        records = list(plain)
    with puffer_mlx.train("squared", **SQUARED) as trainer:
        assert len(records) == trainer.epoch == STEPS
        assert alike(trainer, plain)


def test_a_loaded_run_resumes_to_the_bit(tmp_path):
    with puffer_mlx.Trainer(SQUARED, "squared") as whole:
        for logs in whole:
            if logs["epoch"] == STEPS // 2:
                saved = whole.save(tmp_path / "half")
                assert (saved / "state.safetensors").is_file()
    with puffer_mlx.Trainer.load(tmp_path / "half") as resumed:
        assert resumed.epoch == STEPS // 2
        losses = [logs["loss/total"] for logs in resumed]
        assert alike(resumed, whole)
        assert losses == [logs["loss/total"] for logs in whole.history[STEPS // 2 :]]


def test_load_names_newer_weights_that_it_leaves_behind(tmp_path):
    with puffer_mlx.Trainer(SQUARED, "squared") as trainer:
        first, second = [trainer.save(tmp_path) for _, _ in zip(range(2), trainer, strict=False)]
    (second / "state.safetensors").unlink()
    with pytest.warns(UserWarning, match=f"{second} is newer, but has only weights"):
        trainer = puffer_mlx.Trainer.load(tmp_path)
    with trainer:
        assert trainer.epoch == 1 and trainer.global_step == int(first.name)


def test_each_save_adds_one_and_the_newest_is_loaded(tmp_path):
    with puffer_mlx.Trainer(SQUARED, "squared") as trainer:
        folders = [trainer.save(tmp_path) for _ in trainer]
        assert len({*folders}) == STEPS
        assert puffer_mlx.Policy.load(tmp_path).step == 2048
        assert puffer_mlx.Policy.load(folders[2]).step == 3 * 256
    with puffer_mlx.Trainer.load(tmp_path, total_timesteps=4096) as trainer:
        assert trainer.history == []  # those before are the program's that had them
        records = list(trainer)
        assert len(records) == STEPS and trainer.history == records
        assert [logs["agent_steps"] for logs in records] == [*range(2304, 4097, 256)]
    with puffer_mlx.Trainer(SQUARED, "squared") as again:  # another run into the same folder
        again.step()
        again.save(tmp_path)
    assert puffer_mlx.Policy.load(tmp_path).step == 256
    with pytest.raises(UserError, match=r"no setting total_timestep\n.*total_timesteps"):
        puffer_mlx.Trainer.load(tmp_path, total_timestep=4096)
    with pytest.raises(UserError, match="there is no checkpoint"):
        puffer_mlx.Trainer.load(tmp_path / "none")


def test_loading_runs_no_code_that_only_a_file_names(here, monkeypatch):
    (here / "mine.py").write_text(
        "import gymnasium\nprint('imported')\ndef make():\n"
        "    return gymnasium.make('CartPole-v1')\n"
    )
    monkeypatch.syspath_prepend(here)
    with puffer_mlx.train("mine:make", **CARTPOLE) as trainer:
        trainer.save("run")
    sys.modules.pop("mine")
    refused = r"names Python code that would be imported: mine:make.*\n.* or env=make"
    with pytest.raises(UserError, match=refused):
        puffer_mlx.Trainer.load("run")
    policy = puffer_mlx.Policy.load("run")
    with pytest.raises(UserError, match=refused):
        puffer_mlx.evaluate(policy)
    policy.predict(np.zeros(4))
    policy.spec = replace(policy.spec, spaces="")  # as of an older version
    policy._adapter = None
    with pytest.raises(UserError, match=r"aren't known: .*\n  hint: Policy.load\(path, env"):
        policy.predict(np.zeros(4))
    assert "mine" not in sys.modules
    puffer_mlx.Trainer.load("run", "mine:make").close()
    assert sys.modules.pop("mine").__file__ == str(here / "mine.py")  # another test's may come


def test_an_environment_that_cannot_be_imported_can_be_given(tmp_path):

    def mine():
        return gymnasium.make("CartPole-v1")

    with puffer_mlx.train(mine, **CARTPOLE) as trainer:
        trainer.save(tmp_path)
    with pytest.raises(UserError, match=r"has no test_\w+\.mine\n.* in Python env=mine"):
        puffer_mlx.Trainer.load(tmp_path, allow_code=True)
    puffer_mlx.Trainer.load(tmp_path, env=mine).close()


def test_a_module_is_trained_saved_and_resumed(tmp_path):
    mx.random.seed(3)
    module = Both()
    before = np.array(module.body.weight)
    with puffer_mlx.train("gym:CartPole-v1", policy=module, **CARTPOLE) as trainer:
        trainer.save(tmp_path)
        assert (np.array(module.body.weight) == before).all()
        assert not (body(trainer) == before).any()
        expected = trainer.predict(np.ones(4), deterministic=True).action
        with pytest.raises(UserError, match=r"custom mlx.nn.Module, which no format supports"):
            trainer.export(tmp_path / "policy.onnx")
    with puffer_mlx.Trainer.load(tmp_path, policy=Both(), total_timesteps=2048) as resumed:
        assert resumed.epoch == 8 and alike(resumed, trainer)
        assert len(list(resumed)) == 8
    policy = puffer_mlx.Policy.load(tmp_path, policy=Both())
    assert policy.predict(np.ones(4), deterministic=True).action == expected
    for load in (puffer_mlx.Policy.load, puffer_mlx.Trainer.load):
        with pytest.raises(UserError, match=r"the policy is a custom mlx.nn.Module"):
            load(tmp_path)
    with pytest.raises(UserError, match=r"policy.hidden_size is set, but the policy is a module"):
        puffer_mlx.train("gym:CartPole-v1", policy=Both(), hidden_size=8)


@pytest.mark.parametrize("algorithm", ["puffer5", "ppo"])
def test_every_algorithm_trains_a_module(algorithm):
    module = Both()
    settings = {**CARTPOLE, "algorithm": algorithm, "minibatch_size": 64}
    with puffer_mlx.train("gym:CartPole-v1", policy=module, **settings) as trainer:
        assert (body(trainer) != np.array(module.body.weight)).any() and trainer.error is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"prio_alpha": 0.5, "algorithm": "puffer5"}, "train.prio_alpha is unused here"),
        ({"checkpoint_keep": 1}, r"checkpoint_keep \(without checkpoint_dir\) is unused"),
    ],
)
def test_a_setting_that_changes_nothing_is_warned_of(settings, said):
    with pytest.warns(UserWarning, match=said) as caught:
        puffer_mlx.Trainer({**SQUARED, **settings}, "squared").close()
    assert {warning.filename for warning in caught} == {__file__}
    with warnings.catch_warnings(action="error"):
        puffer_mlx.Trainer(SQUARED, "squared", gamma=0.5).close()


class Acrobat(Both):
    def __call__(self, x):
        return super().__call__(x[:, :4])


def test_environments_are_closed_with_the_last_reference_or_after_an_error(monkeypatch):
    real, closed = vec.make, []

    def make(*arguments, **how):
        environments = real(*arguments, **how)
        close = environments.close
        monkeypatch.setattr(environments, "close", lambda: closed.append(close()))
        return environments

    monkeypatch.setattr("puffer_mlx.library.trainer.vec.make", make)
    trainer = puffer_mlx.Trainer(SQUARED, "squared")
    finalizer = weakref.finalize(trainer, int)
    del trainer
    gc.collect()
    assert not finalizer.alive and len(closed) == 1
    with pytest.raises(UserError, match="needs outputs"):
        puffer_mlx.Trainer({}, "gym:Acrobot-v1", Acrobat())
    assert len(closed) == 2


def test_given_environments_are_not_closed():
    settings = config.load("squared", [f"--{key}={value}" for key, value in SQUARED.items()])
    with vec.make(settings, 1) as environments:
        trainer = puffer_mlx.Trainer(settings, environments)
        trainer.step()
        trainer.close()
        trainer.step()  # they are open
        assert trainer.vec is environments


def test_training_stops_at_a_score_and_resumes_only_with_another_bound(tmp_path):
    settings = {**CARTPOLE, "total_timesteps": 2048, "eval_interval": 256, "eval_episodes": 2}
    with puffer_mlx.Trainer({**settings, "stop_at_score": 1.0}, "gym:CartPole-v1") as trainer:
        records = list(trainer)
        trainer.save(tmp_path)
    assert trainer.epoch == 2 and ["eval/score" in logs for logs in records] == [False, True]
    said = r"eval/score [\d.]+ has reached base.stop_at_score 1: .*stop_at_score=\"none\" continues"
    with (
        pytest.warns(UserWarning, match=said) as caught,
        puffer_mlx.Trainer.load(tmp_path) as again,
    ):
        assert list(again) == [] and again.epoch == 2
    assert [warning.filename for warning in caught] == [__file__]
    for bound in "none", 1e6:
        with puffer_mlx.Trainer.load(tmp_path, stop_at_score=bound) as again:
            next(iter(again))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"eval_interval": 256, "eval_episodes": 2, "stop_at_score": 1.0},
            'has reached base.stop_at_score 1; stop_at_score="none" continues',
        ),
        ({"total_timesteps": 300}, "steps 256, rounded down from 300 (whole epochs)"),
    ],
)
def test_progress_ends_with_the_reason_for_fewer_steps(settings, said, capsys):
    settings = {**CARTPOLE, "total_timesteps": 2048, **settings}
    puffer_mlx.train("gym:CartPole-v1", settings, progress=True).close()
    assert said in capsys.readouterr().out.splitlines()[-1]


def test_objects_print_as_one_line():
    with puffer_mlx.Trainer(CARTPOLE, "gym:CartPole-v1") as trainer:
        assert repr(trainer) == "<Trainer of gym:CartPole-v1: 0 of 1,024 steps>"
        assert repr(puffer_mlx.Policy(trainer)).startswith("<Policy of gym:CartPole-v1: 4 float32")
        scores = puffer_mlx.evaluate(trainer, episodes=1)
        assert repr(scores) == f"<Scores: {scores}>"


# ---- records and callbacks ---------------------------------------------------------------------


@pytest.mark.parametrize(("more", "last"), [(None, "stop"), (True, False)])
def test_a_callback_gets_each_record_and_may_stop(more, last):
    heard = []

    def callback(logs):
        heard.append(logs)
        return last if logs["epoch"] == 3 else more

    with puffer_mlx.train("squared", SQUARED, callback=callback) as trainer:
        assert heard == trainer.history and len(heard) == trainer.epoch == 3


# ---- files of other programs ---------------------------------------------------------------------


def test_export_writes_the_bytes_of_the_command_line(here):
    settings = {"total_timesteps": 256, "total_agents": 2, "horizon": 64, "minibatch_size": 128}
    with puffer_mlx.train("gym:Pendulum-v1", settings, device="cpu") as trainer:
        report = trainer.export("mine.onnx")
        trainer.save("run")
    assert export.main(["run", "--to", "onnx", "--out", "theirs.onnx", "--quiet"]) in (None, 0)
    assert (here / "mine.onnx").read_bytes() == (here / "theirs.onnx").read_bytes()
    assert "2 sequences of 64 recorded observations" in report.observations


def test_the_suffix_chooses_the_format_of_an_export(here):
    with puffer_mlx.Trainer(SQUARED, "squared") as trainer:
        assert trainer.export("policy.bin").path.stat().st_size > 0  # PufferLib's
        assert "random" in trainer.export("w.pth").observations  # nothing was recorded yet
        trainer.export("torch.bin", to="torch")
    assert {path.name for path in here.iterdir()} == {"policy.bin", "w.pth", "torch.bin"}


def test_export_writes_statistics_beside_a_lossy_file(here):
    native = {"dialect": "native", "network": "MinGRU", "minibatch_size": 128}
    with puffer_mlx.Trainer({**CARTPOLE, **native}, "gym:CartPole-v1") as trainer:
        trainer.step()
        with pytest.raises(UserError, match=r"normalization.*\n.*--lossy"):
            trainer.export("w.bin", lossy=False)
        trainer.export("w.bin", lossy=True)
    assert (here / "w.bin.normalization.safetensors").is_file()


# ---- custom schedules ----------------------------------------------------------------------------


def falling(progress):
    """Compute the learning rate of the schedule ``linear``, to the bit."""
    return 0.01 + (0.1 * 0.01 - 0.01) * progress


def test_a_function_may_be_the_learning_rate():
    straight = {"learning_rate": 0.01, "lr_schedule": "linear", "anneal_lr": True}
    with puffer_mlx.train("squared", FALLING, **straight) as expected:
        pass
    sectioned = {**FALLING, "train": {"learning_rate": falling}}
    for given in {**FALLING, "learning_rate": falling}, sectioned:
        with puffer_mlx.train("squared", given) as trainer:
            assert alike(trainer, expected)
            rates = [logs["loss/learning_rate"] for logs in trainer.history]
            assert rates == [falling(epoch / STEPS) for epoch in range(STEPS)]
    with puffer_mlx.train("squared", sectioned, learning_rate=0.1) as trainer:
        assert trainer.history[0]["loss/learning_rate"] == 0.1  # the last one given wins


def test_a_run_with_a_function_is_loaded_with_the_function_or_a_number(here, capsys):
    with puffer_mlx.Trainer(FALLING, "squared", learning_rate=falling) as half:
        half.step()
        half.save("half")
    said = r"a function, which checkpoints don't contain\n.*load\(path, learning_rate="
    with pytest.raises(UserError, match=said):
        puffer_mlx.Trainer.load("half")
    assert script.main(["squared", "--resume", "half"]) == 2
    assert "checkpoints don't contain" in capsys.readouterr().err
    puffer_mlx.Trainer.load("half", learning_rate=falling).close()
    with puffer_mlx.Trainer.load("half", learning_rate=0.01) as resumed:
        resumed.save("other")
    puffer_mlx.Trainer.load("other").close()  # it has a number now
    assert puffer_mlx.Policy.load("half").predict(np.zeros(121)).action in range(5)


@pytest.mark.parametrize(
    ("name", "values"), [("clip_coef", (1e-4, 0.3)), ("ent_coef", (0.5, 0.001))]
)
def test_a_scheduled_coefficient_is_that_of_each_epoch(here, name, values):
    """A run that is resumed with the second value has the same weights."""

    def schedule(progress):
        return values[progress >= 0.5]

    plain: dict[str, Any] = {**FALLING, "anneal_lr": False, "replay_ratio": 4}
    first = {**plain, "anneal_ent_coef": False, name: values[0]}
    second: dict[str, Any] = {name: values[1]}
    with puffer_mlx.Trainer(first, "squared") as half:
        for logs in half:
            half.stop = logs["epoch"] == STEPS // 2
        half.save("half")
    with puffer_mlx.Trainer.load("half", **second) as expected:
        list(expected)
    with puffer_mlx.train("squared", {**plain, name: schedule}) as trainer:
        assert alike(trainer, expected)
        used = [logs[f"loss/{name}"] for logs in trainer.history]
        assert used == [np.float32(schedule(epoch / STEPS)) for epoch in range(STEPS)]


def test_schedules_dont_compile_the_update_again(here):
    traced = []

    def loss(forward, targets, **numbers):
        traced.append(numbers["clip_coef"])
        logprob, entropy, value, *_ = forward
        return ppo_loss(logprob, entropy, value, targets, **numbers)

    given: dict[str, Any] = {"clip_coef": lambda part: 0.1 + part, "vf_coef": lambda part: 2 - part}
    with puffer_mlx.train("squared", FALLING, loss=loss, **given) as trainer:
        assert len({logs["loss/clip_coef"] for logs in trainer.history}) == STEPS
    assert len(traced) == 1


def test_a_misspelt_attribute_is_an_error_with_the_nearest_name():
    with puffer_mlx.Trainer(SQUARED, "squared", env_kwargs={"size": 3}) as trainer:
        with pytest.raises(AttributeError, match=r"Trainer has no .*'weigths'.*'weights'"):
            trainer.weigths  # noqa: B018
        with pytest.raises(AttributeError, match=r"'stopp'.*'stop'"):
            trainer.stopp = True
        trainer.stop = True
        assert list(trainer) == []
        assert trainer.placement is not None and "placement" in dir(trainer)
        assert trainer.config.env["size"] == 3


RUN: dict[str, Any] = {**SQUARED, "checkpoint_interval": 2, "eval_interval": 512}
RUN |= {"eval_episodes": 8}


def test_checkpoint_dir_writes_a_run_as_the_command_line_does(here, capsys):
    """Checkpoints, ``best`` and log are equal, and the command line resumes the run."""
    words = [f"--{name}={value}" for name, value in collect_settings(RUN).items()]
    assert script.main(["squared", *words]) == 0
    (ours,) = (here / "checkpoints" / "squared").iterdir()
    with puffer_mlx.train("squared", RUN, checkpoint_dir="python") as trainer:
        pass
    (run,) = (here / "python" / "squared").iterdir()
    assert [path.name for path in sorted(run.iterdir())] == [
        path.name for path in sorted(ours.iterdir())
    ]
    assert (run / "best").readlink() == (ours / "best").readlink()
    for step in ours.glob("0*"):
        one, other = (folder / step.name / "weights.safetensors" for folder in (ours, run))
        assert one.read_bytes() == other.read_bytes()
    kept = "agent_steps", "env/score", "evaluation/score", "env/n"
    logs = []
    for name in ours.name, run.name:
        lines = (here / "logs" / "squared" / f"{name}.jsonl").read_text().splitlines()
        logs.append([{key: json.loads(line).get(key) for key in kept} for line in lines])
    assert logs[0] == logs[1] and len(logs[0]) == STEPS + 1
    assert script.main(["squared", "--resume", str(run), "--total-timesteps", "2304"]) == 0
    assert len(trainer.history) == STEPS


def test_train_resumes_a_run_with_a_schedule_to_the_bit(here):
    given: dict[str, Any] = {"clip_coef": lambda progress: 0.1 + progress}
    with puffer_mlx.train("squared", RUN, checkpoint_dir="whole", **given) as whole:
        pass

    def halfway(logs):
        return "stop" if logs["epoch"] == STEPS // 2 else None

    puffer_mlx.train("squared", RUN, checkpoint_dir="runs", callback=halfway, **given).close()
    with puffer_mlx.train("squared", resume="latest", checkpoint_dir="runs", **given) as resumed:
        assert resumed.history[0]["epoch"] == STEPS // 2 + 1
        assert alike(resumed, whole)
    (run,) = (here / "runs" / "squared").iterdir()
    assert (run / f"{2048:016d}").is_dir()


def test_closing_a_trainer_saves_its_last_epoch(here):
    rare = {**RUN, "checkpoint_dir": "runs", "checkpoint_interval": 0, "eval_interval": 0}
    with puffer_mlx.Trainer(rare, "squared") as trainer:
        trainer.step()
        trainer.step()
    (folder,) = here.glob("runs/squared/*/0*")
    assert folder.name == f"{512:016d}"
    assert puffer_mlx.Policy.load(folder).step == 512
