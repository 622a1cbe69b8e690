"""All networks and their forms, found by listing the folders."""

from importlib import import_module
from typing import Any

from puffer_mlx.config.components import network_folders
from puffer_mlx.policy import custom
from puffer_mlx.policy.networks import NONE, Network, NetworkFacts

MODULES = {
    name: import_module(f"{__name__.rpartition('.')[0]}.{folder.name}")
    for name, folder in network_folders().items()
}
NETWORKS: dict[str, type] = {name: getattr(module, name) for name, module in MODULES.items()}
FORMS: dict[str, NetworkFacts] = {
    name: module.FORMS for name, module in MODULES.items() if hasattr(module, "FORMS")
}


def forms_of(network: Any) -> NetworkFacts:
    """Return a network's forms.

    Classes that aren't in ``NETWORKS`` have no forms. This includes subclasses of a network, which
    may compute something else.
    """
    cls = type(network)
    return FORMS.get(cls.__name__, NONE) if NETWORKS.get(cls.__name__) is cls else NONE


def make_network(name: str, hidden: int, layers: int, dialect: str, activation: str) -> Network:
    """Create a network.

    Args:
        name: value of ``torch.network``.
        hidden: width H.
        layers: number of layers.
        dialect: value of ``policy.dialect``.
        activation: activation after each linear layer; used by the sb3 dialect alone.

    Raises:
        UserError: The name is a user's class that isn't usable.
    """
    if ":" in name:
        return custom.make_network(name, hidden, layers)
    network = NETWORKS[name](hidden, layers)
    with_activation = forms_of(network).with_activation
    if dialect != "sb3" or with_activation is None:
        return network
    return with_activation(network, activation)


def names_of(form: str) -> list[str]:
    """Return the names of the networks that have a form, a field of ``NetworkFacts``."""
    return [name for name, forms in FORMS.items() if getattr(forms, form)]
