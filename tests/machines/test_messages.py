"""Small messages between ranks, and how ranks connect: `machines/messages.py`."""

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe

import pytest

from puffer_mlx.machines import messages as module
from puffer_mlx.machines.attendance import Attendance
from puffer_mlx.machines.messages import Door, Lost, Post, knock


@pytest.fixture
def three_posts():
    """Those of three ranks, and the first one's connections."""
    pairs = {rank: Pipe() for rank in (2, 1)}
    ours = {rank: pair[0] for rank, pair in pairs.items()}
    posts = [Post(ours, lambda: None), *(Post({0: pairs[r][1]}, lambda: None) for r in (1, 2))]
    with contextlib.ExitStack() as stack:
        for pair in pairs.values():
            for end in pair:
                stack.callback(end.close)
        yield posts, ours


def at_once(posts, messages):
    with ThreadPoolExecutor(len(posts)) as pool:
        jobs = [pool.submit(post.all_bytes, m) for post, m in zip(posts, messages, strict=True)]
        return [job.result(60) for job in jobs]


def test_all_hear_all_in_the_order_of_the_ranks(three_posts):
    posts, _ = three_posts
    for messages in ([b"0", b"", b"two"], [b"x" * 3_000_000, b"y", b"z" * 2_000_000], [b""] * 3):
        assert at_once(posts, messages) == [messages] * 3


def test_a_rank_that_has_gone(three_posts):
    posts, ours = three_posts
    ours[1].close()
    with pytest.raises(Lost):
        posts[1].all_bytes(b"anybody?")


@pytest.mark.parametrize("rank", range(2))
def test_nobody_waits_for_one_that_is_lost(rank, three_posts, monkeypatch):
    """It says nothing, and its connection stays open: what attendance hears ends the waiting."""
    posts, _ = three_posts
    heard = iter([None, None, "rank 2 hangs"])
    monkeypatch.setattr(posts[rank], "_lost", lambda: next(heard))
    monkeypatch.setattr(module, "LOOKS", 0.01)
    with pytest.raises(Lost, match="rank 2 hangs"):
        posts[rank].all_bytes(b"")


def until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_ranks_that_come_have_connections_for_messages():
    ranks = [Attendance(rank, 20.0) for rank in range(3)]
    with contextlib.ExitStack() as stack:
        for each in ranks:
            stack.callback(each.close)
        where = ranks[0].listen(2, local=True)
        assert ranks[2].connect(where) and ranks[1].connect(where)
        posts = [Post(each.messages, lambda: None) for each in ranks]
        assert at_once(posts, [b"0", b"1", b"2"]) == [[b"0", b"1", b"2"]] * 3
        until(lambda: knock(where, 1, "messages") is None)  # all are there: nobody else gets in
    until(lambda: not any(thread.name == "attendance" for thread in threading.enumerate()))


def test_others_are_not_let_in():
    first = Attendance(0, 20.0)
    with contextlib.closing(first):
        where = first.listen(1, local=True)
        assert knock({**where, "token": "guessed"}, 1, "messages") is None
        assert knock(where, 2, "messages") is None  # there is no such rank
        assert knock(where, 1, "anything") is None
        assert not first.messages
        other = Attendance(1, 20.0)
        with contextlib.closing(other):
            assert other.connect(where) and first.messages


def test_a_port_that_nobody_listens_to():
    door = Door(local=True)
    door.close()
    assert knock(door.where, 1, "messages") is None
    other = Attendance(1, 20.0)
    assert not other.connect(door.where) and not other.messages
