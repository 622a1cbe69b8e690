"""Sections [policy] and [torch]: the policy's size, weight layout and classes."""

from dataclasses import dataclass

from puffer_mlx.config.components import encoder_files, network_folders
from puffer_mlx.config.key import StrictFields, key

STATELESS_NETWORK = "MLP"  # the network without recurrent state
CUSTOM_MODULE = "own"  # value of torch.decoder if the entire policy is a custom module


@dataclass
class Policy(StrictFields):
    """Section [policy]: the policy's size, weight layout and activation."""

    hidden_size: int = key(
        128,
        "H: width of the encoder and of each layer of the network.",
        "units >= 1",
        brief="width of the policy",
    )
    num_layers: int = key(
        4, "L: layers of the network.", "layers 1 to 1000", brief="layers of the network"
    )
    dialect: str = key(
        "native",
        "Weight layout of encoder and decoder. native: as PufferLib 4.0's CUDA backend, without"
        " biases; torch: as its torch backend; puffer3: as 3.0, with GELU; sb3: as"
        " Stable-Baselines3, with an activation and orthogonal weights (with --torch.network MLP:"
        " its MlpPolicy). puffer_mlx only.",
        choices=("native", "torch", "puffer3", "sb3"),
    )
    reset_on_terminal: bool = key(
        False,
        "Zero an agent's recurrent state when its episode ends, as PufferLib 5.0 always does and"
        " 4.0 never does. puffer_mlx only.",
    )
    activation: str = key(
        "auto",
        "Activation after the layers of encoder and MLP with policy.dialect sb3; auto is tanh. The"
        " other weight layouts use gelu, as PufferLib does. puffer_mlx only.",
        choices=("auto", "tanh", "relu", "gelu"),
    )
    separate_value: bool = key(
        False,
        "Compute values by a separate encoder and network; False: share those that compute actions."
        " puffer_mlx only.",
    )
    log_std_init: float = key(
        0.0,
        "Initial log standard deviation of continuous actions; PufferLib's is 0. puffer_mlx only.",
        "-20 to 2",
    )


@dataclass
class Torch(StrictFields):
    """Section [torch]: the policy's network, encoder and decoder, by PufferLib's class names."""

    network: str = key(
        "MinGRU",
        "Network after the encoder: a recurrent one, or MLP, which has no recurrent state.",
        choices=tuple(network_folders()),
        custom="module:Class",
        brief="network: recurrent, or MLP",
    )
    encoder: str = key(
        "DefaultEncoder",
        "Encoder from observation to hidden vector. NatureEncoder and ImpalaEncoder are"
        " convolutions for images; CombinedEncoder uses one of them for each image in a Dict or"
        " Tuple; auto chooses the one that fits (ImpalaEncoder for small images), otherwise the"
        " default.",
        choices=("auto", *encoder_files()),
        custom="module:Class",
        brief="encoder of observations",
    )
    decoder: str = key(
        "DefaultDecoder",
        "Decoder from hidden vector to action logits and value. own: the entire policy is a custom"
        " mlx.nn.Module (docs/library.md); network is then used only to decide if it is"
        " recurrent.",
        choices=("DefaultDecoder", CUSTOM_MODULE),
    )


def may_be_recurrent(network: str) -> bool:
    """Return True if a policy network of this name may have recurrent state.

    A custom network may have none in spite of that.

    Args:
        network: Value of ``torch.network``; "", for which the result is False, if no file sets it.
    """
    return network not in ("", STATELESS_NETWORK)
