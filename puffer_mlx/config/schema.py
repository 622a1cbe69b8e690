"""What a run is made of: every key once, with its type, default, unit, range and help.

These dataclasses are the only declaration. Files, command line, `--help` and `configs/default.ini`
derive from them. Sections, names and defaults are PufferLib 4.0's; a key that is neither 4.0's nor
5.0's says "puffer_mlx only". 5.0's other defaults are `configs/puffer5.ini`, its other names
`compatibility.py`'s.

| symbol | meaning | key or property |
| --- | --- | --- |
| N | agents | `vec.total_agents` |
| Q | buffers the agents are split into | `vec.num_buffers` |
| T | horizon: steps of one rollout, and the length of a training segment | `train.horizon` |
| M | environment steps of one minibatch | `train.minibatch_size` |
| S | segments (T steps of one agent each) of a minibatch, M / T | `Config.segments` |
| K | minibatches of an epoch | `Config.minibatches` |
| E | epochs of the run | `Config.epochs` |
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import numpy as np

from puffer_mlx.config.families import AUTO, FAMILIES
from puffer_mlx.config.key import Key, key
from puffer_mlx.config.parts import encoder_folders, network_folders

COMMAND_LINE = "command line"  # the origin of a setting that no file gave
PACKAGE = Path(__file__).parents[1]
OPTIMIZERS = tuple(sorted(found.name for found in iter_modules([PACKAGE / "ppo" / "optimizers"])))
FORMATS = sorted(found.name for found in iter_modules([PACKAGE / "tracking" / "formats"]))
JSON_LINES = "jsonl"


@dataclass
class Base:
    """The run; options without a section: `--seed 1`."""

    seed: int = key(73, "Seed of the initial weights and of action sampling.", minimum=0)
    device: str = key(
        "auto",
        "Where MLX computes; auto is the GPU where MLX has one. puffer_mlx only.",
        choices=("auto", "cpu", "gpu"),
    )
    family: str = key(
        "auto",
        "Which settings an environment in Python begins with, after configs/python.ini: those of"
        " configs/discrete.ini, continuous.ini or images.ini, or of images.ini with what"
        " continuous.ini says of actions; auto is chosen from its spaces. puffer_mlx only.",
        choices=(AUTO, *FAMILIES),
    )
    checkpoint_dir: str = key(
        "checkpoints", "Folder of checkpoints: DIR/ENV/RUN/STEP.", unit="path"
    )
    log_dir: str = key("logs", "Folder of logs: DIR/ENV/RUN.jsonl.", unit="path")
    log_format: str = key(
        JSON_LINES,
        "jsonl: a record for each epoch; puffer5, puffer4: when the run ends also its log in"
        " PufferLib 5.0's or 4.0's form, RUN.ini or RUN.json, for their viewers. puffer_mlx only.",
        choices=(JSON_LINES, *FORMATS),
    )
    checkpoint_interval: int = key(
        200,
        "Epochs from one checkpoint to the next; 0 writes only the last.",
        unit="epochs",
        minimum=0,
    )
    checkpoint_keep: int = key(
        3,
        "The newest checkpoints of a run that are kept, besides the best; 0 keeps all."
        " puffer_mlx only.",
        unit="checkpoints",
        minimum=0,
    )
    eval_episodes: int = key(
        10_000,
        "The evaluation after training ends when more have finished (puffer5: so many; 0: there is"
        " none).",
        unit="episodes",
        minimum=0,
    )
    eval_agents: int = key(
        -1,
        "Agents of that evaluation; -1 is vec.total_agents. puffer5's alone: puffer4 goes on with"
        " the agents it trained with.",
        unit="agents",
        minimum=-1,
    )
    reset_state: bool = key(
        True,
        "Zero the recurrent state when a rollout starts; False carries it over. PufferLib 5.0's"
        " reset_every_horizon; puffer5 carries it.",
    )
    profile: bool | str = key(
        True,
        "Time the phases of every epoch; a file: also write a timeline for Perfetto.",
        suffix=".json",
    )


@dataclass
class Vec:
    """The vectorised environments."""

    total_agents: int = key(
        4096, "N: agents of all environments together.", unit="agents", minimum=1
    )
    num_buffers: int = key(
        2,
        "Q: equal groups of agents; one is acted for while another steps.",
        unit="buffers",
        minimum=1,
    )
    num_threads: int = key(
        16,
        "CPU threads that step environments, and act on a CPU: so many if it is typed, at most the"
        " cores (0 is 1). A file's is PufferLib's number of threads that only step: where C acts in"
        " them too there is one for each core, elsewhere num_threads / num_buffers for each buffer,"
        " at least one.",
        unit="threads",
        minimum=0,
    )
    max_threads: int = key(
        0,
        "The most of them, whatever num_threads says; 0 sets no limit. A --vec.num-threads that is"
        " typed is kept here. puffer_mlx only.",
        unit="threads",
        minimum=0,
    )
    seed: int = key(
        0,
        "Environment i starts from seed + i. puffer_mlx only: PufferLib reads no seed here.",
        minimum=0,
    )
    backend: str = key(
        "auto",
        "How Python environments are stepped: vector, their own vectorised form; sync, one after"
        " the other; async, a process each; auto is the fastest that applies. puffer_mlx only.",
        choices=("auto", "vector", "sync", "async"),
        aliases={"Serial": "sync", "Multiprocessing": "async", "PufferEnv": "vector"},
    )
    timeout: float = key(
        60.0,
        "A Python environment's process that takes longer for a step is reported and ended."
        " puffer_mlx only.",
        unit="seconds",
        above=0,
    )
    normalize_observations: bool = key(
        False,
        "Subtract the observations' running mean and divide by their deviation; the statistics are"
        " the checkpoint's. puffer_mlx only.",
    )
    normalize_rewards: bool = key(
        False,
        "Divide rewards by the running deviation of the discounted return. puffer_mlx only.",
    )
    rescale_actions: bool = key(
        False,
        "A continuous action's -1 to 1 is the low to high of its bounds, where both are finite; it"
        " is clipped to them then, as without. For environments in Python. puffer_mlx only.",
    )


@dataclass
class Policy:
    """The size and the dialect of the policy."""

    hidden_size: int = key(
        128, "H: width of the encoder and of each layer of the network.", unit="units", minimum=1
    )
    num_layers: int = key(4, "L: layers of the network.", unit="layers", minimum=1)
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
        minimum=-20,
        maximum=2,
    )


@dataclass
class Torch:
    """The parts of the policy, by the class names of PufferLib's torch backend."""

    network: str = key(
        "MinGRU",
        "What follows the encoder: a recurrent network, or MLP, which has no memory.",
        choices=tuple(network_folders()),
        custom=True,
    )
    encoder: str = key(
        "DefaultEncoder",
        "Observation to hidden vector; Nature and Impala are convolutional, for images; auto is one"
        " of them for images (Impala for small ones), else the default.",
        choices=("auto", *encoder_folders()),
        custom=True,
    )
    decoder: str = key(
        "DefaultDecoder", "Hidden vector to action logits and value.", choices=("DefaultDecoder",)
    )


