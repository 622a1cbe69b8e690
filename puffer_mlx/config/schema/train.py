"""Section [train]: collecting and learning."""

from dataclasses import dataclass

from puffer_mlx.config.key import Named, key
from puffer_mlx.config.parts import algorithms, facts, optimizers

ALGORITHMS, OPTIMIZERS = algorithms(), optimizers()
SCHEDULES = "cosine", "linear", "adaptive"
NORMALIZED = "normalized"  # of loss


@dataclass
class Train(Named):
    """Proximal policy optimisation."""

    algorithm: str = key(
        "puffer4",
        "; ".join(f"{name}: {facts(name).about}" for name in ALGORITHMS)
        + ". puffer_mlx only: files of PufferLib select the trainer of their release.",
        choices=ALGORITHMS,
        brief="puffer4, puffer5 or ppo",
    )
    total_timesteps: int = key(
        10_000_000,
        "Length of the run, summed over agents.",
        "steps 1 to 1e18",
        brief="steps of the run, of all agents",
    )
    optimizer: str = key(
        "muon",
        "How gradients change the weights; adam is AdamW. The learning rates here and in"
        " PufferLib's files are for Muon; Adam needs about a tenth. PufferLib 4.0 has only Muon"
        " and ignores the key.",
        choices=OPTIMIZERS,
        custom="module:OPTIMIZER",
        brief="adam wants a tenth of muon's rate",
    )
    learning_rate: float = key(
        0.015,
        "The optimizer's step size in the first epoch.",
        ">= 0",
        advice=f"; how it falls, train.lr_schedule says: {', '.join(SCHEDULES)}",
        brief="at the beginning; see lr_schedule",
    )
    anneal_lr: bool = key(
        True,
        "Lower the learning rate over the epochs of the run, as lr_schedule says; False: constant.",
    )
    lr_schedule: str = key(
        "cosine",
        "Schedule from learning_rate to min_lr_ratio x learning_rate: cosine, half a cosine, as"
        " PufferLib's; linear; adaptive follows the change of the policy, see desired_kl."
        " puffer_mlx only.",
        choices=SCHEDULES,
    )
    desired_kl: float = key(
        0.01,
        "For lr_schedule adaptive: an epoch with loss/kl above twice this divides the learning"
        " rate by 1.5, one below half of this multiplies it by 1.5, between a hundredth and ten"
        " times learning_rate, as in rsl_rl and rl_games. puffer_mlx only.",
        "> 0",
    )
    min_lr_ratio: float = key(
        0.0, "Final learning rate of cosine and linear, as a fraction of learning_rate.", "0 to 1"
    )
    weight_decay: float = key(
        0.0,
        "Weight decay: each step subtracts this fraction of each weight, times the learning rate"
        " (as AdamW, with any optimizer). puffer_mlx only.",
        ">= 0",
    )
    gamma: float = key(0.995, "Discount of one step.", "0 to 1", brief="discount of a step")
    gae_lambda: float = key(
        0.90,
        "Decay of the advantage recursion, times gamma.",
        "0 to 1",
        brief="decay of advantages",
    )
    replay_ratio: float = key(
        1.0,
        "Number of times that an epoch trains on its N x T steps, on average.",
        "> 0 <= 1000",
        brief="how often a step is trained on",
    )
    loss: str = key(
        "clipped",
        "Loss function. clipped: PPO's; normalized: also normalizes puffer5's advantages in the"
        " policy loss, as the other trainers always do; or a custom function, which may add a term"
        " (docs/custom_policy.md). puffer_mlx only.",
        choices=("clipped", NORMALIZED),
        custom="module:function",
    )
    clip_coef: float = key(
        0.2,
        "The policy's probability ratio is clipped to 1 +- this.",
        "> 0",
        brief="limit of a policy's change",
    )
    vf_coef: float = key(2.0, "Weight of the value loss.", ">= 0")
    vf_clip_coef: float = key(
        0.2, "A new value is clipped to this distance from the old one.", ">= 0"
    )
    max_grad_norm: float = key(1.5, "The gradient's global norm is clipped to this.", "> 0")
    target_kl: float = key(
        0.0,
        "End an epoch's updates before the first minibatch whose KL from the rollout's policy is"
        " above 1.5 times this, as in Stable-Baselines3; 0: no limit. ppo only. puffer_mlx only.",
        ">= 0",
    )
    rpo_alpha: float = key(
        0.0,
        "RPO: add uniform noise between -+ this to the means of continuous actions in the loss,"
        " not when acting, which keeps the policy exploring; CleanRL uses 0.5. puffer_mlx only.",
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
        0.1, "Final entropy weight of that cosine, as a fraction of ent_coef.", "0 to 1"
    )
    beta1: float = key(
        0.95,
        "Momentum: decay of Muon's sum of gradients, or of Adam's mean of gradients (usually"
        " 0.9). PufferLib 5.0's momentum.",
        ">= 0 < 1",
    )
    beta2: float = key(
        0.999, "Decay of Adam's mean of squared gradients; Muon has none.", ">= 0 < 1"
    )
    eps: float = key(
        1e-5,
        "Adam adds this to the root of that mean; Muon has none. PufferLib's 1e-12 is a default"
        " that it doesn't use.",
        "> 0",
    )
    minibatch_size: int = key(
        8192,
        "M: length of a minibatch; a multiple of horizon, except for ppo's shuffled samples. With"
        " puffer5 the number of segments, M / T, must divide vec.total_agents.",
        "steps >= 1",
        brief="steps of a minibatch",
    )
    horizon: int = key(
        64,
        "T: length of a rollout and of a training segment. PufferLib 5.0 needs a multiple of 8;"
        " puffer_mlx doesn't.",
        "steps >= 2",
        brief="steps of a rollout",
    )
    vtrace: bool = key(
        True,
        "Weight advantages by importance ratios, clipped as below; False: ratios are 1. PufferLib"
        " 4.0 always does.",
    )
    vtrace_rho_clip: float = key(1.0, "Largest importance ratio of a temporal difference.", ">= 0")
    vtrace_c_clip: float = key(1.0, "Largest importance ratio of the advantage recursion.", ">= 0")
    reward_clip: float = key(
        1.0, "Rewards are clamped to +- this; PufferLib's is 1. puffer_mlx only.", "> 0"
    )
    bootstrap_truncated: bool = key(
        False,
        "The end of a truncated episode is worth the value of its last observation; False: 0, as"
        " in PufferLib. For environments that distinguish truncated from terminated (Gymnasium's)."
        " puffer_mlx only.",
    )
    prio_alpha: float = key(
        0.8,
        "Segments are sampled with probability |advantage| to this power; 0: uniform. puffer4"
        " only.",
        "0 to 1",
    )
    prio_beta0: float = key(
        0.2,
        "Exponent of the importance weights that correct this sampling, in the first epoch."
        " puffer4 only.",
        "0 to 1",
    )
    advantage: str = key(
        "V",
        "Advantage recursion: V, as PufferLib on GPUs; S, as its CPU extension, puffer4 only; or"
        " a custom function (docs/custom_policy.md). puffer_mlx only.",
        choices=("V", "S"),
        custom="module:function",
    )
    rollout_device: str = key(
        "auto",
        "Where the policy acts; it is trained on base.device. gpu-kernel: environments step"
        " there, too, if their rules compile for a GPU: in one launch per rollout if the policy"
        " fits, else in a few launches per step; auto follows a rule (docs/settings.md)."
        " puffer_mlx only.",
        choices=("auto", "cpu", "gpu", "gpu-kernel"),
    )
    launch_steps: int = key(
        0,
        "Steps of one launch of rollout_device gpu-kernel. 0: an entire rollout; on a Mac a"
        " measured number that takes 8 ms, because macOS may end longer launches. Results are the"
        " same to the bit. puffer_mlx only.",
        "steps >= 0",
    )
    one_launch: bool | str = key(
        "auto",
        "Compute a minibatch's gradients on a GPU in one launch that stores no activations, if"
        " possible: MinGRU, PPO's own loss, about 64 wide at most; auto: on CUDA. False: the"
        " reference, about twenty launches. puffer_mlx only.",
        words=("auto",),
    )
    overlap: bool | str = key(
        False,
        "Collect the next rollout, with the weights from before, while this one is trained on: up"
        " to twice as fast, but one update late, which large steps of puffer4 don't tolerate;"
        " auto: if there is a GPU beside the CPU. PufferLib 5.0's base.async.",
        words=("auto",),
    )
    precision: str = key(
        "fp32",
        "Type of activations and gradients; weights and optimizer stay fp32. puffer_mlx only.",
        choices=("fp32", "bf16", "fp16"),
        aliases={"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"},
    )
    gpus: int = key(
        1,
        "Number of processes (ranks) that train together on this machine, each with a GPU or a"
        " part of the cores. Other keys are totals over all ranks: each rank has an equal part of"
        " vec.total_agents and of minibatch_size. mlx.launch starts ranks on several machines.",
        "ranks >= 1",
    )
    rank_timeout: float = key(
        20.0,
        "With several ranks: how long the others wait for a rank that hangs before they end; at"
        " least five minutes in the first two epochs, in which each rank compiles. puffer_mlx"
        " only.",
        "seconds > 0",
    )
