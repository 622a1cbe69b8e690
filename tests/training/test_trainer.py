"""The trainer: epochs against float64, retries, progress, logs, stopping and errors."""

import re
from collections.abc import Callable
from typing import Any
from unittest import mock

import mlx.core as mx
import numpy as np
import oracles
import pytest
from mlx.utils import tree_map
from oracles import f64, flat, named
from watching import acting, functions, replace_functions

from puffer_mlx import config, vec
from puffer_mlx.distributed.single_process import SingleProcess
from puffer_mlx.errors import UserError
from puffer_mlx.ppo.loss import METRICS
from puffer_mlx.profiling.phases import PROFILE_EVERY
from puffer_mlx.rollout.on_gpu import GPUError
from puffer_mlx.training import collectors
from puffer_mlx.training.epoch_logs import EpochProgress
from puffer_mlx.training.learner import Update
from puffer_mlx.training.trainer import Trainer

T, N, S, K, H = 4, 8, 4, 3, 4
OPTIONS = f"""
    --device cpu --policy.hidden-size {H} --policy.num-layers 2
    --vec.total-agents {N} --vec.num-buffers 2 --train.horizon {T}
    --train.minibatch-size {S * T} --train.replay-ratio 1.5 --train.learning-rate 0.02
    --env.size 3 --train.ent-coef 0.02 --train.anneal-ent-coef True
"""


def configure(epochs, *more):
    return config.load(
        "squared", [*OPTIONS.split(), f"--train.total-timesteps={epochs * N * T}", *more]
    )


class RandomVec(oracles.RandomVec):
    def __init__(self, change: Any = None) -> None:
        super().__init__(N, change=change)


def run(
    epochs=3, *more, make: Callable[[], RandomVec] = RandomVec
) -> tuple[Trainer, list[dict[str, float]]]:
    trainer = Trainer(configure(epochs, *more), make())
    return trainer, list(trainer)


def losses(logs):
    return [{k: v for k, v in record.items() if k.startswith("loss/")} for record in logs]


# ---- macOS ends a computation on the GPU ---------------------------------------------------------

ENDED = (
    "[METAL] Command buffer execution failed: Impacting Interactivity"
    " (0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity)"
)


def failing(trainer: Trainer, message: str, *calls: int) -> list[int]:
    """Let some calls of a trainer's ``optimise`` raise, counted from 1.

    Returns the list of counted calls.
    """
    real = functions(trainer).optimise
    counted = []

    def optimise(*arguments):
        counted.append(len(counted) + 1)
        if counted[-1] in calls:
            raise RuntimeError(message)
        return real(*arguments)

    replace_functions(trainer, optimise=optimise)
    return counted


@pytest.mark.parametrize("overlap", [0, 1])
def test_an_ended_update_is_repeated_step_by_step_to_the_bit(monkeypatch, overlap):
    expected, logs = run(3, f"--train.overlap={overlap}")
    trainer = Trainer(configure(3, f"--train.overlap={overlap}"), RandomVec())
    counted = failing(trainer, ENDED, 2 * K + 2)  # the third epoch is not profiled
    evaluated = []
    real = Update.lap

    def lap(update, phase, result):
        with mock.patch.object(mx, "eval", wraps=mx.eval) as evaluate:
            real(update, phase, result)
        evaluated.append(update.retrying and evaluate.called)

    monkeypatch.setattr(Update, "lap", lap)
    assert losses([*trainer]) == losses(logs)
    assert len(counted) == 3 * K + 2 and sum(evaluated) >= 2 * K
    np.testing.assert_array_equal(flat(trainer.weights), flat(expected.weights))
    key, other = (np.array(each.state().arrays["key"]) for each in (trainer, expected))
    np.testing.assert_array_equal(key, other)


def test_an_update_that_is_ended_twice_is_an_error_and_changes_nothing():
    expected, _ = run(3, "--train.overlap=1")
    trainer = Trainer(configure(3, "--train.overlap=1"), RandomVec())
    trainer.step()
    before = flat(trainer.weights)
    state = trainer.state()
    counted = failing(trainer, ENDED, 2, 3)
    with pytest.raises(GPUError) as caught:
        trainer.step()
    assert len(counted) == 3 and trainer.epoch == 1
    message, hint = str(caught.value).split("\n  hint: ")
    assert message == f"macOS ended the GPU's training twice, at last step by step: {ENDED}"
    assert hint.startswith("a smaller --train.minibatch-size (it is 16); or set AGX_RELAX_CDM_")
    np.testing.assert_array_equal(flat(trainer.weights), before)
    for name, array in trainer.state().arrays.items():
        if name != "recorded":  # belongs to the previous rollout
            np.testing.assert_array_equal(np.array(array), np.array(state.arrays[name]), name)
    list(trainer)
    np.testing.assert_array_equal(flat(trainer.weights), flat(expected.weights))


