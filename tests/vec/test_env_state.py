"""Native environments that are saved in the middle of episodes, and reports of single episodes."""

import hashlib
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from kept import edit
from native_envs import AGENTS_OF, GROUP, NAMES, SHIPPED, Stepper, make, parameters

from puffer_mlx.errors import UserError
from puffer_mlx.spec import ActionSpec, EnvSpec
from puffer_mlx.vec.native.compiling import compile_environment
from puffer_mlx.vec.native.make import find_environment
from puffer_mlx.vec.native.saved_state import pack, unpack
from puffer_mlx.vec.native.sources import CONTINUES, environment_files, sources_digest
from puffer_mlx.vec.native.vec import NativeVec
from puffer_mlx.vec.rows import random_actions

AGENTS = 2 * GROUP
REFUSED = r"(checksum|format of this version)\n  hint: "


def saved(vec: NativeVec) -> np.ndarray:
    state = vec.state()
    assert state is not None
    return state


def play(stepper: Stepper, actions: list[np.ndarray]) -> list[np.ndarray]:
    """All rows of each step."""
    seen = []
    for mine in actions:
        rows = stepper.step(mine)
        seen += [array.copy() for array in rows if array is not None]
    return seen


def history(vec: NativeVec, steps: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [random_actions(vec, vec.num_agents, rng) for _ in range(steps)]


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of squared's folder, and an empty cache."""
    monkeypatch.setenv("PUFFER_MLX_CACHE", str(tmp_path / "cache"))
    return Path(shutil.copytree(find_environment("squared"), tmp_path / "squared"))


# ---- Going on ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_what_is_restored_goes_on_bit_for_bit(name: str):
    """In other threads and groups, another seed, before the first reset and in the middle.

    So do the episodes after a reset, and the bytes of a state don't depend on threads and groups.
    """
    before = int(np.random.default_rng(len(name)).integers(1, 60))

    def gone_on(vec: NativeVec, stepper: Stepper) -> tuple[list[np.ndarray], dict]:
        seen, log = [*play(stepper, actions), saved(vec)], vec.log()
        vec.reset(stepper.rows)
        return seen + play(stepper, actions[:30]), log

    with make(name, total_agents=AGENTS, num_buffers=2, num_threads=2) as vec:
        stepper, actions = Stepper(vec), history(vec, 250, seed=2)
        play(stepper, history(vec, before, seed=1))
        state = saved(vec)
        np.testing.assert_array_equal(saved(vec), state)
        expected, log = gone_on(vec, stepper)
        assert log["n"] > 0  # with episodes from before the state
    for fresh in True, False:
        with make(name, total_agents=AGENTS, num_threads=3, seed=9) as vec:
            stepper = Stepper(vec, reset=not fresh)
            if not fresh:
                play(stepper, history(vec, 77, seed=3))
            vec.restore(state)
            np.testing.assert_array_equal(saved(vec), state)
            found, its_log = gone_on(vec, stepper)
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_array_equal(one, other)
            assert its_log == log


def test_memory_of_an_environment_grows_and_shrinks():
    """relay keeps one number per agent and step of the episode, and has 1, 2 or 3 agents."""
    with make("relay", total_agents=6) as vec:
        stepper, actions = Stepper(vec), history(vec, 6)
        states = [saved(vec)]
        for step in range(6):
            play(stepper, actions[step : step + 1])
            states.append(saved(vec))
        sizes = [len(state) for state in states]
        assert sizes == sorted(sizes) and sizes[-1] - sizes[0] >= 6 * 6 * 4 - 3 * 16
        for at in 6, 0, 3:
            vec.restore(states[at])
            for step in range(at, 6):
                play(stepper, actions[step : step + 1])
                np.testing.assert_array_equal(saved(vec), states[step + 1])


def test_saving_and_restoring_wait_for_steps_under_way():
    """So do reports of episodes."""
    env = {"length": 7, "sleep_ms": 100}
    with make("relay", total_agents=6, num_buffers=2, env=env) as vec:
        stepper, first = Stepper(vec), saved(vec)
        start = time.perf_counter()
        vec.send(1, np.zeros((3, 2), np.float32), stepper.group(1))
        assert len(saved(vec)) > len(first)  # it has the step's receipts
        assert time.perf_counter() - start > 0.1
        vec.wait(1)
        vec.send(0, np.zeros((3, 2), np.float32), stepper.group(0))
        vec.restore(first)
        np.testing.assert_array_equal(saved(vec), first)
    for use in vec.state, vec.episodes, lambda: vec.restore(first):  # closed
        with pytest.raises(RuntimeError, match="closed"):
            use()
    with make("relay", total_agents=1, env={**env, "length": 1}) as vec:
        vec.send(0, np.ones((1, 2), np.float32), Stepper(vec).rows)
        assert vec.episodes() == [{"length": 1.0, "receipts": 11.0, "n": 1.0, "env": 0.0}]


# ---- What is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "keywords", "message"),
    [
        ("memory", {}, "saved with environment squared, expected memory"),
        ("squared", {"total_agents": 8}, r"saved with vec\.total_agents 4, expected 8"),
        ("squared", {"env": {"size": 5}}, r"saved with env\.size 11\.0, expected 5\.0"),
        ("squared", {"vec": {"bonus": 1}}, r"saved with vec\.bonus absent, expected 1\.0"),
    ],
)
def test_states_of_others(name: str, keywords: dict, message: str):
    with make("squared", total_agents=4) as vec:
        state = saved(vec)
    with make(name, **{"total_agents": 4, **keywords}) as vec:
        before = saved(vec)
        with pytest.raises(UserError, match=message + r"\n.*hint: .*start anew"):
            vec.restore(state)
        np.testing.assert_array_equal(saved(vec), before)


