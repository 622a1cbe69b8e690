"""Section [base]: keys about the run. Their options need no section: `--seed 1`."""

from dataclasses import dataclass

from puffer_mlx.config.components import trackers
from puffer_mlx.config.families import AUTO, FAMILIES
from puffer_mlx.config.key import StrictFields, key

NO_TRACKER = "none"


@dataclass
class Base(StrictFields):
    """Section [base]: keys about the run. Their options need no section: `--seed 1`."""

    seed: int = key(
        73,
        "Seed of the initial weights and of action sampling.",
        ">= 0",
        brief="seed of weights and action sampling",
    )
    device: str = key(
        "auto",
        "Device that MLX uses; auto is the GPU if MLX has one. puffer_mlx only.",
        choices=("auto", "cpu", "gpu"),
        brief="device that MLX uses",
    )
    family: str = key(
        "auto",
        "Default settings of a Python environment, read after configs/python.ini:"
        " configs/discrete.ini, continuous.ini or images.ini; continuous_images is images.ini with"
        " the action keys of continuous.ini; auto chooses by the environment's spaces. puffer_mlx"
        " only.",
        choices=(AUTO, *FAMILIES),
    )
    checkpoint_dir: str = key(
        "checkpoints",
        "Folder of checkpoints: DIR/ENV/RUN/STEP.",
        "path",
        brief="folder of checkpoints",
    )
    log_dir: str = key("logs", "Folder of logs: DIR/ENV/RUN.jsonl.", "path", brief="folder of logs")
    track: str = key(
        NO_TRACKER,
        "Trackers that receive the run's metrics, besides the log file; separated by commas:"
        " tensorboard,wandb. puffer_mlx only.",
        choices=(NO_TRACKER, *trackers()),
        several=True,
        brief="trackers: tensorboard, wandb, trackio",
    )
    wandb: bool = key(False, "True adds wandb to track.")
    wandb_project: str = key("puffer_mlx", "Project in wandb and trackio.")
    wandb_group: str = key("none", "Group of the run in wandb and trackio; none: no group.")
    tag: str = key("none", "Tag of the run in trackers; none: no tag.")
    checkpoint_interval: int = key(
        200,
        "Epochs between two checkpoints; 0 writes only the last one.",
        "epochs >= 0",
        brief="epochs between two checkpoints",
    )
    checkpoint_keep: int = key(
        3,
        "Number of newest checkpoints to keep per run, in addition to the best; 0 keeps all."
        " puffer_mlx only.",
        "checkpoints >= 0",
    )
    eval_episodes: int = key(
        10_000,
        "Episodes to score after training, at least; 0: no evaluation. With puffer5, or with"
        " eval_interval, exactly this number. With eval_interval the default is 100.",
        "episodes >= 0",
    )
    eval_agents: int = key(
        -1,
        "Agents in an evaluation; -1: vec.total_agents, or with eval_interval as few as the"
        " episodes need. Without eval_interval only puffer5 uses this key: puffer4 evaluates with"
        " the agents of training.",
        "agents >= -1",
    )
    eval_interval: int = key(
        0,
        "Steps, summed over agents, between two evaluations during training. Each evaluation plays"
        " eval_episodes complete episodes in separate environments; its score selects the best"
        " checkpoint. The final weights are also evaluated. 0: evaluate only after training, as"
        " PufferLib does. puffer_mlx only.",
        "steps >= 0",
        brief="steps between two evaluations; 0: none",
    )
    eval_video_interval: int = key(
        0,
        "Record a GIF of an episode at every n-th evaluation of eval_interval and at the last one,"
        " in RUN/videos/STEP.gif beside the checkpoints. 0 records none. Needs an environment with"
        " draw.py or a renderer. puffer_mlx only.",
        "evaluations >= 0",
    )
    eval_greedy: bool = key(
        False,
        "Take the most probable action in the evaluations of eval_interval; False: sample"
        " actions. puffer_mlx only.",
    )
    stop_at_score: float | str = key(
        "none",
        "End the run when an evaluation of eval_interval reaches this score (or a lower one, if"
        " [sweep] goal is minimize). puffer_mlx only.",
        special_values=("none",),
    )
    reset_state: bool = key(
        True,
        "Zero the recurrent state when a rollout starts; False: continue with the last state."
        " PufferLib 5.0's reset_every_horizon, with default False for puffer5.",
    )
    profile: bool | str = key(
        True,
        "Time the phases of every epoch. A file name: also write a timeline for Perfetto.",
        suffix=".json",
    )
