"""Section [train]: hyperparameters of rollouts, loss and optimizer."""

from dataclasses import dataclass

from puffer_mlx.config.components import algorithms, facts, optimizers
from puffer_mlx.config.key import StrictFields, key

ALGORITHMS = algorithms()
OPTIMIZERS = optimizers()
SCHEDULES = "cosine", "linear", "adaptive"
NORMALIZED = "normalized"  # value of train.loss


@dataclass
class Train(StrictFields):
    """Section [train]: hyperparameters of proximal policy optimization."""

    algorithm: str = key(
        "puffer4",
        "; ".join(f"{name}: {facts(name).summary}" for name in ALGORITHMS)
        + ". puffer_mlx only: files of PufferLib select the trainer of their release.",
        choices=ALGORITHMS,
        brief="trainer: puffer4, puffer5 or ppo",
    )
    total_timesteps: int = key(
        10_000_000,
        "Length of the run, summed over agents.",
        "steps 1 to 1e18",
        brief="steps, summed over agents",
    )
    optimizer: str = key(
        "muon",
        "Optimizer; adam is AdamW. The learning rates here and in PufferLib's files are for Muon;"
        " Adam needs about a tenth. PufferLib 4.0 has only Muon and ignores the key.",
        choices=OPTIMIZERS,
        custom="module:OPTIMIZER",
        brief="optimizer; adam needs a smaller rate",
    )
    learning_rate: float = key(
        0.015,
        "Learning rate in the first epoch.",
        ">= 0",
        advice=f"; train.lr_schedule sets the schedule: {', '.join(SCHEDULES)}",
        brief="initial learning rate; see lr_schedule",
    )
    anneal_lr: bool = key(
        True,
        "Change the learning rate during the run, by lr_schedule; False: constant.",
    )
    lr_schedule: str = key(
        "cosine",
        "Schedule of the learning rate. cosine (half a cosine, as in PufferLib) and linear: from"
        " learning_rate to min_lr_ratio x learning_rate; adaptive: follow the change of the policy,"
        " see desired_kl. puffer_mlx only.",
        choices=SCHEDULES,
    )
    desired_kl: float = key(
        0.01,
        "Target of loss/kl for lr_schedule adaptive: an epoch above twice this value divides the"
        " learning rate by 1.5, an epoch below half of it multiplies it by 1.5. The learning rate"
        " stays between 0.01 and 10 times learning_rate. As in rsl_rl and rl_games. puffer_mlx"
        " only.",
        "> 0",
    )
    min_lr_ratio: float = key(
        0.0, "Final learning rate of cosine and linear, as a fraction of learning_rate.", "0 to 1"
    )
    weight_decay: float = key(
        0.0,
        "Decoupled weight decay, as in AdamW, with any optimizer: each step subtracts this fraction"
        " of each weight, times the learning rate. puffer_mlx only.",
        ">= 0",
    )
    gamma: float = key(
        0.995, "Discount factor per step.", "0 to 1", brief="discount factor per step"
    )
    gae_lambda: float = key(
        0.90,
        "Lambda of generalized advantage estimation: the recursion decays by gamma x gae_lambda.",
        "0 to 1",
        brief="GAE's lambda, decay of advantages",
    )
    replay_ratio: float = key(
        1.0,
        "Number of times that an epoch trains on each of its N x T steps, on average.",
        "> 0 <= 1000",
        brief="times that a step is trained on",
    )
    loss: str = key(
        "clipped",
        "Loss function. clipped: PPO's; normalized: also normalize puffer5's advantages in the"
        " policy loss, as the other trainers always do; or a custom function that may add a term"
        " (docs/custom_policy.md). puffer_mlx only.",
        choices=("clipped", NORMALIZED),
        custom="module:function",
    )
    clip_coef: float = key(
        0.2,
        "Clipping range of the policy's probability ratio: 1 +- this.",
        "> 0",
        brief="clipping of the probability ratio",
    )
    vf_coef: float = key(2.0, "Weight of the value loss.", ">= 0")
    vf_clip_coef: float = key(
        0.2, "Maximum difference of a new value from the rollout's value; clipped.", ">= 0"
    )
    max_grad_norm: float = key(1.5, "Maximum global norm of the gradient; clipped.", "> 0")
    target_kl: float = key(
        0.0,
        "End an epoch's updates before the first minibatch whose KL from the rollout's policy"
        " exceeds 1.5 times this value, as in Stable-Baselines3; 0: no limit. ppo only. puffer_mlx"
        " only.",
        ">= 0",
    )
    rpo_alpha: float = key(
        0.0,
        "Robust policy optimization (RPO): add uniform noise of this amplitude to the means of"
        " continuous actions in the loss (not when acting), to keep exploring. CleanRL uses 0.5."
        " puffer_mlx only.",
        ">= 0",
    )
    ent_coef: float = key(
        0.001,
        "Weight of the entropy bonus in the first epoch.",
        ">= 0",
        brief="weight of the entropy bonus",
    )
    anneal_ent_coef: bool = key(
        False, "Lower ent_coef along half a cosine over the epochs of the run."
    )
    min_ent_coef_ratio: float = key(
        0.1, "Final weight with anneal_ent_coef, as a fraction of ent_coef.", "0 to 1"
    )
    beta1: float = key(
        0.95,
        "Momentum: decay of Muon's sum of gradients, or of Adam's mean of gradients (usually 0.9)."
        " PufferLib 5.0's name is momentum.",
        ">= 0 < 1",
    )
    beta2: float = key(
        0.999, "Decay of Adam's mean of squared gradients; Muon has none.", ">= 0 < 1"
    )
    eps: float = key(
        1e-5,
        "Adam adds this to the root of its mean of squared gradients; Muon has none. PufferLib's"
        " default, 1e-12, is unused there.",
        "> 0",
    )
    minibatch_size: int = key(
        8192,
        "M: environment steps in a minibatch; a multiple of horizon, except for ppo's shuffled"
        " samples. With puffer5 the number of segments, M / T, must divide vec.total_agents.",
        "steps >= 1",
        brief="steps in a minibatch",
    )
    horizon: int = key(
        64,
        "T: length of a rollout and of a training segment. PufferLib 5.0 needs a multiple of 8;"
        " puffer_mlx doesn't.",
        "steps >= 2",
        brief="steps in a rollout",
    )
    vtrace: bool = key(
        True,
        "Weight advantages by importance ratios (V-trace), clipped by the next two keys; False: use"
        " ratios of 1. Always on in PufferLib 4.0.",
    )
    vtrace_rho_clip: float = key(1.0, "Maximum importance ratio of a temporal difference.", ">= 0")
    vtrace_c_clip: float = key(1.0, "Maximum importance ratio of the advantage recursion.", ">= 0")
    reward_clip: float = key(
        1.0, "Clip rewards to +- this; PufferLib's is 1. puffer_mlx only.", "> 0"
    )
    bootstrap_truncated: bool = key(
        False,
        "Bootstrap the return of a truncated episode from the value of its last observation; False:"
        " from 0, as in PufferLib. For environments that distinguish truncated from terminated"
        " (Gymnasium's). puffer_mlx only.",
    )
    prio_alpha: float = key(
        0.8,
        "Sample segments with probability |advantage| to this power; 0: uniformly. puffer4 only.",
        "0 to 1",
    )
    prio_beta0: float = key(
        0.2,
        "Exponent, in the first epoch, of the importance weights that correct the sampling by"
        " prio_alpha. puffer4 only.",
        "0 to 1",
    )
    advantage: str = key(
        "V",
        "Advantage recursion. V: as PufferLib on GPUs; S: as its CPU extension, puffer4 only; or a"
        " custom function (docs/custom_policy.md). puffer_mlx only.",
        choices=("V", "S"),
        custom="module:function",
    )
    rollout_device: str = key(
        "auto",
        "Device on which the policy acts; it is trained on base.device. gpu-kernel: environments"
        " also step on the GPU, if their code compiles for it, in one launch per rollout if the"
        " policy fits, otherwise in a few launches per step. auto follows a rule"
        " (docs/settings.md). puffer_mlx only.",
        choices=("auto", "cpu", "gpu", "gpu-kernel"),
    )
    launch_steps: int = key(
        0,
        "Steps per launch with rollout_device gpu-kernel. 0: an entire rollout; on a Mac, the"
        " measured number of steps in 8 ms, because macOS may stop longer launches. Results don't"
        " depend on it. puffer_mlx only.",
        "steps >= 0",
    )
    one_launch: bool | str = key(
        "auto",
        "Compute a minibatch's gradients on a GPU in one launch that stores no activations, if"
        " possible: for MinGRU with hidden_size up to about 64, and PPO's loss. auto: on CUDA."
        " False: use the reference with about twenty launches. puffer_mlx only.",
        special_values=("auto",),
    )
    overlap: bool | str = key(
        False,
        "Collect the next rollout while training on this one. Up to twice as fast, but rollouts use"
        " weights that are one update old, which puffer4 with large learning rates doesn't"
        " tolerate. auto: on machines with a GPU. PufferLib 5.0's base.async.",
        special_values=("auto",),
    )
    precision: str = key(
        "fp32",
        "Type of activations and gradients; weights and optimizer stay fp32. puffer_mlx only.",
        choices=("fp32", "bf16", "fp16"),
        aliases={"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"},
    )
    gpus: int = key(
        1,
        "Number of processes (ranks) that train together on this machine, each with a GPU or some"
        " of the cores. Other keys are totals over all ranks: vec.total_agents and minibatch_size"
        " are divided equally. mlx.launch starts ranks on several machines.",
        "ranks >= 1",
    )
    rank_timeout: float = key(
        20.0,
        "Longest time to wait for a rank that hangs; then the other ranks end with an error. At"
        " least five minutes in the first two epochs, in which each rank compiles. puffer_mlx"
        " only.",
        "seconds > 0",
    )
