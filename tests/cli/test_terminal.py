"""What reaches a terminal: no text of a database, a folder or a compiler commands it or stands as a line of its own."""

from __future__ import annotations

import io
import json
import logging
import os
import pty
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from hostile_texts import poison
from stored_studies import add_proofs, example_progress, write_study
from typer.testing import CliRunner

from evokern.cli._command import app, run_command
from evokern.cli._output import LOGGER, Output
from evokern.cli.app import run  # noqa: F401 (registers every command)
from evokern.cli.panel import panel
from evokern.errors import UsageError

COMMANDING = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202e\nPASS forged\n"
ARGUMENTS = (
    ("show",), ("show", "--json"), ("show", "--trial", "3"), ("show", "--trial", "3", "--json"),
    pytest.param(("show", "--genes"), marks=pytest.mark.thorough),
    ("list",), ("list", "--json"), ("compare", "--stored"), ("compare", "--stored", "--markdown", "-"),
    ("compare", "--stored", "--json"), pytest.param(("export", "--trial", "3"), marks=pytest.mark.thorough),
    ("report", "gone"),
)  # fmt: skip


def commands_a_terminal(text: str) -> bool:
    """Tell whether a text has what a terminal obeys, or a line that the database wrote."""
    controls = any((ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160 or c == "\u202e" for c in text)
    return controls or any(line.startswith("PASS forged") for line in text.splitlines())


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database whose every text commands a terminal."""
    path = tmp_path_factory.mktemp("hostile") / "runs.db"
    add_proofs(path, write_study(path, 30))
    poison(path, COMMANDING)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # into the one file that is copied
    return path


@pytest.mark.parametrize("words", ARGUMENTS, ids=" ".join)
def test_no_text_of_a_database_commands_a_terminal(hostile: Path, words: tuple[str, ...], tmp_path: Path) -> None:
    """Every command that reads a database shows escapes and line ends of its texts instead of sending them."""
    shutil.copy(hostile, tmp_path / "runs.db")
    database = str(tmp_path / "runs.db")
    where = (database, database) if words[0] == "compare" else ("--db", database)
    done = CliRunner().invoke(app, [words[0], *where, *words[1:]])
    assert done.exit_code in (0, 2), done.output
    assert not commands_a_terminal(done.stdout), done.stdout
    assert not commands_a_terminal(done.stderr), done.stderr
    assert "owned" in done.output, "the hostile text was shown"
    if "--json" in words:
        assert COMMANDING in str(_texts(json.loads(done.stdout)))


def _texts(record: object) -> str:
    """Return the texts of a record, one behind the other."""
    if isinstance(record, dict):
        return "".join(_texts(key) + _texts(value) for key, value in record.items())
    return "".join(map(_texts, record)) if isinstance(record, list) else str(record)


def test_all_output_of_a_command_is_escaped(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Errors with their traceback, log lines and what a kernel.py prints go through one place."""

    def work() -> int:
        print("from a kernel.py \x1b[2J")
        LOGGER.warning("a compiler's word \x1b[2J\nand its second line")
        raise UsageError(f"no kernel {COMMANDING}")

    before = sys.stdout, sys.stderr
    assert run_command(Output(verbose=1), work) == 2
    assert (sys.stdout, sys.stderr) == before
    told = capsys.readouterr()
    assert told.out == "from a kernel.py \\x1b[2J\n"
    assert "\nand its second line\n" in told.err, "a message of several lines keeps them"
    assert told.err.splitlines()[-1].startswith(r"evokern: no kernel \x1b]0;owned\x07")
    assert not set(told.err) & set("\x1b\x07\r\x9b\u202e")


def test_a_log_file_is_read_on_terminals_too(tmp_path: Path) -> None:
    """`--log FILE` holds no escape sequence."""
    log = tmp_path / "log"

    def work() -> int:
        logging.getLogger("evokern").info("compiler: \x1b[31mred")
        return 0

    assert run_command(Output(log=log), work) == 0
    assert json.loads(log.read_text())["message"] == "compiler: \x1b[31mred"
    assert "\x1b" not in log.read_text()


def test_a_file_s_content_is_written_as_it_is_into_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    """`export -o -` into a file gives the very bytes: a form feed of a source is none of a terminal's there."""

    def work() -> int:
        Output().write("// page 1\f// page 2\n")
        return 0

    assert run_command(Output(), work) == 0
    assert capsys.readouterr().out == "// page 1\f// page 2\n"


def test_a_file_s_content_is_utf_8_whatever_the_terminal_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ASCII terminal's encoding changes no program or page that goes into a file."""
    held = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(held, encoding="ascii"))
    assert run_command(Output(), lambda: Output().write("// 3 µs\n")) == 0
    assert held.getvalue() == "// 3 µs\n".encode()


