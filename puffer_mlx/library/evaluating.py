"""Evaluate policies, render them and let them play matches, in separate environments.

The Python API and the commands ``evaluate``, ``match`` and ``export --to hub`` use these functions.
They print nothing.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx

from puffer_mlx import checkpoint, vec
from puffer_mlx.checkpoint import normalization
from puffer_mlx.checkpoint.environment_statistics import (
    check_action_scale,
    read_statistics,
    restore_statistics,
    with_saved_preprocessing,
)
from puffer_mlx.checkpoint.weight_files import load_weights
from puffer_mlx.config import Config
from puffer_mlx.config.finding import find_config
from puffer_mlx.config.trust import allowed_names
from puffer_mlx.errors import UserError
from puffer_mlx.evaluation import ladder
from puffer_mlx.evaluation.episode_videos import draw_function
from puffer_mlx.evaluation.episodes import (
    MAX_STEPS,
    AgentStepper,
    Scores,
    agent_frames,
    environments_needed,
    max_environments,
    score_episodes,
    seeded_eval_config,
)
from puffer_mlx.evaluation.frames import DrawFunction, Frame, add_caption
from puffer_mlx.evaluation.games import (
    GameProgress,
    PairResults,
    agents_per_environment,
    play_pairs,
    watch_game,
    without_normalization,
)
from puffer_mlx.evaluation.players import Player, player_without_policy, policy_player
from puffer_mlx.evaluation.results import PairResult
from puffer_mlx.export.importing import convert_weights, read_any_policy_file
from puffer_mlx.library.policy import Policy, check_compatible, policy_and_seed
from puffer_mlx.library.settings import EnvironmentSource, environment_source, with_environment
from puffer_mlx.ops.cpu_extension import count_cores
from puffer_mlx.policy.policy import configured_policy
from puffer_mlx.spec import EnvSpec
from puffer_mlx.training.trainer import Trains
from puffer_mlx.vec.base import Environments, HasNormalizer

MatchPlayer = Policy | Trains | str
# Returns the user's configuration, based on a policy's settings and configuration files.
Configure = Callable[[Mapping[str, str], Sequence[Path]], Config]
ARGUMENT_HINTS = {  # by argument of another library or function: what to use instead
    "n_eval_episodes": "here it is episodes",
    "allow_code": "Policy.load(path, allow_code=True), or evaluate(policy, env=make)",
}
POLICY_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".onnx")  # of weight files


def evaluate(
    policy: Policy | Trains,
    env: Any = None,
    episodes: int = 10,
    *,
    deterministic: bool = True,
    seed: int | None = None,
    max_steps: int = MAX_STEPS,
    progress: GameProgress | None = None,
    **unexpected: Any,
) -> Scores:
    """Score a policy: play complete episodes in new environments.

    ::

        scores = puffer_mlx.evaluate(policy, "gym:CartPole-v1", episodes=100)
        print(scores, scores.score.mean)

    The same arguments give the same scores, bit for bit on a CPU.

    Args:
        policy: Policy, or trainer whose newest weights play.
        env: Name, class, function or object of the environment. An object is used as the only
            environment. None for the policy's training environment.
        episodes: Minimum number of episodes, divided equally among the environments.
        deterministic: Take the most probable action, as Stable-Baselines3's ``evaluate_policy``.
            False samples, as in training and as ``puffer-mlx evaluate`` without
            ``--deterministic``.
        seed: Seed of environments and actions; None for the run's ``seed``. The environments differ
            from those of training.
        max_steps: Maximum number of steps per agent. Unfinished episodes are counted, not scored.
        progress: Called after each step with the numbers of finished and of expected episodes.
        unexpected: Arguments that don't exist. The error names ours if another library has them.

    Returns:
        Scores of all episodes; ``scores.score`` has their mean and standard deviation.

    Raises:
        UserError: The environment can't be created, or doesn't match the policy.
    """
    for name in unexpected:
        hint = ARGUMENT_HINTS.get(name, "help(evaluate)")
        raise UserError(f"evaluate has no argument {name}", hint)
    if episodes < 1:
        raise UserError(f"episodes is {episodes}", "1 or more")
    policy, seed = policy_and_seed(policy, seed)
    with make_eval_environments(policy, env, episodes, seed) as environments:
        stepper = _stepper(policy, environments, seed, deterministic)
        return score_episodes(stepper, episodes, max_steps=max_steps, progress=progress)


def play(
    policy: Policy | Trains,
    env: Any = None,
    steps: int | None = 300,
    *,
    deterministic: bool = False,
    seed: int | None = None,
    draw: Callable[[Config, Environments], DrawFunction] | None = None,
) -> Iterator[Frame]:
    """Let a policy play, and yield a picture of agent 0 at each step, beginning with the reset.

    ``evaluation.frames.write_gif`` and ``write_mp4`` write the pictures to a file;
    ``display.notebook.show`` shows them in a notebook.

    Args:
        policy: Policy, or trainer whose newest weights play.
        env: Environment as for ``evaluate``. An object needs ``render_mode="rgb_array"``.
        steps: Number of pictures; None for an endless iterator.
        deterministic: Take the most probable action instead of sampling.
        seed: Seed of environments and actions; None for the run's ``seed``.
        draw: Returns a function that draws an observation; None for the environment's renderer.

    Yields:
        Frames with a picture, (h, w, 3) uint8.

    Raises:
        UserError: The environment can't be created or drawn, or doesn't match the policy.
    """
    policy, seed = policy_and_seed(policy, seed)
    with make_eval_environments(policy, env, 1, seed, render=True) as environments:
        stepper = _stepper(policy, environments, seed, deterministic)
        yield from agent_frames(
            stepper, (draw or draw_function)(policy.config, environments), steps
        )


def make_eval_environments(
    policy: Policy, env: Any, episodes: int, seed: int, render: bool = False
) -> Environments:
    """Create environments for evaluating a policy, and check that they match the policy.

    Args:
        policy: Policy that will play.
        env: Environment as for ``evaluate``.
        episodes: Number of episodes, which limits the number of environments.
        seed: Seed of the environments.
        render: True to create environments that can be drawn.
    """
    source = None if env is None else environment_source(env)
    config = _with_eval_environment(policy.config, source)
    count = agents = 1
    if source is None or not source.is_single_object:
        with vec.probe(config) as probe:
            agents = probe.num_agents // probe.num_environments
        count = environments_needed(episodes, max_environments(config, agents), agents)
    return _make_environments(policy, seeded_eval_config(config, count, agents, seed), render)


def _make_environments(policy: Policy, config: Config, render: bool = False) -> Environments:
    """Create and return environments that normalize with a policy's statistics.

    Raises:
        UserError: The environments don't match the policy.
    """
    environments = vec.make(config, count_cores(), render=render)
    try:
        check_compatible(policy, environments.spec, config.env_name)
        if isinstance(environments, HasNormalizer) and normalization.normalises(
            environments.statistics()
        ):
            environments.restore_statistics(dict(policy.memory), frozen=True)
    except BaseException:
        environments.close()
        raise
    return environments


def _stepper(
    policy: Policy, environments: Environments, seed: int, deterministic: bool
) -> AgentStepper:
    """Return an object that steps environments with the actions that a policy chooses."""
    return AgentStepper(policy.architecture, policy.weights, environments, seed, deterministic)


def _with_eval_environment(config: Config, source: EnvironmentSource | None) -> Config:
    """Return a policy's configuration, changed to the environment in which it is evaluated."""
    config = replace(config, notes=[], origins={}, family_reloader=None)
    if source is not None and source.factory is None and source.name != config.env_name:
        if ":" not in source.name:
            find_config(source.name)  # raises for an unknown name, as training does
        return replace(
            config, env_name=source.name, source="", env={}, factory=None, untrusted_code={}
        )
    return with_environment(config, source)


