"""Play a policy against a ladder: opponents of known strength, one after another.

An opponent level is a scripted opponent, or an entry of a self-play run's pool. There are two kinds
of scripted opponents. A PufferLib 5.0 environment plays its own (``puf_set_bot_policy``): the
policy is then the only agent, scored by ``perf``, or by ``score`` if ``perf`` isn't reported. Other
environments have a ``bot.py``, which plays one side of a match at several skills.

Scores from self-play mean little, because both sides are learners. After training, a self-play run
therefore plays a ladder in place of the evaluation, as in PufferLib 5.0: scripted opponents
(``selfplay.eval_bot_games``) or, without those, the oldest entries of the pool
(``selfplay.eval_games``). The mean score is the score of the run.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from puffer_mlx import vec
from puffer_mlx.checkpoint.environment_statistics import current_statistics
from puffer_mlx.checkpoint.normalization import Statistics
from puffer_mlx.config import Config
from puffer_mlx.config.dialects import SCRIPT, folder_version
from puffer_mlx.config.fit import typed
from puffer_mlx.errors import UserError
from puffer_mlx.evaluation.episodes import (
    MAX_STEPS,
    AgentStepper,
    Scores,
    environments_for,
    eval_config,
    headline,
    score,
)
from puffer_mlx.evaluation.games import Progress, agents_of, play_pairs, without_statistics
from puffer_mlx.evaluation.players import BOT, Player, player_without_policy, policy_player
from puffer_mlx.evaluation.results import Tally, Z, mode, wilson
from puffer_mlx.policy.policy import Policy
from puffer_mlx.spec import EnvSpec
from puffer_mlx.training.epoch_logs import Logs
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.vec.base import Environments, HasNormalizer
from puffer_mlx.vec.from_config import source_folder
from puffer_mlx.vec.native.vec import NativeVec

SKILLS = 0.0, 0.25, 0.5, 0.75, 1.0  # skills at which a bot.py plays
PERF = "perf"

RUNGS = "env/ladder/"  # key prefix of opponents in a record


class OpponentResult(NamedTuple):
    """Results against one opponent.

    Args:
        name: Name of the opponent.
        games: Number of games.
        score: Mean over games: 1 for a win and 0.5 for a draw, or the environment's own score.
        low: Lower end of the 95 % interval.
        high: Upper end of the 95 % interval.
        tally: Wins, draws and losses, or None with opponents that the environment plays.
    """

    name: str
    games: int
    score: float
    low: float
    high: float
    tally: Tally | None = None


class Ladder(NamedTuple):
    """Results against all opponents, in the order played.

    Args:
        name: Name of the environment.
        what: Name of the score.
        results: One or more results.
        deterministic: True if the policy's actions weren't sampled.
    """

    name: str
    what: str
    results: tuple[OpponentResult, ...]
    deterministic: bool = False

    @property
    def score(self) -> float:
        """Mean score over the opponents."""
        return sum(one.score for one in self.results) / len(self.results)

    def __str__(self) -> str:
        counted = self.results[0].tally is not None
        names = ("wins", "draws", "losses") if counted else ("games",)
        width = max(20, *(len(one.name) for one in self.results))
        columns = [*names, self.what]
        games = f", {self.results[0].games:,} games on each rung" if counted else ""
        lines = [
            f"ladder of {self.name}{games}; {mode(self.deterministic)}",
            f"  {'':{width}}" + "".join(f"{name:>8}" for name in columns) + "  95 %",
        ]
        for one in self.results:
            numbers = one.tally or (one.games,)
            lines.append(
                f"  {one.name:{width}}"
                + "".join(f"{number:8,}" for number in numbers)
                + f"{one.score:8.3f}  {one.low:.3f} to {one.high:.3f}"
            )
        empty = " " * 8 * len(names)
        lines.append(f"  {'mean':{width}}{empty}{self.score:8.3f}")
        return "\n".join(lines)

    def record(self) -> dict[str, Any]:
        """Return the results in JSON types."""
        return {
            "environment": self.name,
            "deterministic": self.deterministic,
            "greedy": self.deterministic,
            "score": self.score,
            "rungs": [
                {**one._asdict(), "tally": one.tally and one.tally._asdict()}
                for one in self.results
            ],
        }


def plays_bots_itself(config: Config) -> bool:
    """Return True if the environment plays its scripted opponents, False if ``bot.py`` does.

    Raises:
        UserError: If the environment has no scripted opponents.
    """
    if not config.python:
        folder = source_folder(config)
        if (folder / SCRIPT).is_file():
            return False
        if folder_version(folder) == "5.0":
            return True
    raise UserError(
        f"{config.env_name} has no scripted opponents",
        "a bot.py in its folder, or puf_set_bot_policy in one of PufferLib 5.0's form",
    )


def unused_note(config: Config) -> str:
    """Return a note that names keys unused with a ``bot.py``, or an empty string."""
    names = [f"selfplay.{key}" for key in ("eval_bots", "eval_bot_envs", "eval_bot_threads")]
    unused = [name for name in names if typed(config, name)]
    if not unused or plays_bots_itself(config):
        return ""
    return f"unused here: {', '.join(unused)} (of bots that an environment plays itself)"


def bots_of(config: Config) -> list[int]:
    """Return the opponent numbers in ``selfplay.eval_bots``."""
    return [int(word) for word in config.selfplay.eval_bots.split(",")]


def play_ladder(
    config: Config,
    spec: EnvSpec,
    policy: Policy,
    weights: Any,
    memory: Statistics,
    make: Callable[[Config], Environments],
    games: int,
    deterministic: bool = False,
    progress: Progress = lambda done, total: None,
) -> Ladder:
    """Play the environment's scripted opponents, of either kind.

    Args:
        config: Configuration of the policy's run.
        spec: Spec of the training environments.
        policy: Trained policy.
        weights: Weights of the policy.
        memory: Normalization statistics of its observations by name.
        make: Creates environments from a configuration. They are closed here.
        games: Minimum number of games against each opponent.
        deterministic: Take the most probable action instead of sampling.
        progress: Called after each step with the numbers of finished and of expected games.

    Raises:
        UserError: If the environment has no scripted opponents, or the games can't be played.
    """
    if plays_bots_itself(config):

        def make_normalized(config: Config) -> Environments:
            environments = make(config)
            if isinstance(environments, HasNormalizer):
                environments.restore_statistics(dict(memory), frozen=True)
            return environments

        return play_bots(
            config, spec, policy, weights, make_normalized, games, deterministic, progress
        )
    player = policy_player("the policy", policy, weights, deterministic, memory)
    plain = in_bot_games(config)
    bots = [player_without_policy(f"{BOT}:{skill:g}", plain, spec) for skill in SKILLS]
    return play_each(player, [bot for bot in bots if bot], plain, make, games, progress)


def play_bots(
    config: Config,
    spec: EnvSpec,
    policy: Policy,
    weights: Any,
    make: Callable[[Config], Environments],
    games: int,
    deterministic: bool = False,
    progress: Progress = lambda done, total: None,
) -> Ladder:
    """Play the environment's scripted opponents ``selfplay.eval_bots``, as PufferLib 5.0 does.

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
        UserError: If the environment has no such opponents, has another spec when it plays them,
            or its games don't end.
    """
    seed = config.base.seed
    settings = against_bots(config)
    numbers = bots_of(config)
    results = []
    agents = refuse_unplayable(settings, spec)
    count = environments_for(games, max(1, config.selfplay.eval_bot_envs // agents), agents)
    with make(eval_config(settings, count, agents, seed)) as environments:
        what = PERF
        for done, number in enumerate(numbers):
            set_bot(environments, number)
            scores = score(
                AgentStepper(policy, weights, environments, seed, deterministic),
                games,
                max_steps=MAX_STEPS,
                progress=lambda ended, all_, done=done: progress(
                    done * all_ + ended, len(numbers) * all_
                ),
            )
            what, result = _result(f"{BOT} {number}", scores, config)
            results.append(result)
    return Ladder(config.env_name, what, tuple(results), deterministic)


def play_each(
    player: Player,
    others: Sequence[Player],
    config: Config,
    make: Callable[[Config], Environments],
    games: int,
    progress: Progress = lambda done, total: None,
) -> Ladder:
    """Play a match against each of several players.

    Args:
        player: Player to score.
        others: Opponents, played one after another.
        config: Configuration of the environments.
        make: Creates environments from a configuration. They are closed here.
        games: Minimum number of games against each opponent.
        progress: Called after each step with the numbers of finished and of expected games.

    Raises:
        UserError: If the games can't be played.
    """
    plain = without_statistics(config)
    pairs = [(0, 1 + other) for other in range(len(others))]
    seed = config.base.seed
    found = play_pairs(
        [player, *others], pairs, plain, agents_of(plain), games, make, seed, progress=progress
    )
    results = []
    for other, pair in zip(others, pairs, strict=True):
        total = found[pair].total
        interval = wilson(found[pair].independent)
        results.append(OpponentResult(other.name, total.games, total.score, *interval, total))
    return Ladder(config.env_name, "score", tuple(results), player.deterministic)


def in_bot_games(config: Config) -> Config:
    """Return the configuration of games against scripted opponents: [bot_eval] overrides [env]."""
    return replace(config, env={**config.env, **config.bot_eval})


def against_bots(config: Config) -> Config:
    """Return a configuration with the policy as the only agent, against a scripted opponent.

    As in PufferLib 5.0, ``env.num_agents`` and ``env.num_bots`` are 1, and [bot_eval] overrides
    [env].
    """
    env = {**config.env, "num_agents": 1.0, "num_bots": 1.0}
    settings = config.vec
    config = in_bot_games(replace(config, env=env))
    if threads := config.selfplay.eval_bot_threads:
        settings = replace(settings, max_threads=threads)
    alone = replace(config.selfplay, enabled=False)
    return replace(config, vec=settings, selfplay=alone, origins={}, notes=[])


def set_bot(environments: Environments, number: int) -> None:
    """Select a scripted opponent in environments, from their next reset.

    Raises:
        UserError: If the environments have no scripted opponents.
    """
    native = getattr(environments, "inner", environments)
    assert isinstance(native, NativeVec), "plays_bots_itself"
    native.set_bot_policy(number)


def refuse_unplayable(config: Config, spec: EnvSpec) -> int:
    """Check that an environment's scripted opponents can play against the policy.

    Args:
        config: Configuration returned by ``against_bots``.
        spec: Spec of the policy.

    Returns:
        Agents per environment, usually one.

    Raises:
        UserError: If there are no scripted opponents, or the spec differs when they play.
    """
    with vec.probe(config) as environments:
        set_bot(environments, bots_of(config)[0])
        shown = environments.spec
        agents = environments.num_agents // environments.num_environments
    if replace(shown, name="") != replace(spec, name=""):
        raise UserError(
            f"{shown.name} shows {shown.observation_size} numbers and takes {shown.action.sizes}"
            f" when it plays its scripted opponents, and the policy knows {spec.observation_size}"
            f" and {spec.action.sizes}",
            "[bot_eval] says what of [env] is different then",
        )
    return agents


def _result(name: str, scores: Scores, config: Config) -> tuple[str, OpponentResult]:
    """Return the name of the score and an evaluation's results."""
    summary = scores.summary()
    what = PERF if PERF in summary else headline(summary)
    if scores.unfinished or what is None:
        raise UserError(
            f"{scores.unfinished} of {scores.environments} environments of {config.env_name} had"
            f" not ended their games after {scores.steps:,} steps",
            "a ladder needs an environment whose games end",
        )
    mean, std = summary[what].mean, summary[what].std
    half = Z * std / scores.count**0.5
    return what, OpponentResult(name, scores.count, mean, mean - half, mean + half)


