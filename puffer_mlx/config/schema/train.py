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
        + ". puffer_mlx only: a file of PufferLib's selects that of its release.",
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
        "How gradients move the weights; adam is AdamW. The learning rates here and PufferLib's are"
        " Muon's: about a tenth of them suits Adam. PufferLib 4.0 has Muon alone and ignores the"
        " key.",
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
        True, "Lower the learning rate over the run's epochs, as lr_schedule says; False keeps it."
    )
    lr_schedule: str = key(
        "cosine",
        "How it falls from learning_rate to min_lr_ratio x learning_rate: along half a cosine, as"
        " PufferLib's, or along a line; adaptive: it follows the policy's moves, see desired_kl."
        " puffer_mlx only.",
        choices=SCHEDULES,
    )
    desired_kl: float = key(
        0.01,
        "Of lr_schedule adaptive: after an epoch whose loss/kl is more than twice this the learning"
        " rate is divided by 1.5, after one with less than half of it multiplied, between a"
        " hundredth and ten times of learning_rate; as rsl_rl's and rl_games's. puffer_mlx only.",
        "> 0",
    )
    min_lr_ratio: float = key(
        0.0, "Where cosine or line end, as a part of learning_rate.", "0 to 1"
    )
    weight_decay: float = key(
        0.0,
        "Part of every weight that a step takes away, times the learning rate (AdamW's decay, for"
        " any optimizer). puffer_mlx only.",
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
        "How often an epoch trains on its N x T steps, on average.",
        "> 0 <= 1000",
        brief="how often a step is trained on",
    )
    loss: str = key(
        "clipped",
        "What is minimised: PPO's clipped loss; normalized: puffer5's advantages, which count as"
        " they are, are normalised in the policy's part, as the other trainers' always are; or a"
        " function of your own, which may add a term (docs/custom_policy.md). puffer_mlx only.",
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
        "An epoch's steps end before the first minibatch on which the policy is more than 1.5 times"
        " this KL away from the rollout's, as in Stable-Baselines3; 0 sets no bound. ppo's alone."
        " puffer_mlx only.",
        ">= 0",
    )
    rpo_alpha: float = key(
        0.0,
        "The means of continuous actions are moved by noise, evenly between -+ this, wherever the"
        " loss reads them, and not where the policy acts: RPO, which keeps it from settling early;"
        " CleanRL's is 0.5. puffer_mlx only.",
        ">= 0",
    )
    ent_coef: float = key(
        0.001,
        "Weight of the entropy bonus in the first epoch.",
        ">= 0",
        brief="weight of the entropy bonus",
    )
    anneal_ent_coef: bool = key(False, "Lower ent_coef along a cosine over the run's epochs.")
    min_ent_coef_ratio: float = key(0.1, "Where that cosine ends, as a part of ent_coef.", "0 to 1")
    beta1: float = key(
        0.95,
        "Momentum: what Muon keeps of the sum of gradients, Adam (usually 0.9) of their mean."
        " PufferLib 5.0's momentum.",
        ">= 0 < 1",
    )
    beta2: float = key(
        0.999, "What Adam keeps of the mean of squared gradients; Muon has none.", ">= 0 < 1"
    )
    eps: float = key(
        1e-5,
        "What Adam adds to the root of that mean; Muon has none. PufferLib's 1e-12 is a default"
        " that it doesn't read.",
        "> 0",
    )
    minibatch_size: int = key(
        8192,
        "M: length of a minibatch; a multiple of horizon, but for ppo's shuffled samples. Of"
        " puffer5 its segments, M / T, divide vec.total_agents.",
        "steps >= 1",
        brief="steps of a minibatch",
    )
    horizon: int = key(
        64,
        "T: length of a rollout and of a training segment. PufferLib 5.0 wants a multiple of 8;"
        " here any will do.",
        "steps >= 2",
        brief="steps of a rollout",
    )
    vtrace: bool = key(
        True,
        "Weigh advantages by importance ratios, clipped as below; False: ratios count as 1."
        " PufferLib 4.0 always does.",
    )
    vtrace_rho_clip: float = key(1.0, "Largest importance ratio of a temporal difference.", ">= 0")
    vtrace_c_clip: float = key(1.0, "Largest importance ratio of the advantage recursion.", ">= 0")
    reward_clip: float = key(
        1.0, "Rewards are clamped to +- this; PufferLib's is 1. puffer_mlx only.", "> 0"
    )
    bootstrap_truncated: bool = key(
        False,
        "An episode that a time limit ended is worth its last observation's value; PufferLib counts"
        " it as over. For environments that tell the two apart (Gymnasium's). puffer_mlx only.",
    )
    prio_alpha: float = key(
        0.8,
        "Segments are drawn by |advantage| to this power; 0 is uniform. puffer4's alone.",
        "0 to 1",
    )
    prio_beta0: float = key(
        0.2, "How much importance weights undo that in the first epoch. puffer4's alone.", "0 to 1"
    )
    advantage: str = key(
        "V",
        "Advantage recursion: V as PufferLib on GPUs; S as its CPU extension, puffer4's alone; or a"
        " function of your own (docs/custom_policy.md). puffer_mlx only.",
        choices=("V", "S"),
        custom="module:function",
    )
    rollout_device: str = key(
        "auto",
        "Where the policy acts while it is trained on base.device; gpu-kernel: environments, too,"
        " if their rules compile for a GPU, in one launch a rollout where the policy fits, else in"
        " a few launches a step; auto is a rule (docs/settings.md). puffer_mlx only.",
        choices=("auto", "cpu", "gpu", "gpu-kernel"),
    )
    launch_steps: int = key(
        0,
        "Steps of one launch of rollout_device gpu-kernel; 0: on a Mac as many as take 8 ms, which"
        " is measured, as macOS may end longer launches; elsewhere a rollout's. Results are the"
        " same to the bit. puffer_mlx only.",
        "steps >= 0",
    )
    one_launch: bool | str = key(
        "auto",
        "Whether a GPU computes a minibatch's gradients in one launch that stores no activations,"
        " where it can: MinGRU, PPO's own loss, up to 64 or so wide; auto is on CUDA. False is the"
        " reference: some twenty launches. puffer_mlx only.",
        words=("auto",),
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
    gpus: int = key(
        1,
        "Processes, ranks, that train together on this machine: a GPU each, or a share of the"
        " cores. Other numbers here are those of all of them: each has an R-th of"
        " vec.total_agents and of minibatch_size. mlx.launch starts ranks on several machines.",
        "ranks >= 1",
    )
    rank_timeout: float = key(
        20.0,
        "With several ranks: how long the others wait for one that hangs, before they end. Five"
        " minutes at least in the first two epochs, in which each compiles. puffer_mlx only.",
        "seconds > 0",
    )
