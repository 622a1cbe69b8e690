"""Training algorithms, one file or folder each.

``train.algorithm`` names a file of this folder. Its ``FACTS`` (``config/parts.py``) are read before
MLX is imported. Its ``make`` returns the ``Algorithm`` of a run. No other file refers to it.

A rollout has T steps of N agents. An epoch has K minibatches, each with T steps of S agents or with
one step of M samples.
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
from puffer_mlx.ppo.minibatch import LossSpec, computes
from puffer_mlx.ppo.sections import Fields, Inputs, MeanNoise, MinibatchInputs
from puffer_mlx.system.devices import building


class Step(NamedTuple):
    """One of an algorithm's own functions: see ``Epoch.run``.

    Args:
        function: a function of arrays and trees of arrays, which returns the same.
        phase: profiling phase that the function's time is charged to.
        compiled: True to compile the function on a GPU.
        view: maps arguments and result to the values that verification compares.
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
        """Return the coefficients as scalar arrays."""
        return Scheduled(*map(mx.array, self))


@dataclass
class Epoch:
    """The rollout of an epoch, and the values that its minibatches change.

    Args:
        functions: the functions of an update: ``ppo.update.UpdateFunctions``.
        fields: arrays of the trained agents' rollout by name, (T, N, ...).
        draws: random numbers from ``Algorithm.draws``.
        scheduled: coefficients of the epoch, scalar arrays.
        states: returns the recurrent states at the start of the rollout, (N, ...), or None for the
            initial state.
        learned: returns the mask of steps to train on, a NumPy array (T, N) bool.
        noise: RPO's noise on the means of actions, or None.
        lap: called with a phase and the phase's result, to measure its time. None to measure
            nothing.
        values: the rollout's values, or newer ones written by an algorithm, (T, N).
        ratios: 1, or ratios written by an algorithm, (T, N).
        rows: indices of the agents in the current minibatch, (S,).
        back: changes of values and ratios by the previous minibatch, not applied yet.
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
        """Call one of the algorithm's functions (``Algorithm.steps``)."""
        step = self.functions.steps[name]
        with building:
            result = step.function(*arguments)
        if self.lap is not None:
            self.lap(step.phase, result)
        return result

    def gather(self, fields: Fields, rows: mx.array) -> Inputs:
        """Return the inputs of the forward pass for the agents ``rows`` (S,)."""
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
    """An algorithm for one policy and configuration, constant during a run.

    Args:
        minibatches: generates the minibatches of an epoch. The next one is requested after
            ``write_back`` of the previous one.
        loss: loss of a minibatch: see ``gradients``. A function of arrays that is compiled together
            with the forward pass and its gradients.
        metrics: names of the loss's statistics, including ``total``. The names of a custom loss are
            complete after it is traced.
        scoring: targets and coefficients of PPO's loss, with which a GPU may compute gradients in
            one launch (``ppo/minibatch``). With another ``loss``, ``scoring`` and ``at_once`` are
            unused.
        steps: the algorithm's functions by name.
        draws: returns the random numbers of an epoch's minibatches for a random key.
        write_back: (epoch, ratios (T, S), values (T, S), flag) -> arrays to compute together with
            the minibatch. The flag is true if the minibatch's step was made. Stores the
            minibatch's changes in the epoch.
        at_once: trains for an epoch in one operation: (epoch, weights, optimizer state, scaler) ->
            new weights, optimizer state, scaler, advantages, metrics (K, 7) and flags (K,), 1 for
            each minibatch whose step was made. None if impossible for this policy or machine.
        largest_kl: an epoch ends after a minibatch whose metric ``kl`` is larger. If infinite,
            minibatches are submitted without waiting for the metrics of earlier ones.
        normalises: True if the loss normalises ``adv`` of its ``loss.Minibatch``. With several
            ranks the loss then gets the moments of all ranks.
    """

    minibatches: Callable[[Epoch], Iterator[MinibatchInputs]]
    loss: Loss
    metrics: Sequence[str] = METRICS
    scoring: LossSpec | None = None
    steps: Mapping[str, Step] = {}
    draws: Callable[[mx.array], mx.array] = _key
    write_back: Callable[..., tuple[mx.array, ...]] = _nothing
    at_once: Callable[..., tuple] | None = None
    largest_kl: float = math.inf
    normalises: bool = True


def make(policy: Policy, config: Config, agents: int = 0, one_cpu: bool = False) -> Algorithm:
    """Return the algorithm of a configuration, from the file named by ``train.algorithm``.

    Args:
        policy: the policy to train.
        config: a valid configuration; with several ranks, the local configuration.
        agents: number of agents to train on; 0 for all.
        one_cpu: True if a single process trains on a CPU.

    Raises:
        UserError: the algorithm doesn't exist, or ``train.rpo_alpha`` is set for discrete actions.
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
    if not computes(algorithm.loss):  # an algorithm may reuse another one with a different loss
        algorithm = algorithm._replace(scoring=None, at_once=None)
    return algorithm


def score(policy: Policy, config: Config, live: bool = False) -> tuple[Loss, Sequence[str]]:
    """Return PPO's loss or the custom one, and the names of its statistics.

    Args:
        policy: the policy to train.
        config: a valid configuration.
        live: True if the algorithm doesn't normalise advantages. The loss may still do so.

    Raises:
        UserError: the custom loss doesn't exist, or ``train.loss normalized`` is set for an
            algorithm that always normalises advantages.
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
) -> LossSpec | None:
    """Return targets and coefficients of ``score``'s loss, or None if a function is custom.

    Args:
        config: a valid configuration.
        function: the function that computes live advantages.
        live: coefficients of live advantages. None if advantages are computed beforehand.
        vtrace: True to clip live advantages by the new ratios: see ``LossSpec``.
    """
    own = custom.find_loss(config) is not None
    if own or (live is not None and function is not advantages):
        return None
    return LossSpec(Coefficients.of(config.train), live, vtrace)


def discounts(train: Train) -> Discounts:
    """Return the coefficients of the advantages from section [train]."""
    return Discounts(
        train.gamma,
        train.gae_lambda,
        train.vtrace_rho_clip,
        train.vtrace_c_clip,
        train.reward_clip,
        train.bootstrap_truncated,
    )