def test_results_that_are_ended_twice_are_an_error(monkeypatch):
    """macOS may end the computation when its results are waited for."""
    trainer = Trainer(configure(3), RandomVec())

    def ended(*_):
        raise RuntimeError(ENDED)

    monkeypatch.setattr(trainer.learner.finite_check, "check", ended)
    with pytest.raises(GPUError, match="training twice, at last step by step"):
        trainer.step()
    assert trainer.epoch == 0 and trainer.queue.rollout is not None


def test_one_of_several_ranks_does_not_retry():
    """The other ranks are in the middle of the same sum and wait for no second one."""

    class OneOfTwo(SingleProcess):
        size = 2

    trainer = Trainer(configure(3), RandomVec())
    trainer.ranks = trainer.learner.ranks = OneOfTwo()
    counted = failing(trainer, ENDED, 1)
    with pytest.raises(GPUError, match="with several processes it isn't tried again"):
        trainer.step()
    assert (len(counted), trainer.epoch) == (1, 0)


@pytest.mark.parametrize("overlap", [0, 1])
def test_an_ended_rollout_in_steps_is_an_error(overlap):
    """The environments have stepped, so the rollout can't be repeated."""
    trainer = Trainer(configure(3, f"--train.overlap={overlap}"), RandomVec())

    def fail(*_):
        raise RuntimeError(ENDED)

    acting(trainer, fail)
    with pytest.raises(UserError, match=r"rollout: .*\n.*AGX_RELAX") as caught:
        trainer.step()
    assert not isinstance(caught.value, GPUError)


def test_other_errors_are_not_retried():
    trainer = Trainer(configure(3), RandomVec())
    counted = failing(trainer, "another error", 2)
    with pytest.raises(RuntimeError, match="another error"):
        trainer.step()
    assert len(counted) == 2


# ---- progress within an epoch --------------------------------------------------------------------


def test_progress_names_the_phase_and_its_part(monkeypatch):
    monkeypatch.setattr(collectors, "PROGRESS_MIN_SECONDS", -1.0)
    trainer = Trainer(configure(3), RandomVec())
    gradients = functions(trainer).gradients
    seen = []

    def look(function, *arguments):
        seen.append(trainer.progress)
        return function(*arguments)

    acting(trainer, look)
    replace_functions(trainer, gradients=lambda *arguments: look(gradients, *arguments))
    list(trainer)
    assert trainer.progress is None
    parts = [("rollout", 0), *(("training", pytest.approx(k / K)) for k in range(K))]
    assert [(each.phase, each.fraction) for each in seen] == parts * 3
    # The first epoch compiles, so the third one is the first with an expected duration.
    assert [each.usual_seconds > 0 for each in seen] == [False] * 2 * (K + 1) + [True] * (K + 1)


def test_watching_the_progress_changes_nothing(monkeypatch):
    """The rows of a slow rollout are marked; each mark is overwritten."""
    runs = []
    for slow in (0.0, 1e9):
        monkeypatch.setattr(collectors, "PROGRESS_MIN_SECONDS", slow)
        weights, logs = trained("--train.overlap=1")
        runs.append((logs, weights.tobytes()))
    assert runs[0] == runs[1]


def test_progress_as_text():
    def text(*progress, stopping=False):
        return EpochProgress(*progress).text(12, stopping)

    assert text(34.2, 51.7, "rollout", 0.4) == "epoch 12: rollout 40 %, 34s of about 51s"
    assert text(34.2, 0.0, "training", None) == "epoch 12: training, 34s"
    stops = "stops after this epoch"
    assert text(34.2, 51.7, "rollout", 0.4, stopping=True) == f"{stops}, in about 17s"
    assert text(60.0, 51.7, "training", 0.5, stopping=True) == f"{stops}, soon"


# ---- one epoch against float64 -------------------------------------------------------------------


def watch_draws(trainer: Trainer) -> list[np.ndarray]:
    """Return a list that gets the random numbers with which each minibatch is drawn."""
    uniforms_of, real = [], functions(trainer)

    def draw(fields, values, adv, totals, uniforms, beta):
        uniforms_of.append(np.array(uniforms))
        return real.draw(fields, values, adv, totals, uniforms, beta)

    replace_functions(trainer, draw=draw)
    return uniforms_of


