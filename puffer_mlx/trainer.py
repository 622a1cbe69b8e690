"""The trainer: collect a rollout, train on it, report. It does no input or output.

for logs in trainer:
    print(logs["SPS"], logs.get("env/score"))
"""

import time
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import psutil
from mlx.utils import tree_unflatten

from puffer_mlx import loss, optim, priority
from puffer_mlx.checkpoint import State
from puffer_mlx.config import Config
from puffer_mlx.cpu_ops import threads
from puffer_mlx.errors import UserError
from puffer_mlx.policy.policy import Policy, make_policy
from puffer_mlx.profiler import Profiler
from puffer_mlx.rollout import Slot, collect, make_streams
from puffer_mlx.trees import named
from puffer_mlx.update import compile_update
from puffer_mlx.vec.base import VecEnv

Logs = dict[str, float]
RECORDED = 16  # agents whose last rollout a checkpoint keeps, for comparing exports


def select_device(name: str) -> mx.Device:
    """Make ``auto``, ``cpu`` or ``gpu`` MLX's default device and return it.

    Raises:
        UserError: a GPU was asked for, and this MLX has none.
    """
    has_gpu = mx.is_available(mx.gpu)
    if name == "gpu" and not has_gpu:
        raise UserError(
            "base.device is gpu, but this build of MLX has no GPU",
            "--device cpu; or on Linux with an NVIDIA GPU: pip install 'puffer-mlx[cuda]'",
        )
    mx.set_default_device(mx.gpu if has_gpu and name != "cpu" else mx.cpu)
    return mx.default_device()


