"""Saved states of native environments, and reports of single episodes."""

import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kept import edit, kept_copy
from native_envs import GROUP, SHIPPED, Stepper, make, parameters

from puffer_mlx.errors import UserError
from puffer_mlx.vec.native.compiling import compile_environment
from puffer_mlx.vec.native.make import find_environment
from puffer_mlx.vec.native.saved_state import pack_state, unpack_state
from puffer_mlx.vec.native.sources import (
    RESUMABLE_DIGESTS,
    code_of,
    environment_files,
    sources_digest,
)
from puffer_mlx.vec.native.vec import NativeVec
from puffer_mlx.vec.rows import random_actions

AGENTS = 2 * GROUP
OTHER_CODE = "squared.h", "3 * env->size", "4 * env->size"


def saved(vec: NativeVec) -> np.ndarray:
    state = vec.state()
    assert state is not None
    return state


def play(stepper: Stepper, actions: list[np.ndarray]) -> list[np.ndarray]:
    """Step environments with given actions; return copies of all rows of each step."""
    every = (stepper.step(mine) for mine in actions)
    return [array.copy() for rows in every for array in rows if array is not None]


def history(vec: NativeVec, steps: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [random_actions(vec, vec.num_agents, rng) for _ in range(steps)]


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the environment squared's folder, with an empty compiler cache."""
    monkeypatch.setenv("PUFFER_MLX_CACHE", str(tmp_path / "cache"))
    return Path(shutil.copytree(find_environment("squared"), tmp_path / "squared"))


def changed(file: str, old: str, new: str) -> Path:
    """Return a read-only copy of the environment squared with a text replaced in a file."""
    return kept_copy(find_environment("squared"), lambda root: edit(root / file, old, new))


# ---- Going on ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["relay", "craftax_classic", "soccer"])
def test_restored_environments_continue_bit_for_bit(name: str):
    """Restore in other threads and groups; relay saves memory that grows with its episodes."""

    def continued(vec: NativeVec, stepper: Stepper) -> tuple[list[np.ndarray], dict]:
        seen, log = [*play(stepper, actions), saved(vec)], vec.log()
        vec.reset(stepper.rows)
        return seen + play(stepper, actions[:30]), log

    with make(name, total_agents=AGENTS, num_buffers=2, num_threads=2) as vec:
        stepper, actions = Stepper(vec), history(vec, 250, seed=2)
        play(stepper, history(vec, 37, seed=1))
        state = saved(vec)
        expected, log = continued(vec, stepper)
        assert log["n"] > 0  # with episodes from before the state
    with make(name, total_agents=AGENTS, num_threads=3, seed=9) as vec:
        stepper = Stepper(vec, reset=name == "relay")  # or before the first reset
        vec.restore(state)
        np.testing.assert_array_equal(saved(vec), state)
        found, its_log = continued(vec, stepper)
        assert all(map(np.array_equal, found, expected)) and its_log == log


def test_saving_waits_for_steps_in_progress():
    with make("relay", total_agents=6, env={"length": 7, "sleep_ms": 100}) as vec:
        stepper, first = Stepper(vec), saved(vec)
        vec.send(0, np.zeros((6, 2), np.float32), stepper.rows)
        assert len(saved(vec)) > len(first)  # it has the step's receipts
        vec.send(0, np.zeros((6, 2), np.float32), stepper.rows)
        vec.restore(first)
        np.testing.assert_array_equal(saved(vec), first)


# ---- What is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "keywords", "message"),
    [
        ("memory", {}, "saved with environment squared, expected memory"),
        ("squared", {"total_agents": 8}, r"saved with vec\.total_agents 4, expected 8"),
        ("squared", {"vec": {"bonus": 1}}, r"saved with vec\.bonus absent, expected 1\.0"),
    ],
)
def test_state_of_another_environment_is_refused(name: str, keywords: dict, message: str):
    with make("squared", total_agents=4) as vec:
        state = saved(vec)
    with make(name, **{"total_agents": 4, **keywords}) as vec:
        before = saved(vec)
        with pytest.raises(UserError, match=message + r"\n.*hint: .*--load-model-path"):
            vec.restore(state)
        np.testing.assert_array_equal(saved(vec), before)


