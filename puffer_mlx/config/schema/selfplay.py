"""Section [selfplay]: opponents that are earlier weights of the run."""

from dataclasses import dataclass
from typing import NamedTuple

from puffer_mlx.config.key import StrictFields, key

AUTO_RULES, RULES_OF_4, RULES_OF_5 = "auto", "puffer4", "puffer5"  # values of selfplay.rules
RULES_RELEASE = {RULES_OF_4: "4.0", RULES_OF_5: "5.0"}  # rules -> PufferLib's release


class Rules(NamedTuple):
    """The names of the keys for opponents in self-play, by the rules of one PufferLib release.

    Args:
        count: Key of the number of opponents.
        count_without: Value of ``count`` without opponents.
        fraction: Key of the fraction of agents or environments for opponents.
        sizes: Keys of the opponents' hidden size and number of layers.
        further: Keys that have an effect only by these rules.
        example: Values of ``count`` and ``fraction`` for hints.
    """

    count: str
    count_without: int
    fraction: str
    sizes: tuple[str, str]
    further: tuple[str, ...]
    example: dict[str, float]


RULE_KEYS = {
    RULES_OF_4: Rules(
        "vec.num_frozen_banks",
        0,
        "vec.frozen_bank_pct",
        ("vec.frozen_bank_hidden_size", "vec.frozen_bank_num_layers"),
        ("selfplay.swap_winrate", "selfplay.min_games", "selfplay.snapshot_interval"),
        {"vec.num_frozen_banks": 1, "vec.frozen_bank_pct": 0.25},
    ),
    RULES_OF_5: Rules(
        "vec.num_policies",
        1,
        "vec.hist_policy_percent",
        ("vec.hist_policy_hidden_size", "vec.hist_policy_num_layers"),
        (),
        {"vec.num_policies": 2, "vec.hist_policy_percent": 0.25},
    ),
}
OTHER_RULES = {RULES_OF_4: RULES_OF_5, RULES_OF_5: RULES_OF_4}


@dataclass
class Selfplay(StrictFields):
    """Section [selfplay]: opponents are sampled from a pool of the learner's earlier weights."""

    enabled: bool = key(
        False,
        "Let earlier weights of the learner, from a pool, play some of the agents as opponents."
        " Their steps aren't trained on.",
    )
    rules: str = key(
        AUTO_RULES,
        "Rules for opponents. puffer4: as PufferLib 4.0, replace opponents that were beaten."
        " puffer5: as 5.0, sample new opponents after opp_timeout_steps. auto: puffer5 with"
        " vec.num_policies, puffer4 with vec.num_frozen_banks, else those of the trainer."
        " puffer_mlx only.",
        choices=(AUTO_RULES, RULES_OF_4, RULES_OF_5),
    )
    max_size: int = key(
        16,
        "Maximum number of entries (saved weights) in the pool. When it is full, puffer4 drops"
        " every second entry of the older half, puffer5 the oldest entry.",
        "entries >= 1",
    )
    swap_winrate: float = key(
        0.8,
        "Win rate of the learner, over at least min_games games, at which an opponent is replaced."
        " puffer4 only.",
        "0 to 1",
    )
    min_games: int = key(
        2048,
        "Games against an opponent before swap_winrate is checked. puffer4 only.",
        "games >= 0",
    )
    elo_init: float = key(0.0, "Elo rating of the first weights.", "points")
    elo_k: float = key(
        16.0,
        "Maximum change of an Elo rating by an epoch's games against one opponent. Ratings are"
        " only logged.",
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
        " with puffer4 after its games have ended, with puffer5 immediately; 0: never.",
        "steps 0 to 1e18",
    )
    train_on_opponents: bool = key(
        False,
        "Also train on the opponents' steps, as PufferLib 5.0 does, although the learner didn't"
        " choose their actions. puffer_mlx only.",
    )
    eval_pool_size: int = key(
        8,
        "Number of the pool's oldest entries that the final weights play against after training.",
        "entries >= 0",
    )
    eval_games: int = key(
        0,
        "Games after training against each entry of eval_pool_size. Their mean score becomes the"
        " run's score. 0: no games.",
        "games >= 0",
    )
    eval_bot_games: int = key(
        0,
        "Games after training against each of the environment's scripted opponents, instead of"
        " eval_games; 0: no games.",
        "games >= 0",
    )
    eval_bots: str = key(
        "0", "Indices of the scripted opponents for eval_bot_games, at most 16: 0, 1, 2."
    )
    eval_bot_envs: int = key(8192, "Agents of the environments for eval_bot_games.", "agents >= 1")
    eval_bot_threads: int = key(
        0, "Threads of the environments for eval_bot_games; 0: as in training.", "threads >= 0"
    )