class Trainer:
    """Trains a policy; iterate over it, one epoch (N * T steps) at a time.

    Args:
        config: a valid configuration (``config.validate``).
        vec: environments with the configuration's agents and buffers; the caller closes them.
        policy: the one that the configuration describes if None.
        weights: initial weights; drawn from ``base.seed`` if None.

    Attributes:
        weights: the policy's current weights.
        epoch: epochs trained.
        global_step: environment steps so far, summed over agents.
        stop: set to True (from a signal handler, say) to end the iteration after the current epoch.
    """

    def __init__(
        self, config: Config, vec: VecEnv, policy: Policy | None = None, weights: Any = None
    ) -> None:
        self.config, self.vec = config, vec
        self.policy = policy or make_policy(vec.spec, config.policy, config.torch)
        init, self._key = mx.random.split(mx.random.key(config.base.seed))
        self.weights = self.policy.init(init) if weights is None else weights
        self.momentum = optim.muon_init(self.weights)
        self.epoch, self.global_step, self.stop = 0, 0, False
        self.profiler = Profiler(config.base.profile)
        self._run = compile_update(self.policy, config.train)
        self._slot = Slot(vec.spec, config.train.horizon, vec.num_agents, vec.num_groups)
        self._slot.reset(vec)
        self._streams = make_streams(threads(), vec.num_groups)
        self._states = self._initial_states()
        self._started = time.perf_counter()
        self._process = psutil.Process()
        mx.eval(self.weights, self.momentum, self._states, self._key)

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return sum(int(w.size) for _, w in named(self.weights))

    def __iter__(self) -> Iterator[Logs]:
        """Train to the end of the schedule or until ``stop``; one record for each epoch."""
        while self.epoch < self.config.epochs and not self.stop:
            yield self.step()

    def step(self) -> Logs:
        """One epoch: a rollout of N * T steps, then K minibatches."""
        began = time.perf_counter()
        self._rollout()
        trained = time.perf_counter()
        losses = self._train()
        ended = time.perf_counter()
        self.profiler.train(ended - trained, self.profiler.samples(self.epoch))
        self.epoch += 1
        return self._logs(trained - began, ended - trained, losses)

    def evaluate(self) -> Iterator[Logs]:
        """Rollouts without training, as upstream after its last epoch.

        Until more than ``base.eval_episodes`` have ended, at most half as many as training epochs.
        Yields the environments' means since the evaluation began.
        """
        total: Logs = {}
        for _ in range(self.config.epochs // 2):
            if self.stop or total.get("env/n", 0) > self.config.base.eval_episodes:
                return
            self._rollout()
            total = _merge_means(total, self._environment_logs())
            yield {"agent_steps": self.global_step, **total}

    def state(self) -> State:
        """Everything that a later ``restore`` needs, with the weights, to go on identically."""
        environments = self.vec.state()
        arrays = {
            "momentum": self.momentum,
            "key": self._key,
            "recurrent": self._states,
            "carry": self._slot.carry(),
            "recorded": self._slot.observations[: self._slot.horizon, :RECORDED],
        }
        if environments is not None:
            arrays["environments"] = mx.array(environments)
        numbers = {
            "epoch": self.epoch,
            "global_step": self.global_step,
            "uptime": time.perf_counter() - self._started,
        }
        return State(dict(named(arrays)), numbers)

    def restore(self, weights: Any, state: State) -> bool:
        """Go on where ``state`` was taken.

        Args:
            weights: the policy's, at that time.
            state: from a trainer with the same policy, agents and buffers.

        Returns:
            Whether the environments go on too; if not, they start new episodes.

        Raises:
            UserError: the state is of another configuration.
        """
        arrays = dict(state.arrays)
        environments = arrays.pop("environments", None)
        going_on = environments is not None and self.vec.state() is not None
        mine = {"momentum": self.momentum, "key": self._key}
        if going_on:
            mine |= {"recurrent": self._states, "carry": self._slot.carry()}
        wrong = [
            f"{name}: {arrays[name].shape if name in arrays else 'missing'}, expected {a.shape}"
            for name, a in named(mine)
            if name not in arrays or arrays[name].shape != a.shape
        ]
        if wrong:
            raise UserError(
                f"the run's state is of another configuration: {'; '.join(wrong[:3])}",
                "go on with the run's own policy, vec.total_agents and vec.num_buffers",
            )
        if going_on:
            self.vec.restore(np.asarray(environments))
        found = tree_unflatten([(name, arrays[name]) for name, _ in named(mine)])
        self.weights, self.momentum, self._key = weights, found["momentum"], found["key"]
        if going_on:
            self._states = found.get("recurrent", self._states)
            self._slot.restore(found["carry"])
        self.epoch, self.global_step = state.numbers["epoch"], state.numbers["global_step"]
        self._started = time.perf_counter() - state.numbers["uptime"]
        mx.eval(self.weights, self.momentum, self._states, self._key)
        return going_on

    def _initial_states(self) -> list[Any]:
        n = self.vec.num_agents // self.vec.num_groups
        return [self.policy.initial_state(n) for _ in range(self.vec.num_groups)]

    def _rollout(self) -> None:
        self.profiler.start()
        self._key, key = mx.random.split(self._key)
        shape = (self._slot.horizon, self.vec.num_agents)
        noise = self.policy.distribution.noise(key, shape)
        if self.config.base.reset_state:
            self._states = self._initial_states()
            mx.eval(self._states)
        self._slot.begin(self._slot)
        self._states = collect(
            self._slot,
            self.vec,
            self._run.act,
            self.weights,
            self._states,
            noise,
            self._streams,
            self.profiler,
        )
        self.global_step += self.config.batch_size

    def _train(self) -> Logs:
        """K minibatches, one lazy graph evaluated at its end (if sampled, after each phase)."""
        slot, run = self._slot, self._run
        K, S = self.config.minibatches, self.config.segments
        lr, ent, beta = self._scheduled()
        self._key, key = mx.random.split(self._key)
        uniforms = 1 - mx.random.uniform(shape=(K, S), key=key)  # in (0, 1]
        names = ("observations", "actions", "logprobs", "rewards", "terminals", "masks")
        fields = {name: getattr(slot, name) for name in names}
        weights, momentum = self.weights, self.momentum
        values, ratios = slot.values, mx.ones_like(slot.values)
        sampled = self.profiler.samples(self.epoch)

        def mark(phase: str, *arrays: Any) -> None:
            if sampled:
                mx.eval(arrays)
                self.profiler.lap(phase)

        self.profiler.lap("train_misc")
        metrics = []
        for k in range(K):
            rows, batch = run.prepare(fields, values, ratios, uniforms[k], beta)
            mark("train_advantage", rows, batch)
            minibatch = run.gather(fields, rows)
            mark("train_gather", minibatch)
            grads, measured, new_ratios, new_values = run.gradients(weights, *minibatch, batch, ent)
            mark("train_forward", grads, measured, new_ratios, new_values)
            weights, momentum, values, ratios = run.apply(
                weights, momentum, grads, lr, values, ratios, rows, new_values, new_ratios
            )
            mark("train_optimizer", weights, momentum, values, ratios)
            metrics.append(measured)
        mean = mx.mean(mx.stack(metrics), axis=0)
        mx.eval(weights, momentum, mean)
        losses: Logs = {name: mean[i].item() for i, name in enumerate(loss.METRICS)}  # type: ignore
        if not mx.isfinite(mean).all().item():
            bad = [
                name
                for name, value in losses.items()
                if value != value or abs(value) == float("inf")
            ]
            raise UserError(
                f"the loss stopped being finite in epoch {self.epoch}: {', '.join(bad)}",
                "lower train.learning_rate or train.max_grad_norm;"
                " the weights before this epoch are kept",
            )
        self.weights, self.momentum = weights, momentum
        return losses

    def _scheduled(self) -> tuple[mx.array, mx.array, mx.array]:
        """This epoch's learning rate, entropy coefficient and priority exponent."""
        train, epochs = self.config.train, self.config.epochs
        lr, ent = train.learning_rate, train.ent_coef
        if train.anneal_lr:
            lr = optim.cosine(lr, train.min_lr_ratio * lr, self.epoch, epochs)
        if train.anneal_ent_coef:
            ent = optim.cosine(ent, train.min_ent_coef_ratio * ent, self.epoch, epochs)
        beta = priority.annealed_beta(train.prio_beta0, train.prio_alpha, self.epoch, epochs)
        return mx.array(lr), mx.array(ent), mx.array(beta)

    def _environment_logs(self) -> Logs:
        return {f"env/{name}": float(value) for name, value in self.vec.log().items()}

    def _logs(self, rollout: float, train: float, losses: Logs) -> Logs:
        perf = self.profiler.take()
        return {
            "SPS": self.config.batch_size / (rollout + train),
            "agent_steps": self.global_step,
            "uptime": time.perf_counter() - self._started,
            "epoch": self.epoch,
            **self._environment_logs(),
            **{f"loss/{name}": value for name, value in losses.items()},
            "perf/rollout": rollout,
            "perf/train": train,
            **{f"perf/{name}": value for name, value in perf.items()},
            "util/cpu_mem_gb": self._process.memory_info().rss / 2**30,
            "util/mlx_mem_gb": mx.get_active_memory() / 2**30,
        }


def _merge_means(total: Logs, new: Logs) -> Logs:
    """Per-episode means of two periods together, weighted by their episodes env/n."""
    if not new or not total:
        return new or total
    a, b = total["env/n"], new["env/n"]
    merged = {name: (total.get(name, 0) * a + new.get(name, 0) * b) / (a + b) for name in new}
    return {**merged, "env/n": a + b}