@pytest.mark.processes
def test_the_state_of_other_sources(copied: Path):
    env = parameters("squared")
    with make("squared", total_agents=4) as vec:
        state = saved(vec)
    with NativeVec(copied, total_agents=4, env={**env, "colour": 3}) as vec:
        vec.restore(state)  # the same files elsewhere, and a parameter that nobody reads
    edit(copied / "squared.h", "3 * env->size", "4 * env->size")
    with (
        NativeVec(copied, total_agents=4, env=env) as vec,
        pytest.raises(UserError, match=r"with sources \w+, expected \w+\n.*were changed since"),
    ):
        vec.restore(state)


SAME = {  # two texts of one program
    "a comment's words": ("int a; // one", "int a; // two"),
    "a comment more": ("int a = 1;", "/* one\n// more */ int a = /**/ 1;"),
    "a comment that looks like code": ("int a;", "int a; // \"it's /* not one"),
    "white space": ("int a=b+1;", "int\ta =\n\n  b + 1 ;\n"),
    "line ends": ("#define A 1\nint a;\n", "#define A 1\r\nint a;\r\n"),
    "a directive over two lines": ("#define A 1 + 2\n", "#define A 1 \\\n  + 2\n"),
    "white space of a directive": ("#define A(b) (b+1)\n", "  # define  A(b)  ( b + 1 ) // c\n"),
    "a comment within a directive": ("#define A 1\nint a;", "#define /* b\nc */ A 1\nint a;"),
    "a comment that goes on": ("int a;", "// one \\\n two\nint a;"),
}
OTHER = {
    "a number": ("int a = 1;", "int a = 2;"),
    "two operators": ("a = b + +c;", "a = b ++c;"),
    "two words": ("unsigned int a;", "unsignedint a;"),
    "a text": ('a = "b  c";', 'a = "b c";'),
    "a text like a comment": ('a = "b // c";', 'a = "b // d";'),
    "a text with a quote": (r'a = "\" // c";', r'a = "\" // d";'),
    "a character": ("a = ' ';", "a = '\t';"),
    "a quote as a character": ("a = '\"'; b = 1; // c", "a = '\"'; b = 2; // c"),
    "where a directive ends": ("#define A\n1\n", "#define A 1\n"),
    "a macro with arguments": ("#define A(b) b\n", "#define A (b) b\n"),
    "code behind an apostrophe": ("#if 0\ndon't\n#endif\na;", "#if 0\ndon't\n#endif\nb;"),
    "a directive or not": ("#define A\n", "a #define A\n"),
    "an included file": ('#include "a.h"\n', '#include "b.h"\n'),
}


@pytest.mark.parametrize("texts", [*SAME, *OTHER])
def test_the_digest_of_sources_is_that_of_their_code(tmp_path: Path, texts: str):
    """Comments and white space don't matter; everything else does."""
    digests = []
    for text in (SAME | OTHER)[texts]:
        (tmp_path / "binding.c").write_bytes(text.encode())
        digests.append(sources_digest(tmp_path))
    assert (digests[0] == digests[1]) == (texts in SAME)


def test_a_reworded_comment_keeps_saved_states(copied: Path):
    env = parameters("squared")
    with NativeVec(copied, total_agents=4, env=env) as vec:
        state = saved(vec)
    edit(copied / "squared.h", "// ", "// Indeed: ")
    with NativeVec(copied, total_agents=4, env=env) as vec:
        vec.restore(state)