@dataclass
class Train:
    """Proximal policy optimisation."""

    algorithm: str = key(
        "puffer4",
        "puffer4: PufferLib 4.0's, segments drawn by priority, advantages normalised; puffer5:"
        " 5.0's, segments in their order, advantages of the values of the same forward pass; ppo:"
        " the field's, advantages once a rollout, samples shuffled in each pass, of recurrent"
        " networks segments. puffer_mlx only: a file of 5.0's selects puffer5.",
        choices=("puffer4", "puffer5", "ppo"),
    )
    total_timesteps: int = key(
        10_000_000, "Length of the run, summed over agents.", unit="steps", minimum=1, maximum=1e18
    )
    optimizer: str = key(
        "muon",
        "How gradients move the weights; adam is AdamW. The learning rates here and PufferLib's are"
        " Muon's: about a tenth of them suits Adam. PufferLib 4.0 has Muon alone and ignores the"
        " key.",
        choices=OPTIMIZERS,
    )
    learning_rate: float = key(0.015, "The optimizer's step size in the first epoch.", minimum=0)
    anneal_lr: bool = key(
        True, "Lower the learning rate over the run's epochs, as lr_schedule says; False keeps it."
    )
    lr_schedule: str = key(
        "cosine",
        "How it falls from learning_rate to min_lr_ratio x learning_rate: along half a cosine, as"
        " PufferLib's, or along a line. puffer_mlx only.",
        choices=("cosine", "linear"),
    )
    min_lr_ratio: float = key(
        0.0, "Where cosine or line end, as a part of learning_rate.", minimum=0, maximum=1
    )
    weight_decay: float = key(
        0.0,
        "Part of every weight that a step takes away, times the learning rate (AdamW's decay, for"
        " any optimizer). puffer_mlx only.",
        minimum=0,
    )
    gamma: float = key(0.995, "Discount of one step.", minimum=0, maximum=1)
    gae_lambda: float = key(
        0.90, "Decay of the advantage recursion, times gamma.", minimum=0, maximum=1
    )
    replay_ratio: float = key(
        1.0, "How often an epoch trains on its N x T steps, on average.", above=0, maximum=1000
    )
    clip_coef: float = key(0.2, "The policy's probability ratio is clipped to 1 +- this.", above=0)
    vf_coef: float = key(2.0, "Weight of the value loss.", minimum=0)
    vf_clip_coef: float = key(
        0.2, "A new value is clipped to this distance from the old one.", minimum=0
    )
    max_grad_norm: float = key(1.5, "The gradient's global norm is clipped to this.", above=0)
    ent_coef: float = key(0.001, "Weight of the entropy bonus in the first epoch.", minimum=0)
    anneal_ent_coef: bool = key(False, "Lower ent_coef along a cosine over the run's epochs.")
    min_ent_coef_ratio: float = key(
        0.1, "Where that cosine ends, as a part of ent_coef.", minimum=0, maximum=1
    )
    beta1: float = key(
        0.95,
        "Momentum: what Muon keeps of the sum of gradients, Adam (usually 0.9) of their mean."
        " PufferLib 5.0's momentum.",
        minimum=0,
        below=1,
    )
    beta2: float = key(
        0.999,
        "What Adam keeps of the mean of squared gradients; Muon has none.",
        minimum=0,
        below=1,
    )
    eps: float = key(
        1e-5,
        "What Adam adds to the root of that mean; Muon has none. PufferLib's 1e-12 is a default"
        " that it doesn't read.",
        above=0,
    )
    minibatch_size: int = key(
        8192,
        "M: length of a minibatch; a multiple of horizon, but for ppo's shuffled samples. Of"
        " puffer5 its segments, M / T, divide vec.total_agents.",
        unit="steps",
        minimum=1,
    )
    horizon: int = key(
        64,
        "T: length of a rollout and of a training segment. PufferLib 5.0 wants a multiple of 8;"
        " here any will do.",
        unit="steps",
        minimum=2,
    )
    vtrace: bool = key(
        True,
        "Weigh advantages by importance ratios, clipped as below; False: ratios count as 1."
        " PufferLib 4.0 always does.",
    )
    vtrace_rho_clip: float = key(
        1.0, "Largest importance ratio of a temporal difference.", minimum=0
    )
    vtrace_c_clip: float = key(
        1.0, "Largest importance ratio of the advantage recursion.", minimum=0
    )
    reward_clip: float = key(
        1.0, "Rewards are clamped to +- this; PufferLib's is 1. puffer_mlx only.", above=0
    )
    bootstrap_truncated: bool = key(
        False,
        "An episode that a time limit ended is worth its last observation's value; PufferLib counts"
        " it as over. For environments that tell the two apart (Gymnasium's). puffer_mlx only.",
    )
    prio_alpha: float = key(
        0.8,
        "Segments are drawn by |advantage| to this power; 0 is uniform. puffer4's alone.",
        minimum=0,
        maximum=1,
    )
    prio_beta0: float = key(
        0.2,
        "How much importance weights undo that in the first epoch. puffer4's alone.",
        minimum=0,
        maximum=1,
    )
    advantage: str = key(
        "V",
        "Advantage recursion: V as PufferLib on GPUs; S as its CPU extension. puffer4's alone."
        " puffer_mlx only.",
        choices=("V", "S"),
    )
    rollout_device: str = key(
        "auto",
        "Where the policy acts while it is trained on base.device; auto measures both once."
        " puffer_mlx only.",
        choices=("auto", "cpu", "gpu"),
    )
    overlap: bool | str = key(
        False,
        "Collect the next rollout while this one is trained on, with the weights from before: up to"
        " twice as fast, but one update behind, which large steps of puffer4 don't bear; auto is"
        " wherever there is a GPU beside the CPU. PufferLib 5.0's base.async.",
        words=("auto",),
    )
    precision: str = key(
        "fp32",
        "Type of activations and gradients; weights and optimizer stay fp32. puffer_mlx only.",
        choices=("fp32", "bf16", "fp16"),
        aliases={"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"},
    )


