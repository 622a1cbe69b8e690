"""Libraries of a wheel: taken where they fit, else passed over with a reason."""

import json

import pytest

from puffer_mlx.system import prebuilt

HERE = {"MLX": "1.2.3", "Python": "cpython-311"}
V4 = prebuilt.LEVELS["x86-64-v4"]


@pytest.fixture
def bring(tmp_path, monkeypatch):
    """A function that puts a library for some kinds of CPUs into the package's folder."""
    monkeypatch.setattr(prebuilt, "FOLDER", tmp_path)
    monkeypatch.setattr(prebuilt, "cpu_features", lambda: V4)
    monkeypatch.delenv("PUFFER_MLX_NO_PREBUILT", raising=False)

    def bring(*levels: str, **made_for: str) -> None:
        for level in levels:
            library = tmp_path / "compiled"
            library.write_bytes(f"for {level}".encode())
            prebuilt.add(tmp_path, "ops", level, HERE | made_for, library)
            library.unlink()

    return bring


def test_the_best_for_this_cpu_is_taken(bring, tmp_path, monkeypatch):
    bring("", "x86-64-v3", "x86-64-v4")
    taken = []
    for features in (V4, prebuilt.LEVELS["x86-64-v3"], V4 - {"fma"}, frozenset()):
        monkeypatch.setattr(prebuilt, "cpu_features", lambda features=features: features)
        found = prebuilt.find("ops", HERE)
        assert found.path and found.path.parent == tmp_path and not found.reason
        taken.append(found.path.read_text())
    assert taken == ["for x86-64-v4", "for x86-64-v3", "for ", "for "]


@pytest.mark.parametrize("what", HERE)
def test_what_it_was_made_for_must_be_here(bring, what):
    bring("", **{what: "another"})
    path, why, made_for = prebuilt.find("ops", HERE)
    assert path is None and made_for[what] == "another"
    assert why == f"the one that came with puffer_mlx is for {what} another, not {HERE[what]}"
    assert prebuilt.find("ops", HERE | {"sources": "abc"}).path is None  # it says less


def test_one_for_newer_cpus_is_not_taken(bring, monkeypatch):
    bring("x86-64-v3", "x86-64-v4")
    monkeypatch.setattr(prebuilt, "cpu_features", lambda: V4 - {"avx2"})
    path, why, _ = prebuilt.find("ops", HERE)
    assert path is None and why == "the one that came with puffer_mlx is for newer CPUs"


def test_a_damaged_one_is_not_taken(bring, tmp_path):
    bring("")
    for damage in (lambda path: path.write_bytes(b"for x"), lambda path: path.unlink()):
        damage(tmp_path / "ops.so")
        path, why, _ = prebuilt.find("ops", HERE)
        assert path is None and why.endswith("is damaged")


def test_nothing_is_said_where_there_is_none(bring, tmp_path, monkeypatch):
    """A checkout's; another library's; or it is refused."""
    nothing = prebuilt.SearchResult(None)
    assert prebuilt.find("ops", HERE) == nothing
    bring("")
    assert prebuilt.find("ops", HERE).path and prebuilt.find("others", HERE) == nothing
    with monkeypatch.context() as patch:
        patch.setenv("PUFFER_MLX_NO_PREBUILT", "1")
        assert prebuilt.find("ops", HERE) == nothing
    (tmp_path / prebuilt.LIST).write_text('[{"name": "ops"}]')
    assert prebuilt.find("ops", HERE) == nothing


def test_the_list_is_what_was_added(bring, tmp_path):
    bring("x86-64-v3")
    (entry,) = json.loads((tmp_path / prebuilt.LIST).read_text())
    assert entry["file"] == "ops-x86-64-v3.so" and (tmp_path / entry["file"]).is_file()
    assert entry["made_for"] == HERE and len(entry["sha256"]) == 64
