"""All networks, found by listing the folders of this package."""

from importlib import import_module
from typing import Any

from puffer_mlx.config.components import network_folders
from puffer_mlx.policy import custom
from puffer_mlx.policy.networks import NO_FACTS, Network, NetworkFacts

PACKAGE = "puffer_mlx.policy.networks"
MODULES = {
    name: import_module(f"{PACKAGE}.{folder.name}") for name, folder in network_folders().items()
}
NETWORKS: dict[str, type] = {name: getattr(module, name) for name, module in MODULES.items()}
NETWORK_FACTS: dict[str, NetworkFacts] = {
    name: module.FACTS for name, module in MODULES.items() if hasattr(module, "FACTS")
}


def network_facts(network: Any) -> NetworkFacts:
    """Return the ``NetworkFacts`` of a network; ``NO_FACTS`` for a custom class.

    A subclass of a network also counts as custom, because it may compute something else.
    """
    name = type(network).__name__
    if NETWORKS.get(name) is not type(network):
        return NO_FACTS
    return NETWORK_FACTS.get(name, NO_FACTS)


def make_network(
    name: str, hidden: int, layers: int, weight_layout: str, activation: str
) -> Network:
    """Create a network by its name in a configuration: a built-in network or a custom class.

    Args:
        name: Value of ``torch.network``.
        hidden: Number H of features.
        layers: Number of layers.
        weight_layout: Value of ``policy.dialect``.
        activation: Activation after each linear layer; used if ``weight_layout`` is "sb3".

    Raises:
        UserError: If the name is a custom class that isn't usable.
    """
    if ":" in name:
        return custom.make_custom_network(name, hidden, layers)
    network = NETWORKS[name](hidden, layers)
    with_activation = network_facts(network).with_activation
    if weight_layout != "sb3" or with_activation is None:
        return network
    return with_activation(network, activation)


def networks_with(field: str) -> list[str]:
    """Return the names of the networks for which an optional ``NetworkFacts`` field is set."""
    return [name for name, facts in NETWORK_FACTS.items() if getattr(facts, field)]