SECTIONS: dict[str, type] = {
    "base": Base,
    "vec": Vec,
    "policy": Policy,
    "torch": Torch,
    "train": Train,
}
KEYS: dict[str, dict[str, Key]] = {
    section: {item.name: item.metadata["key"] for item in fields(cls)}
    for section, cls in SECTIONS.items()
}


@dataclass
class Config:
    """Everything that describes a run.

    Args:
        env_name: the environment.
        base: section [base]; likewise vec, policy, torch and train.
        env: the environment's own parameters; floats, and for Python's also int, bool and str.
        source: the folder of its C sources, if it isn't one that comes with puffer_mlx.
        sweep: section name -> its keys and texts, for [sweep] and every [sweep.*].
        unused: names of keys that were given, are accepted and do nothing here.
        origins: name of a key that isn't at its default, or was typed -> where it was set:
            "breakout.ini:12", or ``COMMAND_LINE``.
        files: those that it was read from, the later ones winning.
        named_by: C sources and Python objects that only a file names, as it names them -> the
            file's line. ``trust.permit`` refuses them unless the person knows them.
        allow_code: they may run whatever they are: ``--allow-code``.
        chosen_by: what says whose trainer the run gets, in words; empty if nothing does.
        notes: what was found or changed for the person, a line each, to be said at the start.
        again: reads the same files and options once more, of an environment in Python with the
            settings of a family; None where no family's settings count.
    """

    env_name: str = ""
    base: Base = field(default_factory=Base)
    vec: Vec = field(default_factory=Vec)
    env: dict[str, Any] = field(default_factory=dict)
    source: str = ""
    policy: Policy = field(default_factory=Policy)
    torch: Torch = field(default_factory=Torch)
    train: Train = field(default_factory=Train)
    sweep: dict[str, dict[str, str]] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list, compare=False)
    origins: dict[str, str] = field(default_factory=dict, compare=False, repr=False)
    files: list[str] = field(default_factory=list, compare=False, repr=False)
    named_by: dict[str, str] = field(default_factory=dict, compare=False, repr=False)
    allow_code: bool = field(default=False, compare=False, repr=False)
    chosen_by: str = field(default="", compare=False, repr=False)
    notes: list[str] = field(default_factory=list, compare=False, repr=False)
    again: "Callable[[str], Config] | None" = field(default=None, compare=False, repr=False)

    @property
    def python(self) -> bool:
        """Whether the environment is one of Python: ``gym:ID`` or ``module:factory``."""
        return ":" in self.env_name

    @property
    def slug(self) -> str:
        """The environment's name as a file's name: gym:ALE/Pong-v5 is gym-ALE-Pong-v5."""
        return re.sub(r"[^\w.+=-]+", "-", self.env_name).strip("-.")

    @property
    def batch_size(self) -> int:
        """N * T: environment steps of one epoch."""
        return self.vec.total_agents * self.train.horizon

    @property
    def segments(self) -> int:
        """S = M / T: segments of one minibatch."""
        return self.train.minibatch_size // self.train.horizon

    @property
    def shuffles_samples(self) -> bool:
        """Whether minibatches are of samples, not of segments: PPO of a network without memory."""
        return self.train.algorithm == "ppo" and not says_memory(self.torch.network)

    @property
    def minibatches(self) -> int:
        """K: minibatches of one epoch."""
        return minibatches(self.train.replay_ratio, self.batch_size, self.train.minibatch_size)

    @property
    def epochs(self) -> int:
        """E = total_timesteps / (N * T), rounded down: upstream's native rule."""
        return self.train.total_timesteps // self.batch_size


def says_memory(network: str) -> bool:
    """Whether a ``torch.network`` has a memory; one of a person's own may. Empty: none is named."""
    return network not in ("", "MLP")


def minibatches(replay_ratio: float, batch_size: int, minibatch_size: int) -> int:
    """K = trunc(replay_ratio * N * T / M), every step in float32: upstream's native rule."""
    return int(np.float32(replay_ratio) * np.float32(batch_size) / np.float32(minibatch_size))
