"""Training algorithms, one file or folder each.

``train.algorithm`` names a file of this folder. Its ``FACTS`` (``config/components.py``) are read
before MLX is imported. Its ``make`` returns the ``Algorithm`` of a run. No other file imports it.

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
from mlx.utils import tree_map

from puffer_mlx.config import Config, Train
from puffer_mlx.config.components import facts
from puffer_mlx.config.schema.train import NORMALIZED
from puffer_mlx.errors import UserError
from puffer_mlx.policy.policy import Policy
from puffer_mlx.ppo import custom
from puffer_mlx.ppo.advantage import Discounts
from puffer_mlx.ppo.gradients import LossFunction, RecomputeAdvantages
from puffer_mlx.ppo.loss import METRICS
from puffer_mlx.ppo.minibatch import LossSpec, kernels_support
from puffer_mlx.ppo.sections import Fields, Minibatch
from puffer_mlx.system.devices import building


class AlgorithmStep(NamedTuple):
    """A function that a training algorithm runs during an epoch, with its profiling phase.

    ``Epoch.run`` calls the function and charges its time to the phase.

    Args:
        function: maps arrays and trees of arrays to an array or a tree of arrays.
        phase: profiling phase to which the function's time is charged.
        compiled: True to compile the function on a GPU.
        view: maps (arguments, result) to the values that verification compares.
    """

    function: Callable[..., Any]
    phase: str
    compiled: bool = True
    view: Callable[[tuple, Any], Any] = lambda arguments, result: result


class Scheduled(NamedTuple):
    """Coefficients of an epoch that may change during a run: floats, or scalar arrays."""

    lr: Any
    """Learning rate."""
    ent_coef: Any
    """Entropy coefficient."""
    beta: Any
    """Exponent of the importance weights, for sampling by priority."""
    loss: Mapping[str, Any] = {}
    """Coefficients of the loss with a custom schedule, by name. They replace the constants."""

    def as_arrays(self) -> "Scheduled":
        """Return a copy of the epoch's coefficients, each float converted to a scalar array."""
        return tree_map(mx.array, self)


@dataclass
class Epoch:
    """Inputs from which an algorithm makes the minibatches of an epoch.

    Args:
        functions: the functions of an update, ``ppo.update.UpdateFunctions``.
        fields: arrays of the trained agents' rollout by name, (T, N, ...).
        draws: random numbers from ``Algorithm.draws``.
        scheduled: coefficients of the epoch, scalar arrays.
        states: returns the recurrent states at the start of the rollout, (N, ...), or None for the
            initial states.
        trainable: returns the mask of steps to train on, a NumPy array (T, N) bool.
        noise: RPO's noise on the means of actions (K, M, heads), or None.
        lap: called with a phase and its result, to measure the phase's time. None without
            measurements.
        rows: agents of the current minibatch, (S,) int32, if the algorithm chooses agents.
        trained: values and ratios (T, S) of the previous minibatch, and a flag, true if the
            minibatch counted. Set by the loop over minibatches.
    """

    functions: Any
    fields: Fields
    draws: mx.array
    scheduled: Scheduled
    states: Callable[[], Any]
    trainable: Callable[[], Any]
    noise: mx.array | None = None
    lap: Callable[[str, Any], None] | None = None
    rows: mx.array | None = None
    trained: tuple[mx.array, ...] = ()

    def run(self, name: str, *arguments: Any) -> Any:
        """Call the algorithm's function of this name, measure its time, and return its result."""
        step = self.functions.steps[name]
        with building:
            result = step.function(*arguments)
        if self.lap is not None:
            self.lap(step.phase, result)
        return result


class Algorithm(NamedTuple):
    """A training algorithm for one policy and configuration.

    Args:
        minibatches: generates the minibatches of an epoch. The next minibatch is requested after
            training on the previous one: see ``Epoch.trained``.
        loss: loss of a minibatch, a function of ``Forward``, ``Targets`` and, by name, ``ent_coef``
            and ``Coefficients``: floats, or scalar arrays if they have a schedule. Returns the loss
            and metrics. None for ``ppo_loss``. With another loss, ``loss_spec`` and ``at_once`` are
            unused.
        recompute: computes advantages (T*S,) from ``Forward`` and ``Targets``. None to use the
            targets' advantages.
        metrics: names of the loss's metrics, including ``total``. The names of a custom loss are
            complete after the loss is traced.
        loss_spec: coefficients for computing gradients in one launch on a GPU (``ppo/minibatch``),
            or None.
        steps: the algorithm's functions by name.
        draws: maps a random key to the random numbers of an epoch's minibatches.
        at_once: trains for an epoch in one operation: (epoch, weights, optimizer state, scaler) ->
            new weights, optimizer state, scaler, advantages, metrics (K, 7) and flags (K,), 1 for
            each minibatch that counted. None when the policy or the device doesn't support this.
        largest_kl: an epoch ends after a minibatch whose metric ``kl`` exceeds this. If infinite,
            minibatches are submitted without waiting for earlier metrics.
        normalises: True if the loss normalises advantages. With several ranks the targets then get
            the moments of all ranks.
    """

    minibatches: Callable[[Epoch], Iterator[Minibatch]]
    loss: LossFunction | None = None
    recompute: RecomputeAdvantages | None = None
    metrics: Sequence[str] = METRICS
    loss_spec: LossSpec | None = None
    steps: Mapping[str, AlgorithmStep] = {}
    draws: Callable[[mx.array], mx.array] = lambda key: key
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
            f"train.rpo_alpha is {alpha:g}, but RPO needs continuous actions, and these are"
            " discrete",
            "--train.rpo-alpha 0; for more exploration raise --train.ent-coef",
        )
    module = import_module(f"{__name__}.{config.train.algorithm}")
    algorithm = module.make(policy, config, agents or config.vec.total_agents, one_cpu)
    # An algorithm's file may copy another algorithm and change its loss.
    if not kernels_support(algorithm.loss, algorithm.recompute):
        algorithm = algorithm._replace(loss_spec=None, at_once=None)
    return algorithm


def choose_loss(
    config: Config, recomputes: bool = False
) -> tuple[LossFunction | None, Sequence[str]]:
    """Return a configuration's loss function (None for PPO's) and the names of its metrics.

    Args:
        config: a valid configuration.
        recomputes: True if the algorithm recomputes advantages. Only the loss normalises them then.

    Raises:
        UserError: the custom loss doesn't exist, or ``train.loss normalized`` is set for an
            algorithm that always normalises advantages.
    """
    train = config.train
    if train.loss == NORMALIZED and not recomputes:
        message = f"train.loss {NORMALIZED} is for puffer5; {train.algorithm} always normalises"
        raise UserError(message, "--train.loss clipped")
    function = custom.find_loss(config)
    if function is None:
        return None, METRICS
    names = [*METRICS]
    return partial(custom.custom_loss, function, f"train.loss {train.loss}", names), names


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
