"""The current step of a command: printed on stderr while the command prints nothing else."""

from __future__ import annotations

import time

import pytest

from evokern.cli import _output
from evokern.cli._output import Output
from evokern.events import begin_step


def test_a_silent_command_says_what_it_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After the silence, each line names the step and the seconds; other output starts the silence anew."""
    monkeypatch.setattr(_output, "SILENCE_S", 0.08)
    output = Output()
    with output.steps():
        begin_step("compiling")
        time.sleep(0.3)
        told = capsys.readouterr().err
        assert told.startswith("compiling … 0 s\n")
        for _ in range(10):
            output.print_line("result")
            time.sleep(0.02)
        assert capsys.readouterr().err == ""


@pytest.mark.parametrize("output", [Output(json=True), Output(quiet=True)])
def test_no_step_is_printed_where_notes_are_hidden(
    output: Output, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--json` and `--quiet` hide it."""
    monkeypatch.setattr(_output, "SILENCE_S", 0.02)
    with output.steps():
        time.sleep(0.1)
    assert capsys.readouterr().err == ""
