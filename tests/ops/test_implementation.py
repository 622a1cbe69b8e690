"""An implementation is used only while the plain functions are the released ones."""

import functools
import importlib
import sys

import fingerprints
import pytest
from running import ROOT

from puffer_mlx.ops import implementation as choosing
from puffer_mlx.ops.implementation import Implementation, code_hash
from puffer_mlx.policy.distributions import Categorical
from puffer_mlx.policy.networks import mingru
from puffer_mlx.ppo import advantage, loss, optimizers, priority
from puffer_mlx.ppo.optimizers import muon
from puffer_mlx.spec import ActionSpec


def test_stored_hashes_are_up_to_date():
    edited = ", ".join(fingerprints.stale())
    assert not edited, (
        f"{edited} changed: change the C++ and the kernels, too, and then run"
        " `make fingerprints` (CONTRIBUTING.md)"
    )


@pytest.fixture(autouse=True)
def nothing_is_cached():
    for function in (
        choosing._report,
        choosing._dependencies,
        choosing._edited,
        choosing.released_hashes,
    ):
        function.cache_clear()
    yield
    for function in (choosing._dependencies, choosing._edited, choosing.released_hashes):
        function.cache_clear()


def other(*modules: str):
    return Implementation(modules, "the other form")


# ---- replaced at run time ------------------------------------------------------------------------


def test_replaced_function_is_reported_once_while_it_is_replaced(monkeypatch, capsys):
    form = other("ppo.closed_form")
    assert form.unchanged()
    with monkeypatch.context() as patch:
        patch.setattr(loss, "ppo_loss", lambda *a, **k: None)
        assert not form.unchanged() and not form.unchanged()
    assert form.unchanged()
    said = "puffer_mlx: ppo.loss.ppo_loss changed: the other form isn't used, slower\n"
    assert capsys.readouterr().err == said


def _wrapped(function):
    return functools.wraps(function)(lambda *a, **k: function(*a, **k))


@pytest.mark.parametrize(
    ("where", "name", "module"),
    [
        (loss, "ppo_loss", "ppo.closed_form"),
        (optimizers, "clip_by_global_norm", "ppo.optimizers.muon"),
        (advantage, "discount", "ppo.advantage"),  # under the name of an import
        (mingru, "mingru_reference", "policy.networks.mingru"),
        (Categorical, "_heads", "ppo.closed_form"),
        (priority, "EPS", "ppo.priority"),
    ],
)
def test_replaced_function_or_constant_is_noticed(monkeypatch, where, name, module):
    form, before = other(module), getattr(where, name)
    assert form.unchanged()
    monkeypatch.setattr(where, name, _wrapped(before) if callable(before) else 0.5)
    assert not form.unchanged()


# ---- passed --------------------------------------------------------------------------------------


class Colder(Categorical):
    """Distribution that overrides one method of ``Categorical``."""

    def log_prob_entropy(self, outputs, actions, mask=None):
        return super().log_prob_entropy(2 * outputs, actions, mask)


def test_custom_function_passed_is_reported(capsys):
    form, action = other("ppo.gradients"), ActionSpec((3,))
    assert form.unchanged(Categorical(action).log_prob_entropy, loss.ppo_loss)
    assert not form.unchanged(Colder(action).log_prob_entropy)
    assert not form.unchanged(lambda *a: None)
    assert not form.unchanged(functools.partial(loss.ppo_loss, clip_coef=1.0))
    said = "test_implementation.Colder.log_prob_entropy is given: the other form isn't used, slower"
    assert said in capsys.readouterr().err


def test_passed_function_adds_its_file(monkeypatch):
    form = other("ppo.priority")
    assert form.unchanged(muon.step)
    monkeypatch.setattr(muon, "orthogonalise", _wrapped(muon.orthogonalise))
    assert form.unchanged() and not form.unchanged(muon.step)


# ---- edited files --------------------------------------------------------------------------------


def test_edited_file_is_reported(monkeypatch, capsys):
    monkeypatch.setattr(choosing, "_edited", lambda m: "ppo/loss.py" * m.endswith(".loss"))
    assert not other("ppo.closed_form").unchanged() and other("ppo.priority").unchanged()
    said = "puffer_mlx: ppo/loss.py changed: the other form isn't used, slower\n"
    assert capsys.readouterr().err == said


def test_missing_sources_count_as_unedited(monkeypatch):
    monkeypatch.setattr(loss, "__file__", str(choosing.PACKAGE / "ppo" / "loss.pyc"))
    monkeypatch.setattr(
        choosing, "released_hashes", lambda: {"ppo/loss.pyc": choosing.Hashes("1", "2")}
    )
    form = other("ppo.closed_form")
    assert form.unchanged()
    monkeypatch.setattr(loss, "ppo_loss", lambda *a, **k: None)
    assert not form.unchanged()


BEFORE = b"def f(x, y):\n    return x + y * 2\n"
SAME = [
    b'def f(x, y):\n    """Words."""\n    return x + y * 2  # a comment\n',
    b"def f(x: int, y: float) -> float:\n    return (x +\n        y * 2)\n",
]
OTHERS = [
    BEFORE.replace(b"2", b"3"),
    BEFORE.replace(b"+", b"-"),
    BEFORE.replace(b"x, y", b"x, y=0"),
    b"@twice\n" + BEFORE,
]


def test_code_hash_ignores_comments_annotations_and_layout():
    assert {code_hash(each) for each in SAME} == {code_hash(BEFORE)}
    assert len({code_hash(each) for each in [BEFORE, *OTHERS]}) == 1 + len(OTHERS)


def test_code_hash_is_the_same_in_all_versions_of_python():
    assert code_hash(b"def f(x):\n    return -x[1:] ** 2.5\n") == "a798f0af3fb5e078"


# ---- the benchmark -------------------------------------------------------------------------------

sys.path.append(str(ROOT / "benchmarks"))
benchmark = importlib.import_module("implementations")


def test_benchmark_measures_every_implementation():
    rows = {name for row in benchmark.ROWS for name in (row.name, *row.also_refused)}
    assert rows == benchmark.declared()
