"""The ladder: a policy's results against opponents of known strength, one after another.

A rung is one of the environment's scripted opponents, or an entry of the pool that a run with
self-play has gathered. Scripted opponents are of two kinds. An environment of PufferLib 5.0's form
plays them itself (``puf_set_bot_policy``): the policy is its only agent then, and what counts is
``perf``, or ``score`` where it reports none. Other folders have a ``bot.py``, which takes one side
of a match, at several skills.
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
from puffer_mlx.playing.results import Tally, Z, wilson
from puffer_mlx.policy.policy import Policy
from puffer_mlx.spec import EnvSpec
from puffer_mlx.vec.base import Environments
from puffer_mlx.vec.from_config import source_folder
from puffer_mlx.vec.native.vec import NativeVec

SKILLS = 0.0, 0.25, 0.5, 0.75, 1.0  # of a bot.py
PERF = "perf"

Progress = Callable[[int, int], object]  # of games that are over, and those there will be


class Rung(NamedTuple):
    """Results against one opponent.

    Args:
        name: of the opponent.
        games: how many.
        score: their mean, 1 for a win and 0.5 for a draw; or what the environment reports.
        low: the 95 % interval's lower end.
        high: its upper end.
        tally: wins, draws and losses; None where the environment plays the opponent itself.
    """

    name: str
    games: int
    score: float
    low: float
    high: float
    tally: Tally | None = None


class Ladder(NamedTuple):
    """All rungs, in the order in which they were played.

    Args:
        name: of the environment.
        what: the score is.
        rungs: one at least.
    """

    name: str
    what: str
    rungs: tuple[Rung, ...]

    @property
    def score(self) -> float:
        """The mean of the rungs' scores."""
        return sum(rung.score for rung in self.rungs) / len(self.rungs)

    def __str__(self) -> str:
        counted = self.rungs[0].tally is not None
        names = ("wins", "draws", "losses") if counted else ("games",)
        width = max(20, *(len(rung.name) for rung in self.rungs))
        columns = [*names, self.what]
        games = f", {self.rungs[0].games:,} games on each rung" if counted else ""
        lines = [
            f"ladder of {self.name}{games}",
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
        """All of it as JSON."""
        return {
            "environment": self.name,
            "score": self.score,
            "rungs": [
                {**rung._asdict(), "tally": rung.tally and rung.tally._asdict()}
                for rung in self.rungs
            ],
        }


def plays_bots_itself(config: Config) -> bool:
    """Whether an environment's scripted opponents are its own, and no ``bot.py``.

    Raises:
        UserError: it can't have any.
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
    """The line that names keys which do nothing where a ``bot.py`` plays; empty without any."""
    names = [f"selfplay.{key}" for key in ("eval_bots", "eval_bot_envs", "eval_bot_threads")]
    idle = [name for name in names if typed(config, name)]
    if not idle or plays_bots_itself(config):
        return ""
    return f"unused here: {', '.join(idle)} (of bots that an environment plays itself)"


def bots_of(config: Config) -> list[int]:
    """The numbers in ``selfplay.eval_bots``."""
    return [int(word) for word in config.selfplay.eval_bots.split(",")]


def play_bots(
    config: Config,
    spec: EnvSpec,
    policy: Policy,
    weights: Any,
    make: Callable[[Config], Environments],
    games: int,
    seed: int,
    greedy: bool = False,
    progress: Progress = lambda done, total: None,
) -> Ladder:
    """Play the environment's own scripted opponents: ``selfplay.eval_bots``, as PufferLib 5.0 does.

    Args:
        config: of the policy's run.
        spec: of the environments that it was trained in.
        policy: as it was trained.
        weights: its weights.
        make: environments of a configuration, ready for the policy; they are closed here.
        games: against each, at least.
        seed: of environments and actions.
        greedy: take the most probable action instead of drawing one.
        progress: called after each step.

    Raises:
        UserError: the environment has no such opponents, shows something else when it plays them,
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
                AgentStepper(policy, weights, environments, seed, greedy),
                games,
                max_steps=MAX_STEPS,
                progress=lambda ended, all_, done=done: progress(
                    done * all_ + ended, len(numbers) * all_
                ),
            )
            what, rung = _rung(f"{BOT} {number}", scores, config)
            rungs.append(rung)
    return Ladder(config.env_name, what, tuple(rungs))


def play_skills(
    player: Player,
    config: Config,
    spec: EnvSpec,
    games: Games,
    progress: Progress = lambda done, total: None,
) -> Ladder:
    """Play the environment's ``bot.py`` at several skills.

    Args:
        player: that climbs.
        config: of the environment.
        spec: of the environment.
        games: where, ``in_bot_games``, and how many against each skill.
        progress: called after each step.

    Raises:
        UserError: as ``match.players``, and as a match.
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
    """Play a match against each of some players: see ``play_skills``."""
    pairs = [(0, 1 + other) for other in range(len(others))]
    results = play_pairs([player, *others], pairs, games, progress)
    named = [(other.name, results[pair]) for other, pair in zip(others, pairs, strict=True)]
    rungs = [
        Rung(name, one.total.games, one.total.score, *wilson(one.independent), one.total)
        for name, one in named
    ]
    return Ladder(config.env_name, "score", tuple(rungs))


def in_bot_games(config: Config) -> Config:
    """A configuration of games against scripted opponents: [bot_eval] wins over [env]."""
    return replace(config, env={**config.env, **config.bot_eval})


def against_bots(config: Config) -> Config:
    """A configuration in which a policy is the only agent, and a scripted opponent the other one.

    PufferLib 5.0's: ``env.num_agents`` and ``env.num_bots`` are 1, and [bot_eval] wins over [env].
    """
    env = {**config.env, "num_agents": 1.0, "num_bots": 1.0}
    config, settings = in_bot_games(replace(config, env=env)), config.vec
    if threads := config.selfplay.eval_bot_threads:
        settings = replace(settings, max_threads=threads)
    alone = replace(config.selfplay, enabled=False)
    return replace(config, vec=settings, selfplay=alone, origins={}, notes=[])


def set_bot(environments: Environments, number: int) -> None:
    """Have environments play one of their scripted opponents, once they are reset.

    Raises:
        UserError: they have none.
    """
    native = getattr(environments, "inner", environments)
    assert isinstance(native, NativeVec), "plays_bots_itself"
    native.set_bot_policy(number)


def refuse_unplayable(config: Config, spec: EnvSpec) -> int:
    """Refuse environments that have no such opponents, or show something else when they play them.

    Args:
        config: of ``against_bots``.
        spec: what the policy knows.

    Returns:
        How many agents there are in an environment: one, of most.

    Raises:
        UserError: see above.
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
    """An evaluation as a rung, and the name of the number that counts."""
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