def oracle_epoch(c, rollout, weights, momentum, uniforms, epoch, scheduled):
    """Compute an epoch of PufferLib 4.0 in float64, with gradients by finite differences.

    `weights` are float64 and changed in place; `momentum` has the same order. `scheduled` has the
    coefficients of the loss that are functions of the progress.
    """
    train, E = c.train, c.epochs
    rewards = np.clip(f64(rollout["rewards"])[:T], -train.reward_clip, train.reward_clip)
    terminals, masks = rollout["terminals"][:T], rollout["masks"][:T]
    values, ratios = f64(rollout["values"]), np.ones((T, N))
    lr = oracles.cosine(train.learning_rate, train.min_lr_ratio * train.learning_rate, epoch, E)
    ent_coef = oracles.cosine(train.ent_coef, train.min_ent_coef_ratio * train.ent_coef, epoch, E)
    beta = train.prio_beta0 + (1 - train.prio_beta0) * train.prio_alpha * epoch / E
    coefficients = {
        "clip_coef": train.clip_coef,
        "vf_coef": train.vf_coef,
        "vf_clip_coef": train.vf_clip_coef,
        "ent_coef": ent_coef,
        **scheduled,
    }
    parameters = [w for _, w in named(weights)]
    statistics = []
    repeats = False
    for k in range(K):
        clips = train.gamma, train.gae_lambda, train.vtrace_rho_clip, train.vtrace_c_clip
        adv = oracles.advantages((values, rewards, terminals, ratios), clips, train.advantage)
        p = oracles.probabilities(adv, train.prio_alpha)
        rows = oracles.draw(p, uniforms[k])
        weight = np.broadcast_to((N * p[rows]) ** -beta, (T, S))
        observations, actions = rollout["observations"][:T, rows], rollout["actions"][:, rows]
        batch = f64(rollout["logprobs"])[:, rows], values[:, rows], adv[:, rows], weight

        def forward(observations=observations, actions=actions, rows=rows):
            logits, value = oracles.policy(weights, observations)
            return *oracles.log_prob_entropy(logits, actions, (3, 2), masks[:, rows]), value

        def loss(forward=forward, batch=batch):
            return oracles.ppo_loss(*forward(), *batch, **coefficients)

        grads = [oracles.numerical_gradient(lambda: float(loss()[0]), w) for w in parameters]
        logprob, _, value = forward()
        statistics.append(loss()[1])
        values[:, rows], ratios[:, rows] = value, np.exp(logprob - batch[0])
        after, momentum = oracles.muon(
            parameters, grads, momentum, lr, train.beta1, train.max_grad_norm
        )
        for w, new in zip(parameters, after, strict=True):
            w[:] = new
        repeats |= len(set(rows)) < S
    return momentum, np.mean(statistics, axis=0), repeats


SCHEDULES = {
    "clip_coef": lambda progress: 0.02 + 0.3 * progress,
    "vf_coef": lambda progress: 4.0 - 3.0 * progress,
    "vf_clip_coef": lambda progress: 0.01 + 0.2 * progress,
}


@pytest.mark.parametrize(
    ("form", "bound", "schedules"), [("V", 1.0, {}), ("S", 1.5, {}), ("S", 1.5, SCHEDULES)]
)
def test_epochs_equal_the_float64_oracle(form, bound, schedules):
    c = configure(3, f"--train.advantage={form}", f"--train.reward-clip={bound}")
    assert (c.segments, c.minibatches, c.epochs) == (S, K, 3)
    trainer = Trainer(c, RandomVec())
    trainer.schedules = schedules
    draws = watch_draws(trainer)
    repeated, clipped = 0, 0
    for epoch in range(3):
        before = f64(flat(trainer.weights))
        weights = tree_map(f64, trainer.weights)
        momentum = [f64(m) for _, m in named(trainer.train_state.optimizer)]
        draws.clear()
        logs = trainer.step()
        names = ("observations", "actions", "logprobs", "values", "rewards", "terminals", "masks")
        rollout = {name: np.array(getattr(trainer.collector.buffer, name)) for name in names}
        # The old weights acted, from a zero state.
        logits, value = oracles.policy(weights, rollout["observations"][:T])
        logprob, _ = oracles.log_prob_entropy(
            logits, rollout["actions"], (3, 2), rollout["masks"][:T]
        )
        np.testing.assert_allclose(rollout["logprobs"], logprob, rtol=0, atol=1e-5)
        np.testing.assert_allclose(rollout["values"], value, rtol=0, atol=1e-5)

        scheduled = {name: schedule(epoch / 3) for name, schedule in schedules.items()}
        uniforms = np.concatenate(draws)
        assert uniforms.min() > 0 and uniforms.max() <= 1 and len({*uniforms}) == S * K
        momentum, statistics, repeats = oracle_epoch(
            c, rollout, weights, momentum, draws, epoch, scheduled
        )
        assert np.abs(f64(flat(weights)) - before).max() > 1e-3
        np.testing.assert_allclose(flat(trainer.weights), flat(weights), rtol=0, atol=2e-5)
        np.testing.assert_allclose(
            flat(trainer.train_state.optimizer),
            np.concatenate([m.ravel() for m in momentum]),
            rtol=0,
            atol=2e-5,
        )
        found = [logs[f"loss/{name}"] for name in METRICS]
        np.testing.assert_allclose(found, statistics, rtol=0, atol=2e-5)
        repeated += repeats
        clipped += np.abs(rollout["rewards"][:T]).max() > bound
    assert repeated and clipped, "the case is too easy"


