"""Evaluation, rendering and matches of policies in environments separate from training.

The Python API and the commands ``evaluate``, ``match`` and ``export --to hub`` use these functions,
which print nothing.
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
from puffer_mlx.evaluation.episode_videos import drawing
from puffer_mlx.evaluation.episodes import (
    MAX_STEPS,
    AgentStepper,
    Scores,
    environments_for,
    eval_config,
    frames_of,
    most_environments,
    score,
)
from puffer_mlx.evaluation.frames import Draw, Frame, captioned
from puffer_mlx.evaluation.games import (
    Progress,
    Results,
    agents_of,
    play_pairs,
    watch,
    without_statistics,
)
from puffer_mlx.evaluation.players import Player, player_without_policy, policy_player
from puffer_mlx.evaluation.results import PairResult
from puffer_mlx.export.importing import convert_weights, inspect
from puffer_mlx.library.policy import Policy, check_compatible, player
from puffer_mlx.library.settings import EnvironmentSource, source_of, with_environment
from puffer_mlx.ops.cpu_extension import threads
from puffer_mlx.policy.policy import configured_policy
from puffer_mlx.spec import EnvSpec
from puffer_mlx.training.trainer import Trains
from puffer_mlx.vec.base import Environments, HasNormalizer

Opponent = Policy | Trains | str
Configure = Callable[[Mapping[str, str], Sequence[Path]], Config]  # (settings, files) of a policy
ARGUMENTS = {  # of other functions, and what to use instead
    "n_eval_episodes": "here it is episodes",
    "allow_code": "Policy.load(path, allow_code=True), or evaluate(policy, env=make)",
}
FILES = (".safetensors", ".bin", ".pt", ".pth", ".onnx")  # .pt, .pth and .onnx need an import


def evaluate(
    policy: Policy | Trains,
    env: Any = None,
    episodes: int = 10,
    *,
    deterministic: bool = True,
    seed: int | None = None,
    max_steps: int = MAX_STEPS,
    progress: Progress | None = None,
    **unknown: Any,
) -> Scores:
    """Play complete episodes in new environments.

    ::

        scores = puffer_mlx.evaluate(policy, "gym:CartPole-v1", episodes=100)
        print(scores, scores.score.mean)

    The same arguments give the same scores, bit for bit on a CPU.

    Args:
        policy: Policy, or trainer whose newest weights play.
        env: Name, class, function or object; an object is the only environment. None for the
            policy's training environment.
        episodes: Minimum number of episodes, divided equally among the environments.
        deterministic: Take the most probable action, as Stable-Baselines3's ``evaluate_policy``.
            False samples, as in training and as ``puffer-mlx evaluate`` without
            ``--deterministic``.
        seed: Seed of environments and actions; None for the run's ``seed``. The environments differ
            from those of training.
        max_steps: Maximum number of steps per agent. Unfinished episodes are left out and counted.
        progress: Called after each step with the numbers of finished and of expected episodes.
        unknown: Refused, with the right name if it is known.

    Returns:
        All episodes; ``scores.score`` has their mean and standard deviation.

    Raises:
        UserError: If the environment can't be created, or doesn't match the policy.
    """
    for name in unknown:
        raise UserError(f"evaluate has no argument {name}", ARGUMENTS.get(name, "help(evaluate)"))
    if episodes < 1:
        raise UserError(f"episodes is {episodes}", "1 or more")
    acting, seed = player(policy, seed)
    with make_environments(acting, env, episodes, seed) as environments:
        stepper = _stepper(acting, environments, seed, deterministic)
        return score(stepper, episodes, max_steps=max_steps, progress=progress)


def play(
    policy: Policy | Trains,
    env: Any = None,
    steps: int | None = 300,
    *,
    deterministic: bool = False,
    seed: int | None = None,
    draw: Callable[[Config, Environments], Draw] | None = None,
) -> Iterator[Frame]:
    """Yield pictures of agent 0, the first one after the reset.

    ``evaluation.frames.write_gif`` and ``write_mp4`` write them to a file;
    ``display.notebook.show`` shows them in a notebook.

    Args:
        policy: Policy, or trainer whose newest weights play.
        env: Environment as for ``evaluate``. An object needs ``render_mode="rgb_array"``.
        steps: Number of pictures; None for no end.
        deterministic: Take the most probable action instead of sampling.
        seed: Seed of environments and actions; None for the run's ``seed``.
        draw: Returns a function that draws an observation; None for the environment's own.

    Yields:
        Frames with a picture, (h, w, 3) uint8.

    Raises:
        UserError: If the environment can't be created or drawn, or doesn't match the policy.
    """
    acting, seed = player(policy, seed)
    with make_environments(acting, env, 1, seed, render=True) as environments:
        stepper = _stepper(acting, environments, seed, deterministic)
        yield from frames_of(stepper, (draw or drawing)(acting.config, environments), steps)


def make_environments(
    acting: Policy, env: Any, episodes: int, seed: int, render: bool = False
) -> Environments:
    """Create environments for a number of episodes, and check that they match the policy."""
    one = None if env is None else source_of(env)
    config = _with_eval_environment(acting.config, one)
    count = agents = 1
    if one is None or not one.alone:
        with vec.probe(config) as probe:
            agents = probe.num_agents // probe.num_environments
        count = environments_for(episodes, most_environments(config, agents), agents)
    return _make(acting, eval_config(config, count, agents, seed), render)


def _make(acting: Policy, config: Config, render: bool = False) -> Environments:
    """Create environments with a policy's normalization statistics, if they match the policy."""
    environments = vec.make(config, threads(), render=render)
    try:
        check_compatible(acting, environments.spec, config.env_name)
        if isinstance(environments, HasNormalizer) and normalization.normalises(
            environments.statistics()
        ):
            environments.restore_statistics(dict(acting.memory), frozen=True)
    except BaseException:
        environments.close()
        raise
    return environments


