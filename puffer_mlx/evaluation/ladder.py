"""Play a policy against a ladder: opponents of known strength, one after another.

An opponent is scripted, or an entry of a self-play run's pool. There are two kinds of scripted
opponents. In some PufferLib 5.0 environments, C code plays the opponent (``puf_set_bot_policy``):
the policy is then the only agent, scored by ``perf``, or by ``score`` if ``perf`` isn't reported.
Other environments have a ``bot.py``, which plays one side of a match at several skills.

Scores from self-play mean little, because both sides are learners. After training, a self-play run
therefore plays a ladder in place of the evaluation, as in PufferLib 5.0: against scripted opponents
(``selfplay.eval_bot_games``) or, without those, against the oldest entries of the pool
(``selfplay.eval_games``). The mean score is the score of the run.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from puffer_mlx import vec
from puffer_mlx.checkpoint.environment_statistics import current_statistics
from puffer_mlx.checkpoint.normalization import Statistics
from puffer_mlx.config import Config
from puffer_mlx.config.fit import is_explicit
from puffer_mlx.config.releases import BOT_SCRIPT, folder_release
from puffer_mlx.errors import UserError
from puffer_mlx.evaluation.episodes import (
    MAX_STEPS,
    AgentStepper,
    Scores,
    environments_needed,
    main_score_name,
    score_episodes,
    seeded_eval_config,
)
from puffer_mlx.evaluation.games import (
    GameProgress,
    agents_per_environment,
    play_pairs,
    without_normalization,
)
from puffer_mlx.evaluation.players import BOT_NAME, Player, player_without_policy, policy_player
from puffer_mlx.evaluation.results import Z_95, Tally, action_mode, wilson_interval
from puffer_mlx.policy.policy import Policy
from puffer_mlx.spec import EnvSpec
from puffer_mlx.training.epoch_logs import Logs
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.vec.base import Environments, HasNormalizer
from puffer_mlx.vec.from_config import source_folder
from puffer_mlx.vec.native.vec import NativeVec

BOT_SKILLS = 0.0, 0.25, 0.5, 0.75, 1.0  # skills at which a bot.py plays
PERF_SCORE = "perf"

LADDER_PREFIX = "env/ladder/"  # of the keys in a record with the score against each opponent


class OpponentResult(NamedTuple):
    """Results of a policy's games against one opponent.

    Args:
        name: Name of the opponent.
        games: Number of games.
        score: Mean over games: 1 for a win and 0.5 for a draw, or the environment's own score.
        low: Lower end of the 95 % interval.
        high: Upper end of the 95 % interval.
        tally: Wins, draws and losses, or None for an opponent played by the environment's C code.
    """

    name: str
    games: int
    score: float
    low: float
    high: float
    tally: Tally | None = None


class Ladder(NamedTuple):
    """Results of a policy against a ladder, which is a series of opponents, in the order played.

    Args:
        name: Name of the environment.
        score_name: Name of the score, the heading of its column.
        results: Results for one or more opponents.
        deterministic: True if the policy's actions weren't sampled.
    """

    name: str
    score_name: str
    results: tuple[OpponentResult, ...]
    deterministic: bool = False

    @property
    def score(self) -> float:
        """Mean of the policy's scores against all opponents."""
        return sum(result.score for result in self.results) / len(self.results)

    def __str__(self) -> str:
        counted = self.results[0].tally is not None
        names = ("wins", "draws", "losses") if counted else ("games",)
        width = max(20, *(len(result.name) for result in self.results))
        columns = [*names, self.score_name]
        games = f", {self.results[0].games:,} games per opponent" if counted else ""
        lines = [
            f"ladder of {self.name}{games}; {action_mode(self.deterministic)}",
            f"  {'':{width}}" + "".join(f"{name:>8}" for name in columns) + "  95 %",
        ]
        for result in self.results:
            counts = result.tally or (result.games,)
            lines.append(
                f"  {result.name:{width}}"
                + "".join(f"{number:8,}" for number in counts)
                + f"{result.score:8.3f}  {result.low:.3f} to {result.high:.3f}"
            )
        empty = " " * 8 * len(names)
        lines.append(f"  {'mean':{width}}{empty}{self.score:8.3f}")
        return "\n".join(lines)

    def record(self) -> dict[str, Any]:
        """Return the results against all opponents as a dictionary of JSON types."""
        return {
            "environment": self.name,
            "deterministic": self.deterministic,
            "greedy": self.deterministic,
            "score": self.score,
            "rungs": [
                {**result._asdict(), "tally": result.tally and result.tally._asdict()}
                for result in self.results
            ],
        }


