"""Section [selfplay]: opponents out of the run's own past."""

from dataclasses import dataclass
from typing import NamedTuple

from puffer_mlx.config.key import Named, key

AUTO, OF_4, OF_5 = "auto", "puffer4", "puffer5"  # whose rules
RELEASES = {OF_4: "4.0", OF_5: "5.0"}  # of PufferLib, that have them


class Rules(NamedTuple):
    """The keys of one release that set the opponents."""

    count: str
    none: int  # value of ``count`` without opponents
    part: str
    sizes: tuple[str, str]  # keys of the opponents' hidden size and number of layers
    further: tuple[str, ...]  # keys with an effect only under these rules
    example: dict[str, float]  # values of ``count`` and ``part`` for hints


RULES = {
    OF_4: Rules(
        "vec.num_frozen_banks",
        0,
        "vec.frozen_bank_pct",
        ("vec.frozen_bank_hidden_size", "vec.frozen_bank_num_layers"),
        ("selfplay.swap_winrate", "selfplay.min_games", "selfplay.snapshot_interval"),
        {"vec.num_frozen_banks": 1, "vec.frozen_bank_pct": 0.25},
    ),
    OF_5: Rules(
        "vec.num_policies",
        1,
        "vec.hist_policy_percent",
        ("vec.hist_policy_hidden_size", "vec.hist_policy_num_layers"),
        (),
        {"vec.num_policies": 2, "vec.hist_policy_percent": 0.25},
    ),
}
OTHERS = {OF_4: OF_5, OF_5: OF_4}


@dataclass
class Selfplay(Named):
    """Opponents out of the run's own past: a pool of earlier weights."""

    enabled: bool = key(
        False,
        "Some of the agents are opponents: they act by earlier weights of the learner, from a"
        " pool, and aren't trained on.",
    )
    rules: str = key(
        AUTO,
        "puffer4: PufferLib 4.0's pool, which replaces opponents that were beaten; puffer5:"
        " 5.0's, which samples new ones after opp_timeout_steps; auto: 5.0's with"
        " vec.num_policies, 4.0's with vec.num_frozen_banks, else those of the trainer. puffer_mlx"
        " only.",
        choices=(AUTO, OF_4, OF_5),
    )
    max_size: int = key(
        16,
        "Maximum number of weights in the pool. Above it puffer4 drops every second one of the"
        " older half, puffer5 the oldest.",
        "entries >= 1",
    )
    swap_winrate: float = key(
        0.8,
        "Replace an opponent when the learner has won this fraction of min_games games against"
        " it. puffer4 only.",
        "0 to 1",
    )
    min_games: int = key(
        2048, "Games against an opponent before its win rate counts. puffer4 only.", "games >= 0"
    )
    elo_init: float = key(0.0, "Elo rating of the first weights.", "points")
    elo_k: float = key(
        16.0,
        "Maximum change of a rating, in points, by an epoch's games against one opponent. Ratings"
        " are only logged.",
        "points >= 0",
    )
    seed: int = key(42, "Seed for sampling from the pool.", ">= 0")
    snapshot_interval: int = key(
        1_000_000_000,
        "Steps, summed over agents, between two additions of the learner's weights to the pool;"
        " 0: add them only when an opponent is beaten. puffer4 only: puffer5 adds them every"
        " base.checkpoint_interval epochs.",
        "steps 0 to 1e18",
    )
    opp_timeout_steps: int = key(
        500_000_000,
        "Steps, summed over agents, after which an opponent is replaced even if it wasn't beaten:"
        " with puffer4 after its games have ended, with puffer5 in the middle of them; 0: never.",
        "steps 0 to 1e18",
    )
    train_on_opponents: bool = key(
        False,
        "Also train on the opponents' steps, as PufferLib 5.0 does, although the learner didn't"
        " choose their actions. puffer_mlx only.",
    )
    eval_pool_size: int = key(
        8,
        "After training: number of the pool's oldest entries that the final weights play against.",
        "entries >= 0",
    )
    eval_games: int = key(
        0, "Games against each of them; their mean score is the run's score; 0: none.", "games >= 0"
    )
    eval_bot_games: int = key(
        0,
        "After training: games against each of the environment's scripted opponents, instead of"
        " the pool; 0: none.",
        "games >= 0",
    )
    eval_bots: str = key("0", "Numbers of those opponents, at most 16: 0, 1, 2.")
    eval_bot_envs: int = key(8192, "Agents of the environments for these games.", "agents >= 1")
    eval_bot_threads: int = key(
        0, "Threads of these environments; 0: as in training.", "threads >= 0"
    )
