"""Messages between ranks, how ranks connect, and merged statistics."""

import contextlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe

import numpy as np
import pytest
from running import wait_until

from puffer_mlx.distributed import messages
from puffer_mlx.distributed.exchange import merged_means, merged_moments
from puffer_mlx.distributed.heartbeat import BEATS, MESSAGES, Heartbeat
from puffer_mlx.distributed.messages import (
    GREETING,
    HostAllGather,
    LostRank,
    RendezvousServer,
    connect,
)


@pytest.fixture
def three_posts():
    """Return the messengers of three ranks, and the connections of the first one."""
    pairs = {rank: Pipe() for rank in (2, 1)}
    ours = {rank: pair[0] for rank, pair in pairs.items()}
    posts = [
        HostAllGather(peers, 3, lambda: None)
        for peers in (ours, {0: pairs[1][1]}, {0: pairs[2][1]})
    ]
    with contextlib.ExitStack() as stack:
        for pair in pairs.values():
            for end in pair:
                stack.callback(end.close)
        yield posts, ours


def at_once(posts, parts):
    with ThreadPoolExecutor(len(posts)) as pool:
        jobs = [pool.submit(post.gather, part) for post, part in zip(posts, parts, strict=True)]
        return [job.result(60) for job in jobs]


def test_all_ranks_get_all_messages_in_the_order_of_ranks(three_posts):
    posts, ours = three_posts
    for parts in ([b"0", b"", b"two"], [b"x" * 3_000_000, b"y", b"z" * 2_000_000], [b""] * 3):
        assert at_once(posts, parts) == [parts] * 3
    ours[1].close()
    with pytest.raises(LostRank):
        posts[1].gather(b"anybody?")


def test_a_lost_heartbeat_ends_the_wait_for_a_silent_rank(three_posts, monkeypatch):
    (first, *_), _ = three_posts
    heard = iter([None, None, "rank 2 hangs"])
    monkeypatch.setattr(first, "_lost", lambda: next(heard))
    monkeypatch.setattr(messages, "POLL_INTERVAL", 0.01)
    with pytest.raises(LostRank, match="rank 2 hangs"):
        first.gather(b"")


def test_only_ranks_with_the_token_are_connected():
    """Strangers delay no rank and leave no thread."""
    ranks = [Heartbeat(rank, 20.0) for rank in range(3)]
    with contextlib.ExitStack() as stack:
        for each in ranks:
            stack.callback(each.close)
        address = ranks[0].listen(2, local=True)
        assert connect({**address, "token": "00" * 16}, 1, MESSAGES) is None
        assert connect(address, 3, MESSAGES) is None  # there is no such rank
        assert connect(address, 1, 7) is None
        assert not ranks[0].messages
        for part in b"", GREETING.pack(bytes(16), 1, 0)[:9]:
            stranger = socket.create_connection((address["hosts"][0], address["port"]))
            stack.callback(stranger.close)
            stranger.sendall(part)
        assert ranks[2].connect(address) and ranks[1].connect(address)
        posts = [HostAllGather(each.messages, 3, lambda: None) for each in ranks]
        assert at_once(posts, [b"0", b"1", b"2"]) == [[b"0", b"1", b"2"]] * 3
        wait_until(lambda: connect(address, 1, MESSAGES) is None)  # all have joined
    wait_until(lambda: not any(thread.name == "heartbeat" for thread in threading.enumerate()))


@pytest.mark.parametrize("text", [b"\xff", b'{"progress": 1}'])
def test_a_damaged_heartbeat_loses_its_rank_at_once(text, monkeypatch):
    monkeypatch.setattr(Heartbeat, "_force_end", lambda _: None)
    first = Heartbeat(0, 20.0)
    with contextlib.closing(first):
        peer = connect(first.listen(1, local=True), 1, BEATS)
        assert peer
        with peer:
            peer.send_bytes(text)
            assert first.wait_lost(5) == "rank 1 has sent a heartbeat that can't be read"


def test_half_a_greeting_has_a_timeout(monkeypatch):
    monkeypatch.setattr(messages, "GREETING_TIMEOUT", 0.2)
    server = RendezvousServer(local=True)
    address = server.address["hosts"][0], server.address["port"]
    with contextlib.closing(server), socket.create_connection(address) as stranger:
        stranger.sendall(b"half")
        assert server.verify_greeting(server.accept()) is None
    assert connect(server.address, 1, MESSAGES) is None


def moments(*parts: np.ndarray) -> dict[str, np.ndarray]:
    seen = np.concatenate(parts)
    count = np.array(float(len(seen)))
    return {"x.count": count, "x.mean": seen.mean(axis=0), "x.variance": seen.var(axis=0)}


def test_merged_statistics_are_those_of_all_samples():
    draw = np.random.default_rng(0)
    first, one, other = (draw.normal(at, 1 + at, (at + 3, 2)) for at in range(3))
    ranks = [moments(first), moments(first, one), moments(first, other)]  # one saw nothing new
    merged = merged_moments(moments(first), ranks)
    for name, array in moments(first, one, other).items():
        np.testing.assert_allclose(merged[name], array, err_msg=name)
    same = moments(first)
    for name, array in merged_moments(same, [same, same]).items():
        assert np.array_equal(array, same[name])
    logs = [{"score": 1.0, "n": 1.0}, {"score": 4.0, "own": 8.0, "n": 3.0}, {"n": 0.0}]
    assert merged_means(logs) == {"score": pytest.approx(13 / 4), "own": 6.0, "n": 4.0}
    assert merged_means([{"n": 0.0}, {}]) == {}