def play_match(
    policy: Policy | Trains,
    against: MatchPlayer,
    env: Any = None,
    games: int = 256,
    *,
    deterministic: bool = False,
    seed: int | None = None,
    max_steps: int = MAX_STEPS,
) -> PairResult:
    """Let two players play games against each other, each with half of an environment's agents.

    ::

        result = puffer_mlx.play_match(policy, "random", games=1000)
        print(result, result.total.score, result.interval)

    The same arguments give the same result, exactly on a CPU.

    Args:
        policy: Policy, or trainer whose newest weights play. Its wins are counted.
        against: Another policy or trainer, ``random``, or the environment's scripted player ``bot``
            or ``bot:SKILL``.
        env: Name, class or function of an environment with an even number of agents; None for the
            policy's training environment.
        games: Minimum number of games, half of them on each side.
        deterministic: Take the most probable actions instead of sampling.
        seed: Seed of environments and actions; None for the run's ``seed``.
        max_steps: Maximum number of steps per environment.

    Returns:
        Wins, draws and losses of ``policy``; ``result.total.score`` is its winning fraction.

    Raises:
        UserError: The environment can't be created, doesn't match a policy, lacks two sides, or has
            games without an end.
    """
    if games < 2:
        raise UserError(f"games is {games}", "2 or more: half of them are played on each side")
    policy, seed = policy_and_seed(policy, seed)
    source = None if env is None else environment_source(env)
    config = without_normalization(_with_eval_environment(policy.config, source))
    agents = agents_per_environment(config)
    spec = vec.look_up_spec(config)
    players = [_match_player(each, config, spec, deterministic) for each in (policy, against)]
    return play_pairs(
        players, [(0, 1)], config, agents, games, make_match_environments, seed, max_steps
    )[0, 1]


