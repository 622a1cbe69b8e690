"""Which plain functions fused forms stand for, and what counts as a change of one."""

import ast
import functools
from pathlib import Path

import fingerprints as refreshing
import pytest

from puffer_mlx.ops import fingerprints
from puffer_mlx.ops.fingerprints import Reference
from puffer_mlx.policy.distributions import Categorical
from puffer_mlx.policy.networks import mingru
from puffer_mlx.ppo import advantage, loss, optimizers, priority
from puffer_mlx.ppo.optimizers import muon
from puffer_mlx.spec import ActionSpec


def test_stored_fingerprints_are_of_the_functions_as_they_are():
    edited = ", ".join(refreshing.stale())
    assert not edited, (
        f"{edited} changed: let the C++ and the kernels compute it, too, and then run"
        " `make fingerprints` (CONTRIBUTING.md)"
    )


def test_every_reference_names_its_tests():
    for each in refreshing.references():
        assert (refreshing.ROOT / each.test).is_file(), each.form


def reference(*functions: str) -> Reference:
    """One that isn't among the package's."""
    made = Reference("the other form", functions, "", "it takes longer")
    fingerprints.REFERENCES.remove(made)
    return made


LOSS = "ppo.closed_form:losses"


@pytest.fixture(autouse=True)
def nothing_was_said():
    fingerprints._tell.cache_clear()


def test_what_is_replaced_is_heard_once_and_only_meanwhile(monkeypatch, capsys):
    form = reference(LOSS)
    assert form.holds() and form.holds()
    with monkeypatch.context() as patch:
        patch.setattr(loss, "ppo_loss", lambda *a, **k: None)
        assert not form.holds() and not form.holds()
    assert form.holds()
    said = "puffer_mlx: ppo.loss.ppo_loss changed: the other form isn't used, it takes longer\n"
    assert capsys.readouterr().err == said


def _wrapped(function):
    return functools.wraps(function)(lambda *a, **k: function(*a, **k))


@pytest.mark.parametrize(
    ("where", "name", "function"),
    [
        (loss, "ppo_loss", LOSS),
        (optimizers, "clip_by_global_norm", "ppo.optimizers.muon:step"),
        (muon, "orthogonalise", "ppo.optimizers.muon:step"),
        (advantage, "discount", "ppo.advantage:advantages"),  # under an import's name
        (mingru, "mingru_reference", "policy.networks.mingru:MinGRU.scan"),
        (mingru, "logistic", "policy.networks.mingru:MinGRU.scan"),
        (Categorical, "_heads", "policy.distributions:Categorical.log_prob_entropy"),
    ],
)
def test_what_may_be_replaced(monkeypatch, where, name, function):
    form = reference(function)
    assert form.holds()
    monkeypatch.setattr(where, name, _wrapped(getattr(where, name)))
    assert not form.holds()


def test_a_constant_that_is_replaced(monkeypatch):
    form = reference("ppo.priority:choose")
    monkeypatch.setattr(priority, "EPS", 0.5)
    assert not form.holds()


class Colder(Categorical):
    """Overrides one method."""

    def log_prob_entropy(self, outputs, actions, mask=None):
        return super().log_prob_entropy(2 * outputs, actions, mask)


def test_what_is_given_is_the_package_s_or_it_is_a_change(capsys):
    form, action = reference(), ActionSpec((3,))
    assert form.holds(Categorical(action).log_prob_entropy, loss.ppo_loss)
    assert not form.holds(Colder(action).log_prob_entropy)
    assert not form.holds(lambda *a: None)
    assert not form.holds(functools.partial(loss.ppo_loss, clip_coef=1.0))
    assert "test_fingerprints.Colder.log_prob_entropy is given" in capsys.readouterr().err


def test_a_name_that_is_not_there_is_an_error():
    with pytest.raises(LookupError, match=r"ppo\.loss:ppo_los isn't in the package"):
        reference("ppo.loss:ppo_los").holds()


def test_without_sources_nothing_was_edited(monkeypatch):
    for function in (fingerprints._module, fingerprints._used, fingerprints._uses):
        function.cache_clear()
    monkeypatch.setattr(fingerprints, "_path", lambda module: None)
    monkeypatch.setattr(fingerprints, "FILE", Path("nowhere"))
    fingerprints._imports.cache_clear()
    try:
        form = reference("ppo.loss:ppo_loss")
        assert form.holds()
        monkeypatch.setattr(loss, "ppo_loss", lambda *a, **k: None)
        assert not form.holds()
    finally:
        for each in ("_module", "_used", "_uses", "_imports"):
            getattr(fingerprints, each).cache_clear()


BEFORE = "def f(x, y):\n    return x + y * 2\n"
SAME = [
    'def f(x, y):\n    """Words."""\n    return x + y * 2  # a comment\n',
    "def f(x: int, y: float) -> float:\n    return (x +\n        y * 2)\n",
]
OTHERS = [
    BEFORE.replace("2", "3"),
    BEFORE.replace("+", "-"),
    BEFORE.replace("x +", "y +"),
    BEFORE.replace("x, y", "x, y=0"),
    f"@twice\n{BEFORE}",
]


def _text(source: str) -> str:
    return repr(fingerprints._normal(ast.parse(source).body[0]))


def test_only_what_is_computed_counts():
    assert {_text(each) for each in SAME} == {_text(BEFORE)}
    assert len({_text(each) for each in [BEFORE, *OTHERS]}) == 1 + len(OTHERS)


def test_a_fingerprint_is_alike_in_all_versions_of_python():
    found = repr(fingerprints._normal(ast.parse("def f(x):\n    return -x[1:] ** 2.5\n").body[0]))
    assert found == (
        "('FunctionDef', [('name', 'f'), ('args', ('arguments', [('args', [('arg', [('arg', 'x')"
        "])])])), ('body', [('Return', [('value', ('UnaryOp', [('op', ('USub', [])), ('operand', "
        "('BinOp', [('left', ('Subscript', [('value', ('Name', [('id', 'x')])), ('slice', ('Slice"
        "', [('lower', ('Constant', [('value', 1)]))]))])), ('op', ('Pow', [])), ('right', ('Cons"
        "tant', [('value', 2.5)]))]))]))])])])"
    )
