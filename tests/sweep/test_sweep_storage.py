"""Storages of trials: torn ends are cut off, damage is reported, and sweeps share a database."""

from pathlib import Path

import pytest

pytest.importorskip("optuna", reason="pip install 'puffer-mlx[sweep]'")

import optuna
from sqlalchemy.exc import IntegrityError, OperationalError
from swept import COMPLETE, drive, known, open_study, settings

from puffer_mlx.errors import UserError
from puffer_mlx.sweep.engine import storage
from puffer_mlx.sweep.engine import study as studies
from puffer_mlx.sweep.engine.storage import open_storage, storage_errors

HOW = settings(max_runs=2)
TORN = [b'{"op_code":5,"n":"\xc3', b"\0" * 5000]


def add(path: str, data: bytes) -> bytes:
    """Append bytes to a file. Returns its contents before."""
    before = Path(path).read_bytes()
    Path(path).write_bytes(before + data)
    return before


def torn_off(here: Path) -> list[bytes]:
    return [path.read_bytes() for path in here.glob("j.log.torn-*")]


@pytest.mark.parametrize("torn", TORN)
def test_torn_end_is_cut_off(here, capsys, torn):
    """When the journal is opened, and by a sweep that had opened it before."""
    one, other = (open_study("j.log", settings(max_runs=4)) for _ in range(2))
    drive(one, HOW)
    trials = known(one)
    whole = add("j.log", torn)
    if torn == TORN[0]:
        drive(other, settings(max_runs=3))
    else:
        assert known(open_study("j.log", HOW)) == trials and Path("j.log").read_bytes() == whole
    assert torn_off(here) == [torn]
    said = capsys.readouterr().out
    assert said.startswith("the last record of j.log was incomplete") and "j.log.torn-" in said
    drive(one, settings(max_runs=4))
    assert known(one) == known(other) == known(open_study("j.log", HOW))
    assert len(one.runs(COMPLETE)) == 4 and capsys.readouterr().out == ""


def test_torn_first_record_is_cut_off(here):
    Path("j.log").write_bytes(b'{"op_c')
    drive(open_study("j.log", HOW), HOW)
    assert len(open_study("j.log", HOW).runs(COMPLETE)) == 2


def test_file_that_is_no_journal_is_refused_and_unchanged(here):
    Path("mine").write_text("a note")
    message = r"storage mine can't be used: line 1 isn't a journal record"
    with pytest.raises(UserError, match=message):
        open_storage("mine")
    assert Path("mine").read_text() == "a note" and not torn_off(here)


def test_damaged_journal_is_refused_with_its_intact_part(here):
    drive(open_study("j.log", HOW), HOW)
    lines = Path("j.log").read_bytes().splitlines(keepends=True)
    damaged = b"".join([*lines[:4], b"garbage\n", *lines[4:]])
    Path("j.log").write_bytes(damaged)
    with pytest.raises(
        UserError, match=r"line 5 isn't a journal record\n.* head -n 4 j\.log > OTHER"
    ):
        open_study("j.log", HOW)
    assert Path("j.log").read_bytes() == damaged
    Path("other.log").write_bytes(b"".join(lines[:4]))
    study = open_study("other.log", HOW)
    assert study.runs()
    add("other.log", b"garbage\ngarbage\n")  # during a sweep
    with (
        pytest.raises(UserError, match=r"storage other\.log can't be used: "),
        storage_errors("other.log"),
    ):
        studies.study_info(study.optuna_study._storage, "formula")


def test_study_with_an_invalid_description_is_refused(here):
    study = open_study("j.log", HOW)
    study.optuna_study.set_user_attr(studies.DESCRIPTION, '{"words": [5]}')
    with pytest.raises(UserError, match="the description in the study formula is invalid"):
        open_study("j.log", HOW)


def test_file_that_is_no_database_is_refused(here):
    Path("none.db").write_text("a note, longer than a database's header would have to be" * 20)
    with pytest.raises(UserError, match=r"none\.db can't be used: file is not a database"):
        open_study("sqlite:///none.db", HOW)


def test_database_in_memory_is_refused():
    with pytest.raises(UserError, match=r"is a database in memory, .*\n.*sqlite:///FILE"):
        open_storage("sqlite:///file::memory:?uri=true")


def test_sweeps_that_create_tables_at_the_same_time_share_a_database(monkeypatch):
    made = OperationalError("create", {}, Exception("table studies already exists"))
    stamped = IntegrityError("insert", {}, Exception("UNIQUE constraint failed: alembic_version"))
    faults, real = [made, stamped], object()

    def begin(where):
        if faults:
            raise faults.pop(0)
        return real

    monkeypatch.setattr(storage, "RDBStorage", begin)
    assert open_storage("sqlite:///trials.db") is real
    faults += [OperationalError("create", {}, Exception("disk I/O error")), made]
    with pytest.raises(UserError, match="disk I/O error"):
        open_storage("sqlite:///trials.db")
    assert faults == [made]  # once was enough


def test_private_names_of_optuna_are_those_of_version_5(here):
    """If this fails with a new Optuna: look at `storage_and_id`, then move the bound."""
    assert optuna.__version__.partition(".")[0] == "5"
    study = open_study("j.log", settings())
    run = study.new_run()
    storage, number = studies.storage_and_id(study.optuna_study, run)
    assert storage.get_trial(number).number == run.number
