"""How good a policy is, and what it does: scores of whole episodes, and frames.

Takes a policy and its weights, never a trainer; ``rollout/whole_episodes.py`` says how it plays.
"""

from collections.abc import Iterator
from itertools import count
from typing import Any

from puffer_mlx.display.frames import Draw, Frame
from puffer_mlx.policy.policy import Policy
from puffer_mlx.rollout.whole_episodes import Episode, Player, Scores, Spread, arena, score
from puffer_mlx.vec.base import VecEnv

__all__ = ["Episode", "Scores", "Spread", "arena", "play", "score"]


def play(
    policy: Policy,
    weights: Any,
    vec: VecEnv,
    draw: Draw,
    *,
    seed: int = 0,
    greedy: bool = False,
    steps: int | None = None,
) -> Iterator[Frame]:
    """Frames of agent 0, the first one after the reset.

    Args:
        policy: as it was trained.
        weights: its weights.
        vec: environments; they are reset. One is enough.
        draw: an observation's picture (``frames.find_draw``).
        seed: of the actions.
        greedy: take the most probable action instead of drawing one.
        steps: how many frames; without end if None.
    """
    player = Player(policy, weights, vec, seed, greedy)
    episode, total = 0, 0.0
    for step in count() if steps is None else range(steps):
        if step:
            player.step()
        reward, terminal = float(player.rows.rewards[0]), bool(player.rows.terminals[0])
        total += reward
        episode += terminal
        image = draw(player.rows.observations[0].copy())
        yield Frame(image, step, episode, reward, total, terminal)
        if terminal:
            total = 0.0
