"""The networks that there are, and their forms, found by listing the folders."""

from importlib import import_module
from typing import Any

from puffer_mlx.config.parts import network_folders
from puffer_mlx.policy import custom
from puffer_mlx.policy.networks import NONE, Forms, Network

MODULES = {
    name: import_module(f"{__name__.rpartition('.')[0]}.{folder.name}")
    for name, folder in network_folders().items()
}
NETWORKS: dict[str, type] = {name: getattr(module, name) for name, module in MODULES.items()}
FORMS: dict[str, Forms] = {
    name: module.FORMS for name, module in MODULES.items() if hasattr(module, "FORMS")
}


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
    with_activation = forms_of(network).with_activation
    if dialect != "sb3" or with_activation is None:
        return network
    return with_activation(network, activation)


def names_of(form: str) -> list[str]:
    """The networks that have a form, by the name of ``Forms``' field."""
    return [name for name, forms in FORMS.items() if getattr(forms, form)]
