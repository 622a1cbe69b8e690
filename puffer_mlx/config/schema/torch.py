"""Section [torch]: the parts of the policy."""

from dataclasses import dataclass

from puffer_mlx.config.key import key
from puffer_mlx.config.parts import encoder_files, network_folders
from puffer_mlx.config.schema.section import Named

FORGETFUL = "MLP"  # the network without a memory
OWN = "own"  # a decoder that is part of a module of the user's own


@dataclass
class Torch(Named):
    """The parts of the policy, by the class names of PufferLib's torch backend."""

    network: str = key(
        "MinGRU",
        "What follows the encoder: a recurrent network, or MLP, which has no memory.",
        choices=tuple(network_folders()),
        custom="module:Class",
    )
    encoder: str = key(
        "DefaultEncoder",
        "Observation to hidden vector; Nature and Impala are convolutional, for images; Combined"
        " has one of them for each image among the parts of a Dict or Tuple; auto is the one that"
        " fits (Impala for small images), else the default.",
        choices=("auto", *encoder_files()),
        custom="module:Class",
    )
    decoder: str = key(
        "DefaultDecoder",
        "Hidden vector to action logits and value; own: the whole policy is an mlx.nn.Module that a"
        " program gave (docs/library.md), of which network says only whether it has a memory.",
        choices=("DefaultDecoder", OWN),
    )


def says_memory(network: str) -> bool:
    """Whether a ``torch.network`` has a memory; one of a person's own may. Empty: none is named."""
    return network not in ("", FORGETFUL)