def test_words_and_json_on_an_ascii_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ASCII lacks is an escape, of JSON's own in JSON, and what commands a terminal is one as well."""
    held = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(held, encoding="ascii"))

    def work() -> None:
        Output().print_line("3 µs\x1b[2J")
        Output().print_json({"a": "µ\x1b\x7f\x9b"})

    assert run_command(Output(), work) == 0
    first, _, rest = held.getvalue().decode("ascii").partition("\n")
    assert first == r"3 \xb5s\x1b[2J"
    assert not commands_a_terminal(rest)
    assert json.loads(rest) == {"a": "µ\x1b\x7f\x9b"}


def test_a_stderr_that_takes_nothing_ends_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remarks and complaints for `/dev/full` are lost, the exit code is not."""

    def work() -> int:
        Output().note("begun")
        Output().print_error("no")
        return 1

    with open("/dev/full", "w", encoding="utf-8") as full:  # noqa: PTH123 (a device)
        monkeypatch.setattr(sys, "stderr", full)
        assert run_command(Output(), work) == 1
        with pytest.raises(OSError, match="No space left"):
            full.close()


def test_a_file_s_content_is_shown_on_a_terminal() -> None:
    """On a terminal it is shown, not obeyed."""
    work = "from evokern.cli._output import Output; Output().write('a\\x1b[2Jb\\n')"
    code = f"from evokern.cli._output import escaping_streams\nwith escaping_streams():\n    {work}"
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen:
        subprocess.run([sys.executable, "-c", code], stdout=theirs, check=True, timeout=60)
        os.close(theirs)
        assert screen.read(100) == b"a\\x1b[2Jb\r\n"


def test_the_live_panel_does_not_interpret_text() -> None:
    """Names and failures in the panel are neither escape sequences nor rich's own markup."""
    from dataclasses import replace

    from rich.console import Console

    out = io.StringIO()
    told = replace(example_progress(), study="[red]s\x1b[2J", device="\x9b31m", last_failures=("[b]trial\x1b]0;x\x07",))
    Console(file=out, width=120, force_terminal=False).print(panel(told))
    assert r"[red]s\x1b[2J on \x9b31m" in out.getvalue()
    assert r"[b]trial\x1b]0;x\x07" in out.getvalue()
    assert not set(out.getvalue()) & set("\x1b\x07\x9b")


def test_a_hostile_name_is_found_again(hostile: Path) -> None:
    """The command line that `show` suggests for a study with a line end in its name is one line."""
    with sqlite3.connect(hostile) as db:
        (name,) = db.execute("SELECT name FROM evokern_studies").fetchone()
    done = CliRunner().invoke(app, ["show", name, "--db", str(hostile)])
    assert done.exit_code == 0


def test_completion_offers_plain_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell puts a name into the command line as it is: a folder called `$(…)` is not offered."""
    from evokern.cli._options import complete_kernels

    monkeypatch.chdir(tmp_path)
    for name in ("x-1.a", "x$(id)", "x y", "x\x1b[2J", "x\ny"):
        (tmp_path / "kernels" / name).mkdir(parents=True)
        (tmp_path / "kernels" / name / "kernel.py").touch()
    assert complete_kernels("x") == ["x-1.a"]