def test_states_with_the_digest_of_all_bytes_are_accepted(copied: Path):
    """Such states were saved before comments were left out of the digest."""
    edit(copied / "squared.h", "3 * env->size", "4 * env->size")  # not a shipped environment
    with NativeVec(copied, total_agents=4, env=parameters("squared")) as vec:
        digest = hashlib.sha256()
        for path in sorted(copied.glob("*.[ch]")):
            content = path.read_bytes()
            digest.update(f"{path.name} {len(content)}\0".encode() + content)
        body = unpack(saved(vec), vec._identity)
        earlier = {**vec._identity, "sources": digest.hexdigest()[:24]}
        vec.restore(pack(earlier, body))


@pytest.mark.parametrize("name", SHIPPED)
def test_saved_states_of_shipped_environments_are_accepted_by_their_code(name: str):
    """A change of the code needs a decision: can states of before go on, to the same bits?

    If they can (tests/training/test_saved_runs.py), write the new digest beside the old ones; if
    not, take the environment out of the table.
    """
    assert sources_digest(find_environment(name)) in CONTINUES


def test_damaged_states():
    with make("squared", total_agents=4) as vec:
        state = saved(vec)
        whole = bytes(state)
        rng = np.random.default_rng(0)
        head = whole.index(b"}") + 20
        for at in [*range(head), *rng.integers(head, len(state), 50)]:
            damaged = state.copy()
            damaged[at] ^= 1 << rng.integers(8)
            with pytest.raises(UserError, match=REFUSED):
                vec.restore(damaged)
        for length in 0, 7, 8, 20, 47, 48, head, len(state) // 2, len(state) - 1:
            with pytest.raises(UserError, match=REFUSED):
                vec.restore(state[:length])
        for wrong in state.view(np.int8), np.array(state[0]), np.append(state, np.uint8(0)):
            with pytest.raises(UserError, match=REFUSED):
                vec.restore(wrong)
        assert bytes(saved(vec)) == whole
        padded = np.repeat(state, 2)[::2]  # not contiguous
        vec.restore(padded)
        assert bytes(saved(vec)) == whole


def with_number(index: int, value: int):
    """With another number: 0 to 3 are the head, 4 and 5 the first environment's record."""

    def change(body: np.ndarray) -> np.ndarray:
        numbers = body.copy()
        numbers[: len(body) // 8 * 8].view(np.uint64)[index] = value
        return numbers

    return change


def with_receipts(body: np.ndarray) -> np.ndarray:
    """With a number of them that relay itself refuses."""
    body[48:56].view(np.int32)[1] = 1000
    return body


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda body: body[:0], "ends early"),
        (lambda body: body[:40], "ends early"),  # in the record of the first environment
        (lambda body: body[:-16], "ends early"),
        (lambda body: np.append(body, np.zeros(16, np.uint8)), "goes on for 16 bytes"),
        (with_number(0, 8), r"6 environments of 8 bytes and 12 agents.*expected"),
        (with_number(2, 13), "and 13 agents"),
        (with_number(4, 2), "environment 0 of the state has 2 agents, expected"),
        (with_number(5, 2**63), "ends early"),  # bytes of its record
        (with_number(5, 2**64 - 1), "ends early"),
        (with_receipts, "environment 0 can't load its"),
    ],
)
def test_states_of_another_layout(change, message: str):
    """What the C side looks at itself, whatever the checksum says."""
    with make("relay", total_agents=12) as vec:
        stepper = Stepper(vec)
        play(stepper, history(vec, 3))
        body = change(unpack(saved(vec), vec._identity))
        play(stepper, history(vec, 2))
        state = saved(vec)
        with pytest.raises(UserError, match=f"relay: .*{message}"):
            vec.restore(pack(vec._identity, body))
        if change is not with_receipts:
            np.testing.assert_array_equal(saved(vec), state)  # nothing was changed
        vec.reset(stepper.rows)
        play(stepper, history(vec, 10))


@pytest.mark.processes
def test_environments_that_cannot_be_saved(copied: Path):
    edit(copied / "binding.c", "#define MY_STATE_PLAIN", "//")
    with NativeVec(copied, total_agents=4, env=parameters("squared")) as vec:
        assert vec.state() is None
        with pytest.raises(UserError, match="neither MY_STATE_PLAIN nor MY_STATE"):
            vec.restore(pack(vec._identity, np.zeros(32, np.uint8)))