# ---- after training with self-play ---------------------------------------------------------------


def is_asked(config: Config) -> bool:
    """Return True if the last weights play opponents after training."""
    play = config.selfplay
    pool = play.eval_games > 0 and play.eval_pool_size > 0
    return play.enabled and (play.eval_bot_games > 0 or pool)


def prepare(config: Config, spec: EnvSpec) -> str:
    """Check, before training, that the configured games can be played.

    Args:
        config: Configuration of the run.
        spec: Spec of the training environments.

    Returns:
        A note that names unused keys, or an empty string.

    Raises:
        UserError: If the environment has no scripted opponents or can't play them.
    """
    if not (is_asked(config) and config.selfplay.eval_bot_games):
        return ""
    if plays_bots_itself(config):
        refuse_unplayable(against_bots(config), spec)
    return unused_note(config)


def play_configured(
    trainer: Trainer, make: Callable[[Config], Environments], heartbeat: Callable[[], object]
) -> Ladder:
    """Play a trainer's weights against the opponents that its configuration asks for.

    Args:
        trainer: Self-play trainer after its last epoch.
        make: Creates environments from a configuration. They are closed here.
        heartbeat: Called after each step.

    Raises:
        UserError: If the games can't be played.
    """
    config = trainer.config
    play = config.selfplay
    policy = trainer.policy
    weights = trainer.weights
    memory = current_statistics(trainer.vec)

    def progress(done: int, total: int) -> None:
        heartbeat()

    if games := play.eval_bot_games:
        spec = trainer.vec.spec
        return play_ladder(config, spec, policy, weights, memory, make, games, progress=progress)
    assert trainer.self_play is not None, "is_asked"
    pool = trainer.self_play.league.table.pool[: play.eval_pool_size]
    others = [
        policy_player(f"pool {i} (step {entry.step:,})", policy, entry.weights, False, memory)
        for i, entry in enumerate(pool)
    ]
    player = policy_player("the last weights", policy, weights, False, memory)
    return play_each(player, others, config, make, play.eval_games, progress)


def logs_of(ladder: Ladder, trainer: Trainer) -> Logs:
    """Return the final record of a run: the mean score and the score of each opponent."""
    scores = {RUNGS + _key_of(one.name): one.score for one in ladder.results}
    games = float(sum(one.games for one in ladder.results))
    mean = {trainer.config.metric: ladder.score}
    return {"agent_steps": trainer.global_step, **mean, "env/n": games, **scores}


def _key_of(name: str) -> str:
    """Return an opponent's name as part of a key, such as ``bot_0.5`` or ``pool_3``."""
    return name.partition(" (")[0].replace(" ", "_").replace(":", "_")
