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
        "Which settings an environment in Python begins with, after configs/python.ini: those of"
        " configs/discrete.ini, continuous.ini or images.ini, or of images.ini with what"
        " continuous.ini says of actions; auto is chosen from its spaces. puffer_mlx only.",
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
        "Trackers that are told of the run beside its log, several with commas between them:"
        " tensorboard,wandb. puffer_mlx only.",
        choices=(NO_TRACKER, *trackers()),
        several=True,
        brief="tensorboard, wandb, trackio",
    )
    wandb: bool = key(False, "The same as wandb in track.")
    wandb_project: str = key("puffer_mlx", "Project of wandb, and of trackio.")
    wandb_group: str = key("none", "Group of the run in wandb, and in trackio; none is no group.")
    tag: str = key("none", "Tag of the run in trackers; none is no tag.")
    checkpoint_interval: int = key(
        200,
        "Epochs from one checkpoint to the next; 0 writes only the last.",
        "epochs >= 0",
        brief="epochs between two checkpoints",
    )
    checkpoint_keep: int = key(
        3,
        "The newest checkpoints of a run that are kept, besides the best; 0 keeps all."
        " puffer_mlx only.",
        "checkpoints >= 0",
    )
    eval_episodes: int = key(
        10_000,
        "The evaluation after training ends when more have finished (puffer5 and eval_interval: so"
        " many; 0: there is none). With eval_interval it is 100, unless a file of yours or an"
        " option says otherwise.",
        "episodes >= 0",
    )
    eval_agents: int = key(
        -1,
        "Agents of that evaluation; -1 is vec.total_agents, with eval_interval as few of them as"
        " the episodes need. Without eval_interval puffer5's alone: puffer4 goes on with the agents"
        " it trained with.",
        "agents >= -1",
    )
    eval_interval: int = key(
        0,
        "Steps, summed over agents, from one evaluation to the next, each after the epoch that"
        " reaches them, and after the last: eval_episodes whole episodes in environments of their"
        " own. Their score says which checkpoint is best. 0: PufferLib's, after training only."
        " puffer_mlx only.",
        "steps >= 0",
        brief="steps between two evaluations; 0 is none",
    )
    eval_video_interval: int = key(
        0,
        "Of the evaluations of eval_interval every so many-th, and the last, also makes a GIF of an"
        " episode, RUN/videos/STEP.gif beside the checkpoints; 0 makes none. The environment must"
        " be one that can be drawn. puffer_mlx only.",
        "evaluations >= 0",
    )
    eval_greedy: bool = key(
        False,
        "In the evaluations of eval_interval take the most probable action instead of drawing one."
        " puffer_mlx only.",
    )
    stop_at_score: float | str = key(
        "none",
        "End the run with the evaluation of eval_interval whose score reaches this (falls to it,"
        " where [sweep] goal is minimize). puffer_mlx only.",
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