def _stepper(
    acting: Policy, environments: Environments, seed: int, deterministic: bool
) -> AgentStepper:
    """Return a stepper of a policy's agents."""
    return AgentStepper(acting.architecture, acting.weights, environments, seed, deterministic)


def _with_eval_environment(config: Config, one: EnvironmentSource | None) -> Config:
    """Return the policy's configuration with the environment to play in."""
    config = replace(config, notes=[], origins={}, again=None)
    if one is not None and one.factory is None and one.name != config.env_name:
        if ":" not in one.name:
            find_config(one.name)  # raises for an unknown name, as training does
        return replace(config, env_name=one.name, source="", env={}, factory=None, named_by={})
    return with_environment(config, one)


def play_match(
    policy: Policy | Trains,
    against: Opponent,
    env: Any = None,
    games: int = 256,
    *,
    deterministic: bool = False,
    seed: int | None = None,
    max_steps: int = MAX_STEPS,
) -> PairResult:
    """Let two players play against each other, each with half of an environment's agents.

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
        UserError: If the environment can't be created, doesn't match a policy, lacks two sides, or
            has games without an end.
    """
    if games < 2:
        raise UserError(f"games is {games}", "2 or more: half of them are played on either side")
    acting, seed = player(policy, seed)
    source = None if env is None else source_of(env)
    config = without_statistics(_with_eval_environment(acting.config, source))
    agents = agents_of(config)
    spec = vec.look_up_spec(config)
    players = [_player(each, config, spec, deterministic) for each in (acting, against)]
    return play_pairs(players, [(0, 1)], config, agents, games, make_plain, seed, max_steps)[0, 1]


def _player(who: Opponent, config: Config, spec: EnvSpec, deterministic: bool) -> Player:
    if isinstance(who, str):
        if without := player_without_policy(who, config, spec):
            return without
        raise UserError(
            f"{who!r} is no player", "random, bot:SKILL, or a policy: puffer_mlx.Policy.load(path)"
        )
    policy, _ = player(who, None)
    check_compatible(policy, spec, config.env_name)
    return policy.as_player(policy.config.env_name, deterministic)


def make_plain(config: Config) -> Environments:
    """Create environments for a match; its policies apply their own statistics."""
    return vec.make(config, threads())


def play_ladder(
    policy: Policy, games: int, deterministic: bool = False, progress: Progress = lambda *_: None
) -> ladder.Ladder:
    """Play the scripted opponents of a policy's environment; see ``evaluation.ladder``.

    Args:
        policy: Policy to score.
        games: Minimum number of games against each opponent.
        deterministic: Take the most probable action instead of sampling.
        progress: Called after each step with the numbers of finished and of expected games.

    Raises:
        UserError: If the environment has no scripted opponents, or the games can't be played.
    """
    config = policy.config
    return ladder.play_ladder(
        config,
        vec.look_up_spec(config),
        policy.architecture,
        policy.weights,
        policy.memory,
        make_plain,
        games,
        deterministic,
        progress,
    )


# ---- policies that a user names by a path --------------------------------------------------------


