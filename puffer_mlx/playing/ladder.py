"""Play a policy against a ladder: opponents of known strength, one after another.

An opponent level is a scripted opponent, or an entry of a self-play run's pool. There are two kinds
of scripted opponents. A PufferLib 5.0 environment plays its own (``puf_set_bot_policy``): the
policy is then the only agent, scored by ``perf``, or by ``score`` if ``perf`` isn't reported. Other
environments have a ``bot.py``, which plays one side of a match at several skills.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from puffer_mlx import vec
from puffer_mlx.config import Config
from puffer_mlx.config.dialects import SCRIPT, folder_version
from puffer_mlx.config.fit import typed
from puffer_mlx.errors import UserError
from puffer_mlx.playing.episodes import (
    MAX_STEPS,
    AgentStepper,
    Scores,
    arena,
    environments_for,
    headline,
    score,
)
from puffer_mlx.playing.matches import Games, play_pairs
from puffer_mlx.playing.players import BOT, Player, player_without_policy
from puffer_mlx.playing.results import Tally, Z, mode, wilson
from puffer_mlx.policy.policy import Policy
from puffer_mlx.spec import EnvSpec
from puffer_mlx.vec.base import Environments
from puffer_mlx.vec.from_config import source_folder
from puffer_mlx.vec.native.vec import NativeVec

SKILLS = 0.0, 0.25, 0.5, 0.75, 1.0  # skills at which a bot.py plays
PERF = "perf"

Progress = Callable[[int, int], object]  # (finished games, total games)


class Rung(NamedTuple):
    """Results against one opponent level.

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
    """Results against all opponent levels, in the order played.

    Args:
        name: Name of the environment.
        what: Name of the score.
        rungs: One or more results.
        deterministic: True if the policy's actions weren't sampled.
    """

    name: str
    what: str
    rungs: tuple[Rung, ...]
    deterministic: bool = False

    @property
    def score(self) -> float:
        """Mean score over the opponent levels."""
        return sum(rung.score for rung in self.rungs) / len(self.rungs)

    def __str__(self) -> str:
        counted = self.rungs[0].tally is not None
        names = ("wins", "draws", "losses") if counted else ("games",)
        width = max(20, *(len(rung.name) for rung in self.rungs))
        columns = [*names, self.what]
        games = f", {self.rungs[0].games:,} games on each rung" if counted else ""
        lines = [
            f"ladder of {self.name}{games}; {mode(self.deterministic)}",
            f"  {'':{width}}" + "".join(f"{name:>8}" for name in columns) + "  95 %",
        ]
        for rung in self.rungs:
            numbers = rung.tally or (rung.games,)
            lines.append(
                f"  {rung.name:{width}}"
                + "".join(f"{number:8,}" for number in numbers)
                + f"{rung.score:8.3f}  {rung.low:.3f} to {rung.high:.3f}"
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
                {**rung._asdict(), "tally": rung.tally and rung.tally._asdict()}
                for rung in self.rungs
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


def idle_note(config: Config) -> str:
    """Return a note that names keys unused with a ``bot.py``, or an empty string."""
    names = [f"selfplay.{key}" for key in ("eval_bots", "eval_bot_envs", "eval_bot_threads")]
    idle = [name for name in names if typed(config, name)]
    if not idle or plays_bots_itself(config):
        return ""
    return f"unused here: {', '.join(idle)} (of bots that an environment plays itself)"


def bots_of(config: Config) -> list[int]:
    """Return the opponent numbers in ``selfplay.eval_bots``."""
    return [int(word) for word in config.selfplay.eval_bots.split(",")]


def play_bots(
    config: Config,
    spec: EnvSpec,
    policy: Policy,
    weights: Any,
    make: Callable[[Config], Environments],
    games: int,
    seed: int,
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
        seed: Seed of environments and actions.
        deterministic: Take the most probable action instead of sampling.
        progress: Called after each step.

    Raises:
        UserError: If the environment has no such opponents, has another spec when it plays them,
            or its games don't end.
    """
    settings, numbers, rungs = against_bots(config), bots_of(config), []
    agents = refuse_unplayable(settings, spec)
    count = environments_for(games, max(1, config.selfplay.eval_bot_envs // agents), agents)
    with make(arena(settings, count, agents, seed)) as environments:
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
            what, rung = _rung(f"{BOT} {number}", scores, config)
            rungs.append(rung)
    return Ladder(config.env_name, what, tuple(rungs), deterministic)


def play_skills(
    player: Player,
    config: Config,
    spec: EnvSpec,
    games: Games,
    progress: Progress = lambda done, total: None,
) -> Ladder:
    """Play the environment's ``bot.py`` at several skills.

    Args:
        player: Player to score.
        config: Configuration of the environment.
        spec: Spec of the environment.
        games: Environments (``in_bot_games``) and number of games per skill.
        progress: Called after each step.

    Raises:
        UserError: If there is no scripted player or the match can't be played.
    """
    bots = [player_without_policy(f"{BOT}:{skill:g}", config, spec) for skill in SKILLS]
    return play_each(player, [bot for bot in bots if bot], config, games, progress)


def play_each(
    player: Player,
    others: Sequence[Player],
    config: Config,
    games: Games,
    progress: Progress = lambda done, total: None,
) -> Ladder:
    """Play a match against each of several players; see ``play_skills``."""
    pairs = [(0, 1 + other) for other in range(len(others))]
    results = play_pairs([player, *others], pairs, games, progress)
    named = [(other.name, results[pair]) for other, pair in zip(others, pairs, strict=True)]
    rungs = [
        Rung(name, one.total.games, one.total.score, *wilson(one.independent), one.total)
        for name, one in named
    ]
    return Ladder(config.env_name, "score", tuple(rungs), player.deterministic)


def in_bot_games(config: Config) -> Config:
    """Return the configuration of games against scripted opponents: [bot_eval] overrides [env]."""
    return replace(config, env={**config.env, **config.bot_eval})


def against_bots(config: Config) -> Config:
    """Return a configuration with the policy as the only agent, against a scripted opponent.

    As in PufferLib 5.0, ``env.num_agents`` and ``env.num_bots`` are 1, and [bot_eval] overrides
    [env].
    """
    env = {**config.env, "num_agents": 1.0, "num_bots": 1.0}
    config, settings = in_bot_games(replace(config, env=env)), config.vec
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
        shown, agents = environments.spec, environments.num_agents // environments.num_environments
    if replace(shown, name="") != replace(spec, name=""):
        raise UserError(
            f"{shown.name} shows {shown.observation_size} numbers and takes {shown.action.sizes}"
            f" when it plays its scripted opponents, and the policy knows {spec.observation_size}"
            f" and {spec.action.sizes}",
            "[bot_eval] says what of [env] is different then",
        )
    return agents


def _rung(name: str, scores: Scores, config: Config) -> tuple[str, Rung]:
    """Return the name of the score and an evaluation's results as a Rung."""
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
    return what, Rung(name, scores.count, mean, mean - half, mean + half)
