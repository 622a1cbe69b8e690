"""Libraries of a wheel are used where they fit, else a reason is given."""

import pytest

from puffer_mlx.system import prebuilt

HERE = {"MLX": "1.2.3", "Python": "cpython-311"}
V4 = prebuilt.LEVELS["x86-64-v4"]


@pytest.fixture
def bring(tmp_path, monkeypatch):
    """Return a function that adds prebuilt libraries for CPU levels to the package."""
    monkeypatch.setattr(prebuilt, "FOLDER", tmp_path)
    monkeypatch.setattr(prebuilt, "cpu_features", lambda: V4)
    monkeypatch.delenv("PUFFER_MLX_NO_PREBUILT", raising=False)

    def bring(*levels: str, **built_for: str) -> None:
        for level in levels:
            library = tmp_path / "compiled"
            library.write_bytes(f"for {level}".encode())
            prebuilt.add_library(tmp_path, "ops", level, HERE | built_for, library)
            library.unlink()

    return bring


def test_best_library_for_the_cpu_is_used(bring, tmp_path, monkeypatch):
    bring("", "x86-64-v3", "x86-64-v4")
    taken = []
    for features in (V4, prebuilt.LEVELS["x86-64-v3"], V4 - {"fma"}, frozenset()):
        monkeypatch.setattr(prebuilt, "cpu_features", lambda features=features: features)
        found = prebuilt.find_library("ops", HERE)
        assert found.path and found.path.parent == tmp_path and not found.reason
        taken.append(found.path.read_text())
    assert taken == ["for x86-64-v4", "for x86-64-v3", "for ", "for "]


@pytest.mark.parametrize("what", HERE)
def test_library_for_another_version_is_not_used(bring, what):
    bring("", **{what: "another"})
    path, why, built_for = prebuilt.find_library("ops", HERE)
    assert path is None and built_for[what] == "another"
    assert why == f"the one that came with puffer_mlx is for {what} another, not {HERE[what]}"
    assert prebuilt.find_library("ops", HERE | {"sources": "abc"}).path is None  # it says less


def test_library_for_newer_cpus_is_not_used(bring, monkeypatch):
    bring("x86-64-v3", "x86-64-v4")
    monkeypatch.setattr(prebuilt, "cpu_features", lambda: V4 - {"avx2"})
    path, why, _ = prebuilt.find_library("ops", HERE)
    assert path is None and why == "the one that came with puffer_mlx is for newer CPUs"


def test_damaged_library_is_not_used(bring, tmp_path):
    bring("")
    for damage in (lambda path: path.write_bytes(b"for x"), lambda path: path.unlink()):
        damage(tmp_path / "ops.so")
        path, why, _ = prebuilt.find_library("ops", HERE)
        assert path is None and why.endswith("is damaged")


def test_no_reason_is_given_without_a_library_of_that_name(bring, tmp_path, monkeypatch):
    nothing = prebuilt.SearchResult(None)
    assert prebuilt.find_library("ops", HERE) == nothing
    bring("")
    assert (
        prebuilt.find_library("ops", HERE).path and prebuilt.find_library("others", HERE) == nothing
    )
    with monkeypatch.context() as patch:
        patch.setenv("PUFFER_MLX_NO_PREBUILT", "1")
        assert prebuilt.find_library("ops", HERE) == nothing
    (tmp_path / prebuilt.LIST_FILE).write_text('[{"name": "ops"}]')
    assert prebuilt.find_library("ops", HERE) == nothing
