"""Section [base]: the run as a whole. Its options have no section: `--seed 1`."""

from dataclasses import dataclass

from puffer_mlx.config.families import AUTO, FAMILIES
from puffer_mlx.config.key import Named, key
from puffer_mlx.config.parts import trackers

NO_TRACKER = "none"


@dataclass
class Base(Named):
    """The run; options without a section: `--seed 1`."""

    seed: int = key(
        73,
        "Seed of the initial weights and of action sampling.",
        ">= 0",
        brief="of weights and of actions",
    )
    device: str = key(
        "auto",
        "Where MLX computes; auto is the GPU where MLX has one. puffer_mlx only.",
        choices=("auto", "cpu", "gpu"),
        brief="where MLX computes",
    )
    family: str = key(
        "auto",
        "Settings with which a Python environment starts, after configs/python.ini:"
        " configs/discrete.ini, continuous.ini or images.ini; continuous_images is images.ini with"
        " the action keys of continuous.ini; auto chooses by its spaces. puffer_mlx only.",
        choices=(AUTO, *FAMILIES),
    )
    checkpoint_dir: str = key(
        "checkpoints",
        "Folder of checkpoints: DIR/ENV/RUN/STEP.",
        "path",
        brief="where checkpoints are kept",
    )
    log_dir: str = key(
        "logs", "Folder of logs: DIR/ENV/RUN.jsonl.", "path", brief="where logs are kept"
    )
    track: str = key(
        NO_TRACKER,
        "Loggers of the run besides its log file, separated by commas: tensorboard,wandb."
        " puffer_mlx only.",
        choices=(NO_TRACKER, *trackers()),
        several=True,
        brief="tensorboard, wandb, trackio",
    )
    wandb: bool = key(False, "True adds wandb to track.")
    wandb_project: str = key("puffer_mlx", "Project in wandb and trackio.")
    wandb_group: str = key("none", "Group of the run in wandb and trackio; none: no group.")
    tag: str = key("none", "Tag of the run in loggers; none: no tag.")
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
        "The evaluation after training ends when more episodes than this have finished (puffer5"
        " and eval_interval: exactly this number; 0: no evaluation). With eval_interval the"
        " default is 100.",
        "episodes >= 0",
    )
    eval_agents: int = key(
        -1,
        "Agents of that evaluation; -1: vec.total_agents, or with eval_interval as few as the"
        " episodes need. Without eval_interval only puffer5 uses it: puffer4 evaluates with the"
        " agents of training.",
        "agents >= -1",
    )
    eval_interval: int = key(
        0,
        "Steps, summed over agents, between two evaluations during training; the final weights"
        " are evaluated, too. Each plays eval_episodes whole episodes in separate environments."
        " Their score selects the best checkpoint. 0: evaluate after training only, as PufferLib"
        " does. puffer_mlx only.",
        "steps >= 0",
        brief="steps between two evaluations; 0 is none",
    )
    eval_video_interval: int = key(
        0,
        "Evaluations of eval_interval between two videos: each is a GIF of an episode,"
        " RUN/videos/STEP.gif beside the checkpoints; the last evaluation also makes one; 0 makes"
        " none. The environment must be able to draw itself. puffer_mlx only.",
        "evaluations >= 0",
    )
    eval_greedy: bool = key(
        False,
        "Take the most probable action in the evaluations of eval_interval; False samples."
        " puffer_mlx only.",
    )
    stop_at_score: float | str = key(
        "none",
        "End the run when an evaluation of eval_interval reaches this score (or a lower one, if"
        " [sweep] goal is minimize). puffer_mlx only.",
        words=("none",),
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