@pytest.mark.processes
@pytest.mark.parametrize(
    ("new", "message"),
    [
        ("#define MY_STATE_PLAIN\n#define MY_STATE", "struct without pointers of its own"),
        ("#define MY_STATE_PLAIN\n#define MY_USES_PERM", "struct without pointers of its own"),
        ("#define MY_STATE", "my_state_size|my_save_state|my_load_state"),
    ],
)
def test_macros_that_contradict(copied: Path, new: str, message: str):
    edit(copied / "binding.c", "#define MY_STATE_PLAIN ", new + "\n// ")
    with pytest.raises(UserError, match=message):
        NativeVec(copied, total_agents=4, env=parameters("squared"))


# ---- Episodes of single environments -------------------------------------------------------------


@pytest.mark.parametrize("name", ["relay", "breakout", "soccer", "connect4_two"])
def test_episodes_add_up_to_the_log(name: str):
    with (
        make(name, total_agents=AGENTS, num_buffers=2) as vec,
        make(name, total_agents=AGENTS) as twin,
    ):
        actions = history(vec, 400)
        play(Stepper(vec), actions)
        play(Stepper(twin), actions)
        records, log = vec.episodes(), twin.log()
        agents = {"relay": 2, **AGENTS_OF}.get(name, 1)
        assert vec.num_environments * agents == AGENTS
        numbers = [record["env"] for record in records]
        assert numbers == sorted(set(numbers)) and set(numbers) <= set(range(vec.num_environments))
        weights = np.array([record["n"] for record in records])
        assert weights.sum() == log["n"] and len(records) > vec.num_environments // 2
        for key in log:
            mean = np.average([record[key] for record in records], weights=weights)
            assert mean == pytest.approx(log[key], rel=1e-5) or key == "n"
        assert list(records[0]) == [*log, "env"]
        assert vec.episodes() == [] and vec.log() == {}


def test_episodes_one_by_one():
    """Of agents that walk up: from row 5, the sixth step leaves the grid, or meets the target."""
    with make("squared", total_agents=6, num_buffers=2) as vec:
        stepper = Stepper(vec)
        up = np.full((6, 1), 2, np.float32)
        for step in range(1, 40):
            rows = stepper.step(up)
            if step == 9:
                vec.log()  # takes those of the ninth step
                continue
            records = vec.episodes()
            ended = np.flatnonzero(rows.terminals)
            assert [record["env"] for record in records] == ended.tolist()
            assert all(record["n"] == 1 for record in records)
            returns = [record["episode_return"] for record in records]
            np.testing.assert_array_equal(returns, rows.rewards[ended])


# ---- Shapes of observations ----------------------------------------------------------------------


SHAPES = {  # MY_OBS_SHAPE, what is said
    "{11, 11, 1}": "",
    "{11, 11, 2}": r"MY_OBS_SHAPE in binding\.c: .*\(11, 11, 2\) doesn't have 121 elements",
    "{11, 11}": "must be {height, width, channels}",
}


@pytest.mark.processes
@pytest.mark.parametrize("shape", SHAPES)
def test_images_have_a_shape(copied: Path, shape: str):
    edit(
        copied / "binding.c", "#define NUM_ATNS", f"#define MY_OBS_SHAPE {shape}\n#define NUM_ATNS"
    )
    if SHAPES[shape]:
        with pytest.raises(UserError, match=SHAPES[shape]):
            NativeVec(copied, total_agents=4, env=parameters("squared"))
        return
    with NativeVec(copied, total_agents=4, env=parameters("squared")) as vec:
        assert vec.spec.observation_shape == (11, 11, 1) and vec.spec.action.sizes == (5,)
    for wrong in (121,), (11, 11), (11, 11, 2), (-11, -11, 1), (1, 11, 11, 1):
        with pytest.raises(ValueError, match="121 elements"):
            EnvSpec("x", 121, np.dtype(np.uint8), ActionSpec((5,)), observation_shape=wrong)


# ---- Environments made of others -----------------------------------------------------------------


@pytest.mark.processes
def test_an_environment_may_be_made_of_another(copied: Path):
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
    # headers that include each other
    (copied / "a.h").write_text('#include "squared.h"\n#include "../b.h"\n#include "nowhere.h"\n')
    (copied.parent / "b.h").write_text('#include "squared/a.h"\n')
    names = [path.relative_to(copied.parent).as_posix() for path in environment_files(copied)]
    assert names == ["b.h", "squared/a.h", "squared/binding.c", "squared/squared.h"]
