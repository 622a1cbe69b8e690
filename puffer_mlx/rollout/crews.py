"""Several policies in one launch of a GPU's kernel: which of them acts in which block of agents."""

import mlx.core as mx
import numpy as np

from puffer_mlx.policy.acting_on_gpu import Crews


def crews_of(policies: np.ndarray, agents: int) -> Crews:
    """Blocks of so many agents, each with rows of one policy.

    Args:
        policies: (n,), of each row who acts for it; a policy may have no row.
        agents: of a block.
    """
    blocks = [_blocks(policies, policy, agents) for policy in np.unique(policies)]
    seats = np.concatenate(blocks).astype(np.int32)
    order = seats[:, 1:].reshape(-1)
    back = np.empty(len(policies), np.int32)
    back[order] = np.arange(len(order))
    return Crews(mx.array(seats), mx.array(order), mx.array(back))


def _blocks(policies: np.ndarray, policy: int, agents: int) -> np.ndarray:
    """(blocks, 1 + agents): a policy's number and its rows, the last one as often as it takes."""
    rows = np.flatnonzero(policies == policy)
    filled = np.pad(rows, (0, -len(rows) % agents), mode="edge").reshape(-1, agents)
    return np.insert(filled, 0, policy, axis=1)
