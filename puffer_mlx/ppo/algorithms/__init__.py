"""How a rollout changes the weights: one file, or one folder, for each algorithm.

``train.algorithm`` is a file's name here. Its ``FACTS`` (``config/parts.py``) are read before
MLX is there; its ``make`` gives the ``Algorithm`` of a run. Nothing else needs to know of it.

T steps of N agents are a rollout. T steps of S agents are a minibatch, or one step of M samples,
and there are K of them in an epoch.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import mlx.core as mx

from puffer_mlx.config import Config, Train
from puffer_mlx.config.parts import facts
from puffer_mlx.config.schema.train import NORMALIZED
from puffer_mlx.errors import UserError
from puffer_mlx.policy.policy import Policy
from puffer_mlx.ppo import custom
from puffer_mlx.ppo.advantage import Discounts, advantages
from puffer_mlx.ppo.gradients import Loss, clipped_loss, custom_loss
from puffer_mlx.ppo.loss import METRICS, Coefficients
from puffer_mlx.ppo.minibatch import Scoring, computes
from puffer_mlx.ppo.sections import Fields, Inputs, MeanNoise, MinibatchInputs
from puffer_mlx.system.devices import building


class Step(NamedTuple):
    """One of an algorithm's own functions: see ``Epoch.run``.

    Args:
        function: takes and returns arrays, and trees of them.
        phase: the phase of a record that its time is charged to.
        compiled: compile it on a GPU.
        view: maps arguments and result to what is compared where kernels are verified.
    """

    function: Callable[..., Any]
    phase: str
    compiled: bool = True
    view: Callable[[tuple, Any], Any] = lambda arguments, result: result


class Scheduled(NamedTuple):
    """Coefficients that change from epoch to epoch: floats, or scalar arrays."""

    lr: Any
    ent_coef: Any
    beta: Any
    """Exponent of the importance weights of priorities."""

    def as_arrays(self) -> "Scheduled":
        """Return them as scalar arrays."""
        return Scheduled(*map(mx.array, self))


@dataclass
class Epoch:
    """A rollout that is trained on, with everything that minibatches change of it.

    Args:
        functions: the functions of an update: ``ppo.update.UpdateFunctions``.
        fields: the rollout (T, N, ...) of the agents that are trained on, by field.
        draws: random numbers from ``Algorithm.draws``.
        scheduled: the epoch's coefficients, scalar arrays.
        states: returns the recurrent states (N, ...) that the rollout began with; None: the
            network's initial ones.
        learned: returns which steps are learned from, a NumPy array (T, N) bool.
        noise: RPO's noise on the means of actions; None: there is none.
        lap: called with a phase and the result that its time is charged for; None: no phase is
            measured.
        values: (T, N), the rollout's, until an algorithm writes newer ones back.
        ratios: (T, N), 1 at first, until an algorithm writes newer ones back.
        rows: (S,), the agents of the current minibatch.
        back: changes of values and ratios by the previous minibatch, until they are needed.
    """

    functions: Any
    fields: Fields
    draws: mx.array
    scheduled: Scheduled
    states: Callable[[], Any]
    learned: Callable[[], Any]
    noise: MeanNoise | None = None
    lap: Callable[[str, Any], None] | None = None
    values: Any = None
    ratios: Any = None
    rows: Any = None
    back: Any = None

    def __post_init__(self) -> None:
        self.values = self.fields["values"]

    def run(self, name: str, *arguments: Any) -> Any:
        """Call one of the algorithm's own functions."""
        step = self.functions.steps[name]
        with building:
            result = step.function(*arguments)
        if self.lap is not None:
            self.lap(step.phase, result)
        return result

    def gather(self, fields: Fields, rows: mx.array) -> Inputs:
        """Return what the forward pass reads of some agents (S,)."""
        with building:
            inputs = self.functions.gather(fields, rows)
        if self.lap is not None:
            self.lap("train_gather", inputs)
        return inputs


def _key(key: mx.array) -> mx.array:
    return key


def _nothing(epoch: Epoch, ratio: mx.array, value: mx.array, ok: mx.array) -> tuple[()]:
    return ()


