"""One policy that plays all four seats of soccer learns to beat two who choose at random."""

from puffer_mlx import config
from puffer_mlx.match.games import play_pair
from puffer_mlx.match.players import policy_player, random_player
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.vec.native.make import find_environment
from puffer_mlx.vec.native.vec import NativeVec

SHORT = "--vec.total-agents 512 --vec.num-buffers 2 --policy.hidden-size 32 --train.horizon 32"
STEPS = "--train.minibatch-size 2048 --train.total-timesteps 320_000 --profile 0"


def test_a_team_learns():
    """Untrained it scores about 0.5; four games of each of 32 environments, on both sides."""
    folder, seen = find_environment("soccer"), []
    settings = config.load("soccer", [*SHORT.split(), *STEPS.split()])
    with (
        NativeVec(folder, env={}, total_agents=512, num_buffers=2, num_threads=2) as vec,
        NativeVec(folder, env={}, total_agents=4 * 32, seed=10_000) as boards,
    ):
        trainer = Trainer(settings, vec)
        others = random_player(vec.spec.action)
        for training in False, True:
            if training:
                list(trainer)
            ours = policy_player("learner", trainer.policy, trainer.weights, greedy=False)
            seen.append(play_pair(ours, others, boards, 4, seed=1).total.score)
    assert abs(seen[0] - 0.5) < 0.1 and seen[1] > 0.7
