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
        "native: encoder and decoder of PufferLib 4.0's CUDA backend, without biases; torch: of its"
        " torch backend; puffer3: of 3.0, with GELU; sb3: of Stable-Baselines3, with an activation"
        " and orthogonal weights, which with --torch.network MLP is its MlpPolicy. puffer_mlx"
        " only.",
        choices=("native", "torch", "puffer3", "sb3"),
    )
    reset_on_terminal: bool = key(
        False,
        "Zero an agent's recurrent state where an episode ends; PufferLib 4.0 never does, 5.0"
        " always. puffer_mlx only.",
    )
    activation: str = key(
        "auto",
        "What follows the products of the sb3 dialect's encoder and MLP; auto is tanh there. The"
        " other dialects have gelu, as PufferLib. puffer_mlx only.",
        choices=("auto", "tanh", "relu", "gelu"),
    )
    separate_value: bool = key(
        False,
        "Values have an encoder and a network of their own; False: they share the actions'."
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
        "What follows the encoder: a recurrent network, or MLP, which has no memory.",
        choices=tuple(network_folders()),
        custom="module:Class",
        brief="with memory, or without",
    )
    encoder: str = key(
        "DefaultEncoder",
        "Observation to hidden vector; Nature and Impala are convolutional, for images; Combined"
        " has one of them for each image among the parts of a Dict or Tuple; auto is the one that"
        " fits (Impala for small images), else the default.",
        choices=("auto", *encoder_files()),
        custom="module:Class",
        brief="of observations",
    )
    decoder: str = key(
        "DefaultDecoder",
        "Hidden vector to action logits and value; own: the whole policy is an mlx.nn.Module that a"
        " program gave (docs/library.md), of which network says only whether it has a memory.",
        choices=("DefaultDecoder", OWN),
    )


def says_memory(network: str) -> bool:
    """Return True if a ``torch.network`` may have recurrent state; False for ""."""
    return network not in ("", FORGETFUL)