@pytest.mark.processes
def test_state_is_refused_if_code_changed_but_not_for_comments():
    env = parameters("squared")
    with make("squared", total_agents=4) as vec:
        state = saved(vec)
    folder = changed("squared.h", "// ", "// Indeed: ")
    with NativeVec(folder, total_agents=4, env={**env, "unused": 3}) as vec:
        vec.restore(state)
    with (
        NativeVec(changed(*OTHER_CODE), total_agents=4, env=env) as vec,
        pytest.raises(UserError, match=r"with sources \w+, expected \w+\n.*were changed since"),
    ):
        vec.restore(state)


TOKENS = [
    *("int", "a", "1", "2", "=", "+", "++", ";"),
    *('"b  c"', '"b c"', '"b // c"', r'"\" /* c"', "' '", "'\\t'", "'\"'"),
]
GAPS = [" ", "\t", "\n", "\r\n", "/* one */", '/* a\n"b */', " // it's\n", " // c \\\n d\n"]


@st.composite
def two_codes(draw):
    """Draw two texts of C code, and whether their tokens are equal."""
    one = draw(st.lists(st.sampled_from(TOKENS), min_size=1, max_size=6))
    other = list(one)
    if draw(st.booleans()):
        other[draw(st.integers(0, len(one) - 1))] = draw(st.sampled_from(TOKENS))
    texts = ["".join(token + draw(st.sampled_from(GAPS)) for token in it) for it in (one, other)]
    return *texts, one == other


@settings(max_examples=100)
@given(two_codes())
@example(("#define A 1 + 2\n", "#define A 1 \\\n  + 2\n", True))
@example(("#define A(b) (b+1)\n", "  # define  A(b)  ( b + 1 ) // c\n", True))
@example(("#define A 1\nint a;", "#define /* b\nc */ A 1\nint a;", True))
@example(("#define A\n1\n", "#define A 1\n", False))
@example(("#define A(b) b\n", "#define A (b) b\n", False))
@example(("#define A\n", "a #define A\n", False))
@example(("#if 0\ndon't\n#endif\na;", "#if 0\ndon't\n#endif\nb;", False))
def test_code_is_equal_if_and_only_if_tokens_are(codes):
    one, other, equal = codes
    assert (code_of(one.encode()) == code_of(other.encode())) == equal


def test_states_with_a_digest_of_all_bytes_are_accepted():
    """Such states were saved before comments were left out of the digest."""
    folder = changed(*OTHER_CODE)  # not a shipped environment
    with NativeVec(folder, total_agents=4, env=parameters("squared")) as vec:
        digest = hashlib.sha256()
        for path in sorted(folder.glob("*.[ch]")):
            content = path.read_bytes()
            digest.update(f"{path.name} {len(content)}\0".encode() + content)
        body = unpack_state(saved(vec), vec._identity)
        vec.restore(pack_state({**vec._identity, "sources": digest.hexdigest()[:24]}, body))


def test_code_of_shipped_environments_lists_states_it_resumes():
    """A change of the code needs a decision: does it resume earlier states to the same bits?

    If so (tests/training/test_saved_runs.py), write the new digest beside the old ones. Otherwise
    remove the environment from the table.
    """
    digests = {name: sources_digest(find_environment(name)) for name in SHIPPED}
    assert [name for name, digest in digests.items() if digest not in RESUMABLE_DIGESTS] == []


@pytest.fixture(scope="module")
def squares():
    """Yield environments squared and their saved state."""
    with make("squared", total_agents=4) as vec:
        yield vec, saved(vec)


@settings(max_examples=150)
@given(st.data())
def test_damaged_state_is_refused(squares, data: st.DataObject):
    vec, state = squares
    damaged = state.copy()
    at = data.draw(st.integers(0, len(state) - 1))
    if data.draw(st.booleans()):
        damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    else:
        damaged = damaged[:at]
    with pytest.raises(UserError, match=r"(checksum|format of this version)\n  hint: "):
        vec.restore(damaged)
    np.testing.assert_array_equal(saved(vec), state)