# ---- seeds, weights and schedules ----------------------------------------------------------------


def trained(*more, epochs=4):
    c = configure(epochs, *more)
    with vec.make(c, threads=2) as environments:
        trainer = Trainer(c, environments)
        logs = list(trainer)
    assert not np.isnan(flat(trainer.weights)).any()
    return flat(trainer.weights), losses(logs)


def test_a_seed_decides_the_run_with_and_without_profiling():
    weights, logs = trained()
    again, same_logs = trained("--profile", "False")
    np.testing.assert_array_equal(weights, again)
    assert logs == same_logs
    other, _ = trained("--seed", "74")
    assert np.abs(weights - other).max() > 0.01


def test_without_annealing_only_beta_changes():
    trainer = Trainer(
        configure(4, "--train.anneal-lr=False", "--train.anneal-ent-coef=False"), RandomVec()
    )
    scheduled = [trainer.scheduled(epoch) for epoch in range(4)]
    assert {(each.lr, each.ent_coef) for each in scheduled} == {(0.02, 0.02)}
    assert len({each.beta for each in scheduled}) == 4


def test_training_begins_with_the_given_weights():
    first, _ = run(1)
    start = first.policy.init(mx.random.key(123))
    trainer = Trainer(configure(1, "--train.learning-rate=0"), RandomVec(), weights=start)
    list(trainer)
    np.testing.assert_array_equal(flat(trainer.weights), flat(start))