def has_bots_in_c(config: Config) -> bool:
    """Return True if scripted opponents are in the environment's C code, False if in ``bot.py``.

    Raises:
        UserError: If the environment has no scripted opponents.
    """
    if not config.python:
        folder = source_folder(config)
        if (folder / BOT_SCRIPT).is_file():
            return False
        if folder_release(folder) == "5.0":
            return True
    raise UserError(
        f"{config.env_name} has no scripted opponents",
        "a ladder needs bot.py in its folder, or puf_set_bot_policy in a PufferLib 5.0 environment",
    )


def unused_bot_keys(config: Config) -> str:
    """Return a note on options for opponents in C that are unused with a ``bot.py``, or ""."""
    names = [f"selfplay.{key}" for key in ("eval_bots", "eval_bot_envs", "eval_bot_threads")]
    unused = [name for name in names if is_explicit(config, name)]
    if not unused or has_bots_in_c(config):
        return ""
    return f"unused with bot.py: {', '.join(unused)}"


def bot_ids(config: Config) -> list[int]:
    """Return the numbers of the scripted opponents that a policy plays: ``selfplay.eval_bots``."""
    return [int(word) for word in config.selfplay.eval_bots.split(",")]


def play_scripted_opponents(
    config: Config,
    spec: EnvSpec,
    policy: Policy,
    weights: Any,
    statistics: Statistics,
    make: Callable[[Config], Environments],
    games: int,
    deterministic: bool = False,
    progress: GameProgress = lambda done, total: None,
) -> Ladder:
    """Play a policy against its environment's scripted opponents, in C or ``bot.py``.

    Args:
        config: Configuration of the policy's run.
        spec: Spec of the training environments.
        policy: Trained policy.
        weights: Weights of the policy.
        statistics: Normalization statistics of the policy's observations, by name.
        make: Creates environments from a configuration. They are closed here.
        games: Minimum number of games against each opponent.
        deterministic: Take the most probable action instead of sampling.
        progress: Called after each step with the numbers of finished and of expected games.

    Raises:
        UserError: If the environment has no scripted opponents, or the games can't be played.
    """
    if has_bots_in_c(config):

        def make_normalized(config: Config) -> Environments:
            environments = make(config)
            if isinstance(environments, HasNormalizer):
                environments.restore_statistics(dict(statistics), frozen=True)
            return environments

        return play_environment_bots(
            config, spec, policy, weights, make_normalized, games, deterministic, progress
        )
    player = policy_player("the policy", policy, weights, deterministic, statistics)
    game_config = bot_game_config(config)
    bots = []
    for skill in BOT_SKILLS:
        bot = player_without_policy(f"{BOT_NAME}:{skill:g}", game_config, spec)
        assert bot is not None
        bots.append(bot)
    return play_opponents(player, bots, game_config, make, games, progress)