class Algorithm(NamedTuple):
    """An algorithm for one policy and configuration; unchanged while they train.

    Args:
        minibatches: an epoch's; each is asked for after the one before was written back.
        loss: of a minibatch: see ``gradients``. A function of arrays, compiled with the forward
            pass and its gradients.
        metrics: names of the loss's statistics, ``total`` among them. Of a loss of the user's own
            they are known once it was traced.
        scoring: what the loss compares a minibatch with, where that is PPO's own: then a GPU may
            compute its gradients in one (``ppo/minibatch``). With another ``loss`` than PPO's own
            this and ``at_once`` aren't used.
        steps: its own, by their names.
        draws: makes of a key the random numbers that decide what an epoch's minibatches are.
        write_back: (epoch, ratios (T, S), values (T, S), whether the minibatch counted) -> arrays
            to compute with the minibatch. Stores in the epoch what the minibatch changes.
        at_once: (epoch, weights, optimizer's state, scaler) -> all three after the epoch, the
            advantages, metrics (K, 7) and which minibatches counted (K,): all in one operation.
            None: there is none for this policy or machine.
        largest_kl: the KL, by the name ``kl`` among ``metrics``, beyond which an epoch ends;
            infinite: minibatches are submitted ahead of what is computed.
        normalises: whether the loss normalises ``adv`` of what it compares with, a
            ``loss.Minibatch``: among several processes it gets the moments of all.
    """

    minibatches: Callable[[Epoch], Iterator[MinibatchInputs]]
    loss: Loss
    metrics: Sequence[str] = METRICS
    scoring: Scoring | None = None
    steps: Mapping[str, Step] = {}
    draws: Callable[[mx.array], mx.array] = _key
    write_back: Callable[..., tuple[mx.array, ...]] = _nothing
    at_once: Callable[..., tuple] | None = None
    largest_kl: float = math.inf
    normalises: bool = True


def make(policy: Policy, config: Config, agents: int = 0, one_cpu: bool = False) -> Algorithm:
    """The algorithm of a configuration: ``make`` of the file of its name.

    Args:
        policy: what is trained.
        config: a valid configuration; with several processes, this process's part of it.
        agents: how many of them are trained on; 0: all.
        one_cpu: whether one process trains, on a CPU.

    Raises:
        UserError: there is no algorithm of that name, or discrete actions' means are to be moved.
    """
    facts(config.train.algorithm)
    if (alpha := config.train.rpo_alpha) and not policy.decoder.action.continuous:
        raise UserError(
            f"train.rpo_alpha {alpha:g} moves the means of continuous actions, and here they are"
            " discrete",
            "--train.rpo-alpha 0; an entropy bonus, --train.ent-coef, keeps these from settling",
        )
    module = import_module(f"{__name__}.{config.train.algorithm}")
    algorithm = module.make(policy, config, agents or config.vec.total_agents, one_cpu)
    if not computes(algorithm.loss):  # a file may change the loss of another one, and keep the rest
        algorithm = algorithm._replace(scoring=None, at_once=None)
    return algorithm


def score(policy: Policy, config: Config, live: bool = False) -> tuple[Loss, Sequence[str]]:
    """PPO's loss, or the user's own, and the names of its statistics.

    Args:
        policy: what is trained.
        config: a valid configuration.
        live: whether advantages count as they are, unless the loss normalises them.

    Raises:
        UserError: there is no such function, or advantages are normalised anyway.
    """
    train = config.train
    if train.loss == NORMALIZED and not live:
        what = f"train.loss {NORMALIZED} is of puffer5: {train.algorithm} normalises anyway"
        raise UserError(what, "--train.loss clipped")
    numbers = Coefficients.of(train)
    function = custom.find_loss(config)
    if function is None:
        return partial(clipped_loss, policy, numbers), METRICS
    names, name = [*METRICS], f"train.loss {train.loss}"
    return partial(custom_loss, policy, numbers, function, name, names), names


def scoring(
    config: Config,
    function: Callable[..., Any] | None = None,
    live: Discounts | None = None,
    vtrace: bool = False,
) -> Scoring | None:
    """What ``score``'s loss compares a minibatch with; None where it is the user's own.

    Args:
        config: a valid configuration.
        function: of live advantages what gives them.
        live: their numbers; None: advantages are given.
        vtrace: see ``Scoring``.
    """
    own = custom.find_loss(config) is not None
    if own or (live is not None and function is not advantages):
        return None
    return Scoring(Coefficients.of(config.train), live, vtrace)


def discounts(train: Train) -> Discounts:
    """The advantages' numbers in a configuration."""
    return Discounts(
        train.gamma,
        train.gae_lambda,
        train.vtrace_rho_clip,
        train.vtrace_c_clip,
        train.reward_clip,
        train.bootstrap_truncated,
    )