def load_policy(config: Config, path: str, configure: Configure) -> Policy:
    """Load a policy for an environment whose settings the user may have changed.

    Args:
        config: Configuration from the user.
        path: Checkpoint folder, run, or weights file.
        configure: Returns the user's configuration based on the files of a checkpoint.

    Returns:
        The policy with the configuration of its environment.

    Raises:
        UserError: If the weights don't fit the environment or the user's settings.
    """
    if Path(path).suffix in FILES and not Path(path).is_dir():
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
    saved = checkpoint.load(checkpoint.find(path, config), allowed_names(config))
    folder = saved.folder.absolute()  # an environment may change the working directory
    config = configure({}, [saved.folder / checkpoint.CONFIG])
    config = with_saved_preprocessing(config, saved.folder, saved.statistics)
    for section in ("policy", "torch"):
        trained = getattr(saved.config, section)
        chosen = getattr(config, section)
        if trained != chosen:
            key = next(k for k, v in vars(trained).items() if v != getattr(chosen, k))
            raise UserError(
                f"{section}.{key} {getattr(chosen, key)} contradicts the checkpoint's"
                f" {getattr(trained, key)}",
                "leave it out: the policy is the checkpoint's",
            )
    with vec.probe(config) as probe:
        if not probe.spec.is_like(saved.spec):
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
    """Return the player that the user named.

    Args:
        word: ``random``, ``bot:SKILL``, a checkpoint, a run, or a policy file of any format.
        config: Configuration of the environment.
        spec: Spec of the environment.
        deterministic: True to take the most probable action instead of sampling.
        configure: Returns the user's configuration based on the settings of a policy file.

    Raises:
        UserError: If the player doesn't exist or is for another environment.
    """
    if without := player_without_policy(word, config, spec):
        return without
    path = Path(word)
    if path.suffix and path.is_file():  # any format that ``import`` reads
        file = inspect(path)
        settings = file.settings | file.file.sizes_for(file, spec, configure({}, []))
        policy, weights = convert_weights(file, spec, configure(settings, []))
        return policy_player(str(path), policy, weights, deterministic, file.statistics)
    saved = checkpoint.load(checkpoint.find(word, config), allowed_names(config))
    if not saved.spec.is_like(spec):
        raise UserError(
            f"{saved.folder} is a policy for {saved.spec.described()},"
            f" but {spec.name} has {spec.described()}",
            f"one that was trained on {spec.name}, or on what shows and takes the same",
        )
    name = name_of(word, saved.folder, config)
    return Policy.of_checkpoint(saved).as_player(name, deterministic)


def name_of(word: str, folder: Path, config: Config) -> str:
    """Return a checkpoint's name: RUN_ID/STEP in the checkpoint folder, else the user's word."""
    home = (Path(config.base.checkpoint_dir) / config.slug).resolve()
    inside = folder.resolve().is_relative_to(home)
    return str(folder.resolve().relative_to(home)) if inside else word


def numbered(players: Sequence[Player]) -> list[Player]:
    """Return players with unique names: a repeated name gets a number."""
    named: list[Player] = []
    times: Counter[str] = Counter()
    for each in players:
        times[each.name] += 1
        again = f" ({times[each.name]})" if times[each.name] > 1 else ""
        named.append(each._replace(name=each.name + again))
    return named


# ---- records and pictures ------------------------------------------------------------------------


def scores_record(policy: Policy, name: str, scores: Scores) -> dict[str, Any]:
    """Return an evaluation as a JSON object.

    Args:
        policy: Policy that played, with its run's seed.
        name: Name of the policy.
        scores: Scores of the evaluation.
    """
    return {
        "environment": policy.config.env_name,
        "policy": name,
        "deterministic": scores.deterministic,
        "greedy": scores.deterministic,
        "seed": policy.config.base.seed,
        "steps": scores.steps,
        "unfinished": scores.unfinished,
        "summary": {name: spread._asdict() for name, spread in scores.summary().items()},
        "episodes": scores.episodes,
    }


def games_record(
    players: Sequence[Player], results: Results, config: Config, deterministic: bool
) -> dict[str, Any]:
    """Return the results of games as a JSON object."""
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
        "greedy": deterministic,
        "pairs": pairs,
    }


def game_frames(
    first: Player, second: Player, config: Config, agents: int, hold: int
) -> Iterator[Frame]:
    """Yield the frames of one game, then the last frame ``hold`` times.

    Frames show agent 0's view or the environment's own drawing, with the names of the players above
    it and the result at the end.
    """
    names = [first.name, f"against {second.name}"]
    outcomes = [f"{first.name} won", f"{second.name} won", "a draw"]
    seed = config.base.seed
    image: Any = None
    with vec.make(eval_config(config, 1, agents, seed), threads(), render=True) as environment:
        draw = drawing(config, environment)
        game = watch(first, second, environment, seed)
        for step in itertools.count():
            try:
                image = draw(next(game))
            except StopIteration as end:
                won = end.value
                break
            yield Frame(captioned(image, [*names, ""], outcomes), step, 0, 0.0, 0.0, False)
    outcome = outcomes[0 if won > 0 else 1 if won < 0 else 2]
    last = Frame(captioned(image, [*names, outcome], outcomes), step, 0, 0.0, won, True)
    yield from itertools.repeat(last, hold)