def test_an_epoch_that_is_not_finite_is_skipped():
    environments = RandomVec(lambda rewards, k: rewards * (np.nan if k // T == 1 else 1))
    trainer = Trainer(configure(3), environments)
    trainer.step()
    before = flat(trainer.weights), flat(trainer.train_state.optimizer)
    logs = trainer.step()
    assert logs["loss/skipped_steps"] == K and "loss/total" not in logs
    assert all(np.isfinite(value) for value in logs.values())
    np.testing.assert_array_equal(flat(trainer.weights), before[0])
    np.testing.assert_array_equal(flat(trainer.train_state.optimizer), before[1])
    logs = trainer.step()
    assert logs["loss/skipped_steps"] == K and np.isfinite(logs["loss/total"])
    assert np.abs(flat(trainer.weights) - before[0]).max() > 1e-3


# ---- iteration and logs --------------------------------------------------------------------------


def test_logs_count_epochs_steps_episodes_and_seconds():
    c = configure(22)
    with vec.make(c, threads=2) as environments:
        logs = list(Trainer(c, environments))
    assert [record["epoch"] for record in logs] == list(range(1, 23))
    assert [record["agent_steps"] for record in logs] == [N * T * e for e in range(1, 23)]
    assert all(type(v) in (int, float) for record in logs for v in record.values())
    assert {f"loss/{name}" for name in METRICS} <= set(logs[0])
    lengths = [r["env/episode_length"] * r["env/n"] for r in logs if "env/n" in r]
    assert N * T * 22 - N * 9 <= sum(lengths) <= N * T * 22  # an episode takes 10 steps at most

    def total(prefix, records):
        return sum(v for r in records for k, v in r.items() if k.startswith(prefix))

    seconds = sum(N * T / record["SPS"] for record in logs)
    assert total("perf/epoch", logs) == pytest.approx(seconds)
    # Phases add up to the epoch, except in profiled epochs, where profiling itself takes time.
    plain = [record for record in logs if (record["epoch"] - 1) % PROFILE_EVERY != 1]
    phases = total("perf/eval_", plain) + total("perf/train_", plain)
    assert phases == pytest.approx(total("perf/epoch", plain), rel=0.02)
    assert not any(key.startswith("perf/eval") for key in run(1, "--profile", "False")[1][0])


def test_stop_ends_after_the_current_epoch():
    trainer = Trainer(configure(10), RandomVec())
    for logs in trainer:
        if logs["epoch"] == 3:
            trainer.stop = True
    assert trainer.epoch == 3 and trainer.global_step == 3 * N * T
    assert list(trainer) == [] and list(trainer.evaluate()) == []
    trainer.stop = False
    assert next(iter(trainer))["epoch"] == 4


@pytest.mark.parametrize("vote", ["during", "another rank"])
def test_a_stop_request_survives_the_vote_of_ranks(vote):
    """A signal handler may set ``stop`` at any time."""

    class Voting(SingleProcess):
        size = 2

        def should_stop(self, flag: bool) -> bool:
            if trainer.epoch != 3:
                return flag
            trainer.stop = vote == "during"
            return vote != "during"

    trainer = Trainer(configure(10), RandomVec())
    trainer.ranks = Voting()
    list(trainer)
    assert trainer.epoch == (4 if vote == "during" else 3)
    assert trainer.stop


class Logging(RandomVec):
    """Stub environments that report given logs, one for each rollout."""

    logs: Any = iter(())

    def log(self):
        return next(self.logs, {})


@pytest.mark.parametrize(
    ("episodes", "expected"),
    [
        # (10 * 1 + 5 * 4) / 15 = 2; four rollouts are half of eight epochs
        (10_000, [(None, None), (1, 10), (1, 10), (2, 15)]),
        (9, [(None, None), (1, 10)]),
    ],
)
def test_evaluation_ends_after_enough_episodes_or_half_the_epochs(episodes, expected):
    environments = Logging()
    trainer = Trainer(configure(8, f"--eval-episodes={episodes}"), environments)
    list(trainer)
    before = flat(trainer.weights)
    environments.logs = iter([{}, {"score": 1.0, "n": 10.0}, {}, {"score": 4.0, "n": 5.0}])
    found = list(trainer.evaluate())
    np.testing.assert_array_equal(flat(trainer.weights), before)
    assert [logs["agent_steps"] for logs in found] == [
        (9 + i) * N * T for i in range(len(expected))
    ]
    assert [(logs.get("env/score"), logs.get("env/n")) for logs in found] == expected


# ---- infinite and NaN values ---------------------------------------------------------------------


@pytest.mark.parametrize("overlap", [0, 1])
def test_an_update_that_overflows_is_an_error_and_keeps_the_last_weights(overlap):
    trainer = Trainer(configure(4, f"--train.overlap={overlap}"), RandomVec())
    trainer.step()
    before = flat(trainer.weights)
    trainer.config.train.learning_rate = 3e38
    with pytest.raises(UserError) as caught:
        trainer.step()
    assert (trainer.epoch, np.isfinite(before).all()) == (1, True)
    np.testing.assert_array_equal(flat(trainer.weights), before)
    assert re.fullmatch(
        r"training made \S+ infinite, with a train.learning_rate of 3e\+38", caught.value.message
    )
    assert caught.value.hint == "lower train.learning_rate; the last good weights are kept"


def test_too_large_weights_are_blamed_on_the_learning_rate():
    with pytest.raises(UserError) as caught:
        run(6, "--train.learning-rate", "1e20")
    assert caught.value.message.endswith("were not finite, first in the policy's step")
    hint = "lower train.learning_rate; begin with weights from before they grew too large"
    assert caught.value.hint == hint


def test_a_run_without_one_finite_minibatch_has_a_fault():
    for make in (RandomVec, lambda: RandomVec(lambda r, k: r * (np.nan if k > T else 1))):
        assert run(2, make=make)[0].error is None
    trainer, logs = run(1, make=lambda: RandomVec(lambda reward, k: reward * np.nan))
    assert logs[-1]["loss/skipped_steps"] == K and "loss/total" not in logs[-1]
    assert trainer.error is not None
    words = "nothing was learned: not one minibatch was finite, first in the rollout"
    assert trainer.error.message == words and "its rewards aren't" in trainer.error.hint