def _match_player(
    player: MatchPlayer, config: Config, spec: EnvSpec, deterministic: bool
) -> Player:
    """Return the player that a name (such as ``random``) or a policy stands for in a match.

    Raises:
        UserError: The name is unknown, or the policy doesn't match the environment.
    """
    if isinstance(player, str):
        if scripted := player_without_policy(player, config, spec):
            return scripted
        raise UserError(
            f"{player!r} isn't a player",
            "random, bot:SKILL, or a policy: puffer_mlx.Policy.load(path)",
        )
    policy, _ = policy_and_seed(player, None)
    check_compatible(policy, spec, config.env_name)
    return policy.as_player(policy.config.env_name, deterministic)


def make_match_environments(config: Config) -> Environments:
    """Create environments for a match, without normalization: each policy does its own."""
    return vec.make(config, count_cores())


def play_policy_ladder(
    policy: Policy,
    games: int,
    deterministic: bool = False,
    progress: GameProgress = lambda *_: None,
) -> ladder.Ladder:
    """Score a policy by games against its environment's scripted opponents, from weak to strong.

    Args:
        policy: Policy to score.
        games: Minimum number of games against each opponent.
        deterministic: Take the most probable action instead of sampling.
        progress: Called after each step with the numbers of finished and of expected games.

    Raises:
        UserError: The environment has no scripted opponents, or the games can't be played.
    """
    config = policy.config
    return ladder.play_scripted_opponents(
        config,
        vec.look_up_spec(config),
        policy.architecture,
        policy.weights,
        policy.memory,
        make_match_environments,
        games,
        deterministic,
        progress,
    )


# ---- policies that a user names by a path --------------------------------------------------------


def load_policy(config: Config, path: str, configure: Configure) -> Policy:
    """Load the policy that a user names, and return it with its environment's configuration.

    Args:
        config: Configuration from the user.
        path: Checkpoint folder, run, or weight file.
        configure: Returns the user's configuration based on a checkpoint's files.

    Returns:
        The policy with the configuration of its environment.

    Raises:
        UserError: The weights don't fit the environment or the user's settings.
    """
    if Path(path).suffix in POLICY_SUFFIXES and not Path(path).is_dir():
        source = Path(path).absolute()
        vec.settle_family(config)
        statistics = read_statistics(source)
        config = with_saved_preprocessing(config, source, statistics)
        with vec.probe(config) as probe:
            spec = probe.spec
            restore_statistics(probe, source, frozen=True, statistics=statistics)
            check_action_scale(probe, source)
        policy = configured_policy(spec, config)
        weights = load_weights(path, policy.init(mx.random.key(0)))
        saved = checkpoint.Checkpoint(source, config, spec, policy, weights, 0, statistics)
        return Policy.of_checkpoint(saved)
    saved = checkpoint.load(checkpoint.find_checkpoint(path, config), allowed_names(config))
    folder = saved.folder.absolute()  # an environment may change the working directory
    config = configure({}, [saved.folder / checkpoint.CONFIG])
    config = with_saved_preprocessing(config, saved.folder, saved.statistics)
    for section in ("policy", "torch"):
        trained = getattr(saved.config, section)
        chosen = getattr(config, section)
        if trained != chosen:
            different = [key for key in vars(trained) if vars(trained)[key] != getattr(chosen, key)]
            key = different[0]
            raise UserError(
                f"{section}.{key} {getattr(chosen, key)} contradicts the checkpoint's"
                f" {getattr(trained, key)}",
                "leave it out: the checkpoint determines it",
            )
    with vec.probe(config) as probe:
        if not probe.spec.matches(saved.spec):
            raise UserError(
                f"{saved.folder} is a policy for {saved.spec.described()},"
                f" but {config.env_name} has {probe.spec.described()}",
                f"evaluate it on {saved.config.env_name}",
            )
        restore_statistics(probe, folder, frozen=True, statistics=saved.statistics)
        check_action_scale(probe, folder)
    return Policy.of_checkpoint(saved._replace(config=config, folder=folder))