def test_records_are_checked_even_if_the_checksum_is_right():
    with make("relay", total_agents=12) as vec:
        stepper = Stepper(vec)
        play(stepper, history(vec, 3))
        body = unpack_state(saved(vec), vec._identity)
        state = saved(vec)
        with pytest.raises(UserError, match=r"relay: .*ends early"):
            vec.restore(pack_state(vec._identity, body[:40]))
        np.testing.assert_array_equal(saved(vec), state)  # nothing was changed
        body[48:56].view(np.int32)[1] = 1000  # receipts of the first environment
        with pytest.raises(UserError, match=r"relay: .*environment 0 can't load its"):
            vec.restore(pack_state(vec._identity, body))
        vec.reset(stepper.rows)
        play(stepper, history(vec, 10))


@pytest.mark.processes
def test_environment_without_state_macro_can_not_be_saved():
    env = parameters("squared")
    folder = changed("binding.c", "#define MY_STATE_PLAIN", "//")
    with NativeVec(folder, total_agents=4, env=env) as vec:
        assert vec.state() is None
        with pytest.raises(UserError, match="neither MY_STATE_PLAIN nor MY_STATE"):
            vec.restore(pack_state(vec._identity, np.zeros(32, np.uint8)))
    folder = changed(
        "binding.c", "#define MY_STATE_PLAIN ", "#define MY_STATE_PLAIN\n#define MY_STATE "
    )
    with pytest.raises(UserError, match="struct without pointers of its own"):
        NativeVec(folder, total_agents=4, env=env)


# ---- Episodes of single environments -------------------------------------------------------------


def test_each_episode_has_its_environment_and_return():
    """The agents walk up: from row 5, the sixth step leaves the grid or meets the target."""
    with make("squared", total_agents=6, num_buffers=2) as vec:
        stepper = Stepper(vec)
        up = np.full((6, 1), 2, np.float32)
        for step in range(1, 40):
            rows = stepper.step(up)
            ended = np.flatnonzero(rows.terminals)
            if step == 9:
                vec.log()  # takes the episodes of this step
                continue
            records = vec.episodes()
            assert [record["env"] for record in records] == ended.tolist()
            assert all(record["n"] == 1 for record in records)
            returns = [record["episode_return"] for record in records]
            np.testing.assert_array_equal(returns, rows.rewards[ended])


# ---- Shapes of observations ----------------------------------------------------------------------


@pytest.mark.processes
def test_observation_shape_must_match_size():
    def with_shape(shape: str) -> NativeVec:
        new = f"#define MY_OBS_SHAPE {shape}\n#define NUM_ATNS"
        folder = changed("binding.c", "#define NUM_ATNS", new)
        return NativeVec(folder, total_agents=4, env=parameters("squared"))

    with with_shape("{11, 11, 1}") as vec:
        assert vec.spec.observation_shape == (11, 11, 1)
    message = r"MY_OBS_SHAPE in binding\.c: .*\(11, 11, 2\) doesn't have 121 elements"
    with pytest.raises(UserError, match=message):
        with_shape("{11, 11, 2}")


# ---- Environments made of others -----------------------------------------------------------------


@pytest.mark.processes
def test_environment_may_include_another(copied: Path):
    wide = copied.parent / "wide"
    wide.mkdir()
    (wide / "binding.c").write_text('// no header of its own\n#  include "../squared/binding.c"\n')
    names = [path.relative_to(copied.parent).as_posix() for path in environment_files(wide)]
    assert names == ["squared/binding.c", "squared/squared.h", "wide/binding.c"]
    first, digest = compile_environment(wide), sources_digest(wide)
    assert first.name.startswith("wide-") and compile_environment(wide) == first
    with NativeVec(wide, total_agents=2, env={"size": 5}) as vec:
        assert vec.spec.name == "wide"
    edit(copied / "squared.h", "3 * env->size", "4 * env->size")
    assert compile_environment(wide) != first and sources_digest(wide) != digest
    (copied / "a.h").write_text('#include "squared.h"\n#include "a.h"\n#include "nowhere.h"\n')
    assert copied / "a.h" in environment_files(copied)