def play_environment_bots(
    config: Config,
    spec: EnvSpec,
    policy: Policy,
    weights: Any,
    make: Callable[[Config], Environments],
    games: int,
    deterministic: bool = False,
    progress: GameProgress = lambda done, total: None,
) -> Ladder:
    """Play a policy against scripted opponents that the environment's C code plays.

    ``selfplay.eval_bots`` lists the numbers of these opponents, as in PufferLib 5.0.

    Args:
        config: Configuration of the policy's run.
        spec: Spec of the training environments.
        policy: Trained policy.
        weights: Weights of the policy.
        make: Creates environments for the policy from a configuration. They are closed here.
        games: Minimum number of games against each opponent.
        deterministic: Take the most probable action instead of sampling.
        progress: Called after each step.

    Raises:
        UserError: If the environment has no such opponents, has a different spec with them, or its
            games don't end.
    """
    seed = config.base.seed
    settings = environment_bot_config(config)
    bots = bot_ids(config)
    results = []
    agents = check_environment_bots(settings, spec)
    count = environments_needed(games, max(1, config.selfplay.eval_bot_envs // agents), agents)
    with make(seeded_eval_config(settings, count, agents, seed)) as environments:
        score_name = PERF_SCORE
        for bot_index, number in enumerate(bots):
            select_bot(environments, number)
            scores = score_episodes(
                AgentStepper(policy, weights, environments, seed, deterministic),
                games,
                max_steps=MAX_STEPS,
                progress=lambda finished, expected, bot_index=bot_index: progress(
                    bot_index * expected + finished, len(bots) * expected
                ),
            )
            score_name, result = _bot_result(f"{BOT_NAME} {number}", scores, config)
            results.append(result)
    return Ladder(config.env_name, score_name, tuple(results), deterministic)


def play_opponents(
    player: Player,
    opponents: Sequence[Player],
    config: Config,
    make: Callable[[Config], Environments],
    games: int,
    progress: GameProgress = lambda done, total: None,
) -> Ladder:
    """Let a player play games against each of several opponents. Returns all results.

    Args:
        player: Player to score.
        opponents: Opponents, played one after another.
        config: Configuration of the environments.
        make: Creates environments from a configuration. They are closed here.
        games: Minimum number of games against each opponent.
        progress: Called after each step with the numbers of finished and of expected games.

    Raises:
        UserError: If the games can't be played.
    """
    plain = without_normalization(config)
    pairs = [(0, 1 + index) for index in range(len(opponents))]
    seed = config.base.seed
    results_by_pair = play_pairs(
        [player, *opponents],
        pairs,
        plain,
        agents_per_environment(plain),
        games,
        make,
        seed,
        progress=progress,
    )
    results = []
    for opponent, pair in zip(opponents, pairs, strict=True):
        total = results_by_pair[pair].total
        interval = wilson_interval(results_by_pair[pair].independent)
        results.append(OpponentResult(opponent.name, total.games, total.score, *interval, total))
    return Ladder(config.env_name, "score", tuple(results), player.deterministic)


def bot_game_config(config: Config) -> Config:
    """Return the configuration for games against scripted opponents: [bot_eval] overrides [env]."""
    return replace(config, env={**config.env, **config.bot_eval})


def environment_bot_config(config: Config) -> Config:
    """Return the configuration for games against an opponent that the environment's C code plays.

    As in PufferLib 5.0, the policy is the only agent: ``env.num_agents`` and ``env.num_bots`` are
    1, and [bot_eval] overrides [env].
    """
    env = {**config.env, "num_agents": 1.0, "num_bots": 1.0}
    settings = config.vec
    config = bot_game_config(replace(config, env=env))
    if threads := config.selfplay.eval_bot_threads:
        settings = replace(settings, max_threads=threads)
    no_self_play = replace(config.selfplay, enabled=False)
    return replace(config, vec=settings, selfplay=no_self_play, origins={}, notes=[])


def select_bot(environments: Environments, number: int) -> None:
    """Select the scripted opponent that environments play from their next reset on.

    Raises:
        UserError: If the environments have no scripted opponents.
    """
    native = getattr(environments, "inner", environments)
    assert isinstance(native, NativeVec), "has_bots_in_c"
    native.set_bot_policy(number)


def check_environment_bots(config: Config, spec: EnvSpec) -> int:
    """Check that an environment's C code can play scripted opponents against the policy.

    Args:
        config: Configuration returned by ``environment_bot_config``.
        spec: Spec of the policy.

    Returns:
        Agents per environment, usually one.

    Raises:
        UserError: If there are no scripted opponents, or the spec differs when they play.
    """
    with vec.probe(config) as environments:
        select_bot(environments, bot_ids(config)[0])
        bot_spec = environments.spec
        agents = environments.num_agents // environments.num_environments
    if replace(bot_spec, name="") != replace(spec, name=""):
        raise UserError(
            f"with scripted opponents, {bot_spec.name} has {bot_spec.observation_size} observed"
            f" numbers and actions {bot_spec.action.sizes}; the policy was trained with"
            f" {spec.observation_size} and {spec.action.sizes}",
            "[bot_eval] changes [env] for these games; remove what changes the spec",
        )
    return agents


def _bot_result(name: str, scores: Scores, config: Config) -> tuple[str, OpponentResult]:
    """Return the score's name and the results of an evaluation against one scripted opponent."""
    summary = scores.summary()
    score_name = PERF_SCORE if PERF_SCORE in summary else main_score_name(summary)
    if scores.unfinished or score_name is None:
        raise UserError(
            f"{scores.unfinished} of {scores.environments} environments of {config.env_name} had"
            f" not ended their games after {scores.steps:,} steps",
            "a ladder needs an environment whose games end",
        )
    mean, std = summary[score_name].mean, summary[score_name].std
    half = Z_95 * std / scores.count**0.5
    return score_name, OpponentResult(name, scores.count, mean, mean - half, mean + half)


# ---- after training with self-play ---------------------------------------------------------------


def plays_ladder(config: Config) -> bool:
    """Return True if a self-play run lets its policy play a series of opponents after training."""
    play = config.selfplay
    plays_pool = play.eval_games > 0 and play.eval_pool_size > 0
    return play.enabled and (play.eval_bot_games > 0 or plays_pool)


def check_ladder_config(config: Config, spec: EnvSpec) -> str:
    """Check before training that the configured opponents can be played after training.

    Args:
        config: Configuration of the run.
        spec: Spec of the training environments.

    Returns:
        A note that names unused keys, or an empty string.

    Raises:
        UserError: If the environment has no scripted opponents or can't play them.
    """
    if not (plays_ladder(config) and config.selfplay.eval_bot_games):
        return ""
    if has_bots_in_c(config):
        check_environment_bots(environment_bot_config(config), spec)
    return unused_bot_keys(config)


def play_configured_ladder(
    trainer: Trainer, make: Callable[[Config], Environments], heartbeat: Callable[[], object]
) -> Ladder:
    """Let a trainer's final weights play the configured opponents. Returns the results.

    Args:
        trainer: Self-play trainer after its last epoch.
        make: Creates environments from a configuration. They are closed here.
        heartbeat: Called after each step, to show that the process is alive.

    Raises:
        UserError: If the games can't be played.
    """
    config = trainer.config
    play = config.selfplay
    policy = trainer.policy
    weights = trainer.weights
    statistics = current_statistics(trainer.vec)

    def progress(done: int, total: int) -> None:
        heartbeat()

    if games := play.eval_bot_games:
        spec = trainer.vec.spec
        return play_scripted_opponents(
            config, spec, policy, weights, statistics, make, games, progress=progress
        )
    assert trainer.self_play is not None, "plays_ladder"
    pool = trainer.self_play.league.table.pool[: play.eval_pool_size]
    opponents = [
        policy_player(f"pool {i} (step {entry.step:,})", policy, entry.weights, False, statistics)
        for i, entry in enumerate(pool)
    ]
    player = policy_player("the last weights", policy, weights, False, statistics)
    return play_opponents(player, opponents, config, make, play.eval_games, progress)


def ladder_logs(ladder: Ladder, trainer: Trainer) -> Logs:
    """Return metrics of a ladder: the mean score, and the score against each opponent."""
    scores = {LADDER_PREFIX + _record_key(result.name): result.score for result in ladder.results}
    games = float(sum(result.games for result in ladder.results))
    mean = {trainer.config.metric: ladder.score}
    return {"agent_steps": trainer.global_step, **mean, "env/n": games, **scores}


def _record_key(name: str) -> str:
    """Return an opponent's name as a key of a record, such as ``bot_0.5`` or ``pool_3``."""
    return name.partition(" (")[0].replace(" ", "_").replace(":", "_")