def find_player(
    word: str, config: Config, spec: EnvSpec, deterministic: bool, configure: Configure
) -> Player:
    """Return the player of a match that a user names.

    Args:
        word: ``random``, ``bot:SKILL``, a checkpoint, a run, or a policy file of any format.
        config: Configuration of the environment.
        spec: Observations and actions of the environment.
        deterministic: True to take the most probable action instead of sampling.
        configure: Returns the user's configuration based on a policy file's settings.

    Raises:
        UserError: The player doesn't exist or is for another environment.
    """
    if scripted := player_without_policy(word, config, spec):
        return scripted
    path = Path(word)
    if path.suffix and path.is_file():  # any format that ``import`` reads
        source = read_any_policy_file(path)
        sizes = source.file.sizes_for(source, spec, configure({}, []))
        file_config = configure(source.settings | sizes, [])
        policy, weights = convert_weights(source, spec, file_config)
        return policy_player(str(path), policy, weights, deterministic, source.statistics)
    saved = checkpoint.load(checkpoint.find_checkpoint(word, config), allowed_names(config))
    if not saved.spec.matches(spec):
        raise UserError(
            f"{saved.folder} is a policy for {saved.spec.described()},"
            f" but {spec.name} has {spec.described()}",
            f"name a policy trained on {spec.name}, or with the same observations and actions",
        )
    name = checkpoint_name(word, saved.folder, config)
    return Policy.of_checkpoint(saved).as_player(name, deterministic)


def checkpoint_name(word: str, folder: Path, config: Config) -> str:
    """Return a checkpoint's name to print: RUN_ID/STEP, or the user's word for other folders."""
    home = (Path(config.base.checkpoint_dir) / config.slug).resolve()
    inside = folder.resolve().is_relative_to(home)
    return str(folder.resolve().relative_to(home)) if inside else word


def with_unique_names(players: Sequence[Player]) -> list[Player]:
    """Return the players of a match with unique names: repeated names get a number."""
    renamed: list[Player] = []
    counts: Counter[str] = Counter()
    for each in players:
        counts[each.name] += 1
        suffix = f" ({counts[each.name]})" if counts[each.name] > 1 else ""
        renamed.append(each._replace(name=each.name + suffix))
    return renamed


# ---- records and pictures ------------------------------------------------------------------------


def scores_record(policy: Policy, name: str, scores: Scores) -> dict[str, Any]:
    """Return the scores of a policy's evaluation as a dict that can be written as JSON.

    Args:
        policy: Policy that played; its configuration has the seed of the evaluation.
        name: Name of the policy.
        scores: Scores of the evaluation.
    """
    return {
        "environment": policy.config.env_name,
        "policy": name,
        "deterministic": scores.deterministic,
        "greedy": scores.deterministic,  # the key's name in earlier versions
        "seed": policy.config.base.seed,
        "steps": scores.steps,
        "unfinished": scores.unfinished,
        "summary": {name: spread._asdict() for name, spread in scores.summary().items()},
        "episodes": scores.episodes,
    }


def games_record(
    players: Sequence[Player], results: PairResults, config: Config, deterministic: bool
) -> dict[str, Any]:
    """Return the results of all games of a match as a dict that can be written as JSON."""
    pairs = []
    for (i, j), result in results.items():
        low, high = result.interval or (None, None)
        pairs.append(
            {
                "first": players[i].name,
                "second": players[j].name,
                "games": result.total.games,
                **result.total._asdict(),
                "score": result.total.score,
                "low": low,
                "high": high,
                "sides": [tally._asdict() for tally in result.sides],
                "steps": result.steps,
                "distinct": result.distinct,
            }
        )
    return {
        "environment": config.env_name,
        "seed": config.base.seed,
        "deterministic": deterministic,
        "greedy": deterministic,  # the key's name in earlier versions
        "pairs": pairs,
    }


def game_frames(
    first: Player, second: Player, config: Config, agents: int, hold: int
) -> Iterator[Frame]:
    """Play one game between two players and yield pictures of it, for a GIF or a video.

    The last picture is yielded several times. A picture shows agent 0's view or the environment's
    drawing, with the names of the players above it and the result at the end.

    Args:
        first: Player of the first half of the agents.
        second: Player of the second half.
        config: Configuration of the environment.
        agents: Agents per environment.
        hold: Number of times that the last picture is yielded.
    """
    names = [first.name, f"against {second.name}"]
    outcomes = [f"{first.name} won", f"{second.name} won", "a draw"]
    seed = config.base.seed
    image: Any = None
    with vec.make(
        seeded_eval_config(config, 1, agents, seed), count_cores(), render=True
    ) as environment:
        draw = draw_function(config, environment)
        game = watch_game(first, second, environment, seed)
        for step in itertools.count():
            try:
                image = draw(next(game))
            except StopIteration as end:
                reward_difference = end.value  # positive if the first player won
                break
            yield Frame(add_caption(image, [*names, ""], outcomes), step, 0, 0.0, 0.0, False)
    outcome = outcomes[2]
    if reward_difference:
        outcome = outcomes[0] if reward_difference > 0 else outcomes[1]
    last = Frame(
        add_caption(image, [*names, outcome], outcomes), step, 0, 0.0, reward_difference, True
    )
    yield from itertools.repeat(last, hold)
