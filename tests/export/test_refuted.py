"""After a refuted champion, `export` hands out no other trial that nobody verified."""

from __future__ import annotations

from pathlib import Path

import pytest
from stored_studies import write_study
from typer.testing import CliRunner

import evokern
from evokern.cli._command import app
from evokern.cli._output import Output
from evokern.cli.app import run  # noqa: F401 (registers every command)
from evokern.cli.commands.search import print_result
from evokern.errors import RefutedError
from evokern.export import export_trial
from evokern.search.results import SessionResult
from evokern.store import open_readonly
from evokern.store._proofs import add_proof

FAILED = {"stages": {"fuzz": {"state": "failed", "detail": "o[0] is 3"}}, "playoff": None}
PASSED = {"stages": {"fuzz": {"state": "passed", "detail": "24 cases"}}, "playoff": None}


def _champion(db: Path) -> int:
    with open_readonly(db) as reader:
        best = reader.best(reader.study())
    assert best is not None
    return best.number


def _export(db: Path, *words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["export", "--db", str(db), "-o", str(db.parent / "best.cu"), *words])
    return result.exit_code, result.stderr


@pytest.fixture
def db(tmp_path: Path) -> Path:
    """A study measured on a GPU, whose kernel no longer exists."""
    write_study(tmp_path / "r.db", 40)
    return tmp_path / "r.db"


def test_the_next_trial_needs_a_verification(db: Path) -> None:
    """The refusal names the refuted trials, the next best, and both ways on; the exit code is 1."""
    with open_readonly(db) as reader:
        study = reader.study()
    first = _champion(db)
    assert "there is no kernel" in _export(db)[1]  # an unverified champion is exported, with a note
    add_proof(db, study, "verify", first, FAILED)
    second = _champion(db)
    code, told = _export(db)
    assert (code, f"trial {second}, is not verified" in told, f"({first})" in told) == (1, True, True)
    assert (f"evokern verify small --trial {second}" in told, f"`--trial {second}`" in told) == (True, True)
    assert not (db.parent / "best.cu").exists()
    for choice in (("--trial", str(second)), ("--force",)):
        assert "there is no kernel" in _export(db, *choice)[1]
    with open_readonly(db) as reader, pytest.raises(RefutedError):
        export_trial(reader, None, None)
    with pytest.raises(RefutedError):
        evokern.load_study(db=str(db)).export(db.parent / "best.cu")
    add_proof(db, study, "verify", second, PASSED)
    assert "there is no kernel" in _export(db)[1]


def test_a_package_needs_a_verified_trial(db: Path) -> None:
    """A refuted trial is not packed for torch, by the command and by Python; nothing is written."""
    with open_readonly(db) as reader:
        study = reader.study()
    first = _champion(db)
    folder = ("--format", "torch", "-o", str(db.parent / "my_op"))
    code, told = _export(db, *folder)
    assert (code, f"trial {first} of small is not verified" in told) == (2, True)
    add_proof(db, study, "verify", first, FAILED)
    code, told = _export(db, *folder, "--trial", str(first))
    assert (code, f"trial {first} of small is refuted" in told) == (2, True)
    with pytest.raises(RefutedError):
        evokern.load_study(db=str(db)).export(db.parent / "my_op", format="torch")
    add_proof(db, study, "verify", first, PASSED)
    assert not (db.parent / "my_op").exists()
    assert "there is no kernel" in _export(db, *folder, "--trial", str(first), "--force")[1]


def test_a_search_whose_next_trial_is_unverified_exits_1(db: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The next step is the verification that `export` needs, and not the export that it refuses."""

    def printed() -> tuple[int, str]:
        with open_readonly(db) as reader:
            study = reader.study()
            found = SessionResult(db, study, "trials", reader.best(study), reader.summary(study))
        code = print_result(Output(), found)
        return code, capsys.readouterr().out.splitlines()[-1]

    with open_readonly(db) as reader:
        study = reader.study()
    code, last = printed()
    assert (code, "; evokern export small --db" in last) == (0, True), "verification was not asked for"
    add_proof(db, study, "verify", _champion(db), FAILED)
    second = _champion(db)
    code, last = printed()
    assert (code, last.startswith(f"next: evokern verify small --trial {second} --db")) == (1, True)
    assert "export" not in last
    add_proof(db, study, "verify", second, PASSED)
    code, last = printed()
    assert (code, "; evokern export small --db" in last) == (0, True)


def test_a_study_whose_trials_are_all_refuted_says_so(tmp_path: Path) -> None:
    """It was measured; "no measured trial yet" would be the wrong reason."""
    db = tmp_path / "r.db"
    study = write_study(db, 5)
    with open_readonly(db) as reader:
        numbers = [one.number for one in reader.trials(study)]
    for number in numbers:
        add_proof(db, study, "verify", number, FAILED)
    code, told = _export(db)
    assert (code, "every measured trial of study small failed its verification" in told) == (1, True)
