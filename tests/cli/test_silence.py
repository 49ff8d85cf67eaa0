"""A command that prints nothing for some seconds says what it does."""

from __future__ import annotations

import sys
import time

import pytest

from evokern.cli import _silence
from evokern.cli._command import run_command
from evokern.cli._output import Output
from evokern.events import current_step, step


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("FIRST_S", 0.05), ("EVERY_S", 0.05), ("_POLL_S", 0.01)):
        monkeypatch.setattr(_silence, name, seconds)


def _printed(output: Output, capsys: pytest.CaptureFixture[str], text: str | None, seconds: float = 0.2) -> list[str]:
    def work() -> int:
        with step(text):
            time.sleep(seconds)
        print("the result")
        return 0

    assert run_command(output, work) == 0
    found = capsys.readouterr()
    assert found.out == "the result\n"
    return found.err.splitlines()


def test_a_long_step_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """The step and its seconds are printed on stderr, again and again, and stdout stays as it was."""
    found = _printed(Output(), capsys, "compiling kernel.cu")
    assert len(found) >= 2
    assert set(found) == {"compiling kernel.cu … (0 s)"}


def test_a_step_without_a_name_is_still_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """A command that names no step tells at least that it works."""
    assert _printed(Output(), capsys, "")[0] == "still working … (0 s)"


@pytest.mark.parametrize("output", [Output(quiet=True), Output(json=True)])
def test_quiet_and_json_print_no_progress(output: Output, capsys: pytest.CaptureFixture[str]) -> None:
    """Programs that read stderr are not disturbed."""
    assert _printed(output, capsys, "compiling kernel.cu") == []


def test_waiting_for_requests_is_no_silence(capsys: pytest.CaptureFixture[str]) -> None:
    """A server that waits prints nothing."""
    with step(None):  # from the start, because a busy machine may take longer than the silence to reach the inner step
        assert _printed(Output(), capsys, None) == []


def test_output_starts_the_time_again(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever prints is not silent."""
    output = Output()

    def work() -> int:
        for _ in range(20):
            output.print_line("row")
            time.sleep(0.01)
        return 0

    run_command(output, work)
    assert capsys.readouterr().err == ""


def test_a_failure_leaves_no_step_behind() -> None:
    """Steps nest, and end with their context."""
    with pytest.raises(ValueError, match="x"), step("outer"), step("inner"):
        assert current_step() is not None and current_step()[0] == "inner"  # type: ignore[index]
        raise ValueError("x")
    assert current_step() == ("", 0.0)
    assert "evokern-silence" not in [thread.name for thread in sys.modules["threading"].enumerate()]


def test_the_time_before_the_command_counts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time before the command belongs to its silence."""
    monkeypatch.setattr(_silence, "FIRST_S", 60.0)
    monkeypatch.setattr(_silence.SILENCE, "started_s", 61.0)
    assert _printed(Output(), capsys, "")[0] == "still working … (0 s)"
    monkeypatch.setattr(_silence.SILENCE, "started_s", 1.0)
    assert _printed(Output(), capsys, "") == []
    assert 0 < _silence.process_age_s() < 24 * 3600
