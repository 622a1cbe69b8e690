"""Sections [policy] and [torch]: the policy's size, dialect and parts."""

from dataclasses import dataclass

from puffer_mlx.config.key import Named, key
from puffer_mlx.config.parts import encoder_files, network_folders

FORGETFUL = "MLP"  # the network without a memory
OWN = "own"  # a decoder that is part of a module of the user's own


@dataclass
class Policy(Named):
    """The size and the dialect of the policy."""

    hidden_size: int = key(
        128,
        "H: width of the encoder and of each layer of the network.",
        "units >= 1",
        brief="width of the policy",
    )
    num_layers: int = key(
        4, "L: layers of the network.", "layers 1 to 1000", brief="layers of its network"
    )
    dialect: str = key(
        "native",
        "native: encoder and decoder of PufferLib 4.0's CUDA backend, without biases; torch:"
        " those of its torch backend; puffer3: those of 3.0, with GELU; sb3: those of"
        " Stable-Baselines3, with an activation and orthogonal weights (with --torch.network MLP"
        " its MlpPolicy). puffer_mlx only.",
        choices=("native", "torch", "puffer3", "sb3"),
    )
    reset_on_terminal: bool = key(
        False,
        "Zero an agent's recurrent state where an episode ends; PufferLib 4.0 never does, 5.0"
        " always. puffer_mlx only.",
    )
    activation: str = key(
        "auto",
        "Activation after the layers of the sb3 dialect's encoder and MLP; auto is tanh there."
        " The other dialects use gelu, as PufferLib does. puffer_mlx only.",
        choices=("auto", "tanh", "relu", "gelu"),
    )
    separate_value: bool = key(
        False,
        "Values have a separate encoder and network; False: they share those of the actions."
        " puffer_mlx only.",
    )
    log_std_init: float = key(
        0.0,
        "Log standard deviation of continuous actions before training; PufferLib's is 0."
        " puffer_mlx only.",
        "-20 to 2",
    )


@dataclass
class Torch(Named):
    """The parts of the policy, by the class names of PufferLib's torch backend."""

    network: str = key(
        "MinGRU",
        "Network after the encoder: a recurrent one, or MLP, which has no recurrent state.",
        choices=tuple(network_folders()),
        custom="module:Class",
        brief="with memory, or without",
    )
    encoder: str = key(
        "DefaultEncoder",
        "Encoder from observation to hidden vector. Nature and Impala are convolutions for"
        " images; Combined uses one of them for each image in a Dict or Tuple; auto chooses the"
        " one that fits (Impala for small images), else the default.",
        choices=("auto", *encoder_files()),
        custom="module:Class",
        brief="of observations",
    )
    decoder: str = key(
        "DefaultDecoder",
        "Decoder from hidden vector to action logits and value. own: the entire policy is an"
        " mlx.nn.Module of a program (docs/library.md); network then only tells whether it is"
        " recurrent.",
        choices=("DefaultDecoder", OWN),
    )


def says_memory(network: str) -> bool:
    """Return True if a ``torch.network`` may have recurrent state; False for ""."""
    return network not in ("", FORGETFUL)
