"""The contract of networks, those there are, and where their forms are found.

Weights and state are arguments; nothing here holds arrays. ``T`` times ``step`` equals ``scan``.
Features may be of another dtype than the weights; they are cast. Outputs have the weights' dtype,
states are float32.
"""

from importlib import import_module
from typing import Any, Protocol

import mlx.core as mx

from puffer_mlx.config.parts import network_folders
from puffer_mlx.policy import custom
from puffer_mlx.policy.networks.forms import NONE, Forms

Weights = Any  # a tree of arrays
State = Any  # a tree of arrays (n, ...), each agent's part along the first axis


class Network(Protocol):
    """From features to features, both H wide. Made as ``Class(hidden, layers)``."""

    @property
    def hidden(self) -> int:
        """H."""
        ...

    def init(self, key: mx.array) -> Weights:
        """Fresh weights."""
        ...

    def initial_state(self, n: int) -> State:
        """The state of n agents before their first step."""
        ...

    def scan(
        self, weights: Weights, h: mx.array, state: State, keep: mx.array | None = None
    ) -> tuple[mx.array, State]:
        """T steps of S segments.

        Args:
            weights: as ``init`` makes them.
            h: (T, S, H).
            state: of S segments, before the first step.
            keep: (T, S), what the state is multiplied by before each step: 0 forgets; None is ones.

        Returns:
            Outputs (T, S, H) and the state after the last step, which carries no gradient.
        """
        ...

    def step(
        self, weights: Weights, h: mx.array, state: State, keep: mx.array | None = None
    ) -> tuple[mx.array, State]:
        """One step of n agents: h (n, H), keep (n,) -> outputs (n, H) and their next state."""
        ...


def _modules(file: str) -> dict[str, Any]:
    """A file of the networks' folders where they have it, by the network's name."""
    package = __name__.rpartition(".")[0]
    return {
        name: import_module(f"{package}.{folder.name}.{file}")
        for name, folder in network_folders().items()
        if (folder / f"{file}.py").is_file()
    }


NETWORKS: dict[str, type] = {
    name: getattr(module, name) for name, module in _modules("network").items()
}
FORMS: dict[str, Forms] = {name: module.FORMS for name, module in _modules("forms").items()}


def forms_of(network: Any) -> Forms:
    """A network's forms beside its equations: none of a class that isn't in ``NETWORKS``.

    A class derived from one of them may compute something else: it has no forms either.
    """
    cls = type(network)
    return FORMS.get(cls.__name__, NONE) if NETWORKS.get(cls.__name__) is cls else NONE


def make_network(name: str, hidden: int, layers: int, dialect: str, activation: str) -> Network:
    """The network that ``torch.network`` names, for a dialect.

    ``activation`` is what follows the products of a network whose dialect leaves the choice: sb3's.

    Raises:
        UserError: a class of the user's own isn't usable.
    """
    if ":" in name:
        return custom.make_network(name, hidden, layers)
    network = NETWORKS[name](hidden, layers)
    form = forms_of(network).sb3 if dialect == "sb3" else None
    return form.activated(network, activation) if form else network


def names_of(form: str) -> list[str]:
    """The networks that have a form, by the name of ``Forms``' field."""
    return [name for name, forms in FORMS.items() if getattr(forms, form)]
