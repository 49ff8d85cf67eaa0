"""The panel of a search: it fits every terminal, tells what matters first, and leaves nothing behind."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_helpers import study
from hostile_texts import HOSTILE
from paths import DATA
from rich.console import Console
from stored_studies import example_progress
from terminal_reader import Screen, Session

import evokern
from evokern.cli._layout import ASCII, UNICODE, Glyphs, panel
from evokern.cli._output import Output
from evokern.cli._screen import LiveScreen, terminal_size
from evokern.cli.panel import Watcher
from evokern.declaration.genes import Config, Parameter
from evokern.device.contract import ExecutorState, StartStep
from evokern.progress import baseline_text, sparkline
from evokern.search import Progress
from evokern.search._failures import LastFailures
from evokern.study.trial import Evaluation, Outcome, Proposal, Trial

RECORDING = DATA / "table_small.json.gz"
GENES = tuple(Parameter(f"GENE_{n}", (1, 2, 4)) for n in range(34))
SIZES = ((79, 23), (59, 23), (199, 49), (111, 30), (40, 12), (27, 7), (20, 4), (3, 2), (1, 1))


def progress_with(**changes: Any) -> Progress:
    """Return what a search of 34 genes tells, of which its champion changed two."""
    best = example_progress().best
    assert best is not None
    config = Config({gene.name: 1 for gene in GENES} | {"GENE_3": 4, "GENE_33": 2})
    full = replace(
        example_progress(), genes=GENES, best=replace(best, proposal=Proposal(config)), in_flight=5, stages=(3, 2),
        improvements=((1.0, 50.0), (3.0, 20.0), (40.0, 5.2), (60.0, 5.0)), failure_counts=(3, 1),
        last_failures=("trial 11 wrong: o[0, 5] is 1.02441, expected 1.02692 within 0.00203; 1088 of 52428", "trial 9"),
        rejections={"shared_memory_per_block": 44, "registers": 3},
    )  # fmt: skip
    return replace(full, **changes)


def shown(progress: Progress, width: int, height: int, glyphs: Glyphs = UNICODE, since_s: float = 0.0) -> list[str]:
    """Return the lines of the panel as a terminal shows them."""
    console = Console(width=width, file=io.StringIO(), record=True, legacy_windows=False)
    console.print(panel(progress, width, height, glyphs, since_s), width=width, no_wrap=True, crop=True)
    return console.export_text().splitlines()


@pytest.mark.parametrize(("width", "height"), SIZES, ids=str)
@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
@pytest.mark.parametrize("event", ["opening", "trial"])
def test_the_panel_fits(width: int, height: int, glyphs: Glyphs, event: Any) -> None:
    """At every size no line is too long, none is too many, and the border is whole; hostile names change nothing."""
    hostile = HOSTILE + "\x1b[2J\r\n" + "ä" * 300
    for name in ("a search", hostile):
        step = StartStep(f"baseline 2 of 4: {name}", 3, 7) if event == "opening" else None
        progress = progress_with(
            event=event, study=name, device=name, last_failures=(name, name), baseline=(name, 9.0), step=step
        )
        lines = shown(progress, width, height, glyphs)
        assert len(lines) <= height
        assert max(map(len, lines)) <= width
        assert not any(set(line) & set("\x1b\r") for line in lines)
        if width >= 40:
            edges = ("+", "|") if glyphs.ascii else ("╭╰", "│")
            assert all(line[0] in "".join(edges) and len(line) == width for line in lines)
        if glyphs.ascii:
            assert all(line.isascii() for line in lines)


def test_the_panel_tells_changed_genes_only() -> None:
    """Two of 34 genes differ from the default's."""
    text = "\n".join(shown(progress_with(), 79, 23))
    assert "GENE_3=4 GENE_33=2" in text
    assert text.count("GENE_") == 2


def test_what_matters_most_stays() -> None:
    """Where there is little room the time, the best and what happens now stay; what was turned away goes first."""
    whole = "\n".join(shown(progress_with(), 79, 23))
    words = ("elapsed", "baseline", "best ", "best so far", "champion", "speed", "outcomes", "rejected", "failures")
    assert all(word in whole for word in words)
    small = "\n".join(shown(progress_with(), 79, 7))
    assert all(word in small for word in ("1 min 15 s of 2 min 30 s", "5.00 µs (trial 4), 1.80×", "SDPA 9.00 µs"))
    assert "rejected" not in small
    narrow = "\n".join(shown(progress_with(), 30, 9))
    assert "best 5.00 µs (trial" in narrow


def test_several_executors_are_told_with_what_happened_to_them() -> None:
    """How many work and how fast, then those that do not; of a sweep how its studies stand."""
    found = (ExecutorState("a:0", 190.0), ExecutorState("a:1", 211.4), ExecutorState("b:0", 20.0, "set aside"))
    text = "\n".join(shown(progress_with(executors=found, sweep="3 studies: 1 finished, 2 waiting"), 110, 30))
    assert "executors    2 of 3 working, 190 to 211 trials/min each; b:0 set aside" in text
    assert "sweep        3 studies: 1 finished, 2 waiting" in text
    text = "\n".join(shown(progress_with(executors=found[2:]), 110, 30))
    assert "executors    0 of 1 working; b:0 set aside" in text
    assert "executors" not in "\n".join(shown(progress_with(), 110, 30))


def test_predicted_times_in_the_panel_are_labelled() -> None:
    """Each time of a simulated device says that it is predicted: champion, baseline and the best over time."""
    text = "\n".join(shown(progress_with(predicted=True), 120, 30))
    assert "SDPA 9.00 µs predicted" in text
    assert "5.00 µs predicted (trial 4)" in text
    assert "50.0 to 5.00 µs predicted, last 15 s ago" in text
    assert text.count("µs") == text.count("µs predicted")


def test_the_best_over_time_is_a_line_of_blocks() -> None:
    """It falls on a logarithmic scale from the first to the last, and stays level where nothing better came."""
    assert sparkline([(0.0, 16.0), (5.0, 4.0), (10.0, 1.0), (20.0, 1.0)], 5) == "█▅▁▁▁"
    assert sparkline([(3.0, 5.0), (9.0, 5.0)], 4) == "▁▁▁▁"
    assert sparkline([(3.0, 5.0), (3.0, 5.0)], 1) == "▁"
    assert "best so far" not in "\n".join(shown(progress_with(improvements=(), best=None), 79, 23))


def test_the_panel_says_what_happens_before_the_first_result() -> None:
    """Steps of the start with a bar and their time, then what the first candidates do; with a result neither."""
    step = StartStep("baseline 2 of 4: SDPA flash", 4, 8)
    opening = "\n".join(shown(progress_with(event="opening", trials=0, step=step), 79, 23, since_s=12.4))
    assert "baseline 2 of 4: SDPA flash (12 s)" in opening
    line = next(line for line in opening.splitlines() if "now" in line)
    bar = opening.splitlines()[opening.splitlines().index(line) + 1]
    assert bar.count("━") == bar.count("─") == 30
    begun = "\n".join(shown(progress_with(event="idle", trials=0, outcomes={}), 79, 23))
    assert "first candidates: 3 compiling, 2 compiled and on the device" in begun
    assert "first candidates" not in "\n".join(shown(progress_with(), 79, 23))
    resumed = "\n".join(shown(progress_with(event="idle", resumed=12), 79, 23))
    assert "first candidates: 3 compiling" in resumed


def _failed(number: int, message: str, outcome: Outcome = Outcome.WRONG) -> Trial:
    evidence = {"check": "tolerance", "message": message, "error": message}
    return Trial(number, Proposal(Config({"A": number})), Evaluation(outcome, evidence=evidence))


def test_failures_that_differ_in_numbers_only_are_one() -> None:
    """The last of each kind is told, with how many there were; a diagnosis that makes two kinds one joins them."""
    failures = LastFailures()
    for number, value in enumerate(("1.5", "-3e+4", "nan", "0x7f00")):
        failures.add(_failed(number, f"o[{number}, 7] is {value}, expected 1.2"))
    failures.add(_failed(4, "some output was never written"))
    failures.add(_failed(5, "CUDA_ERROR_ILLEGAL_ADDRESS", Outcome.CRASHED))
    assert [(one.trial.number, one.count) for one in failures.newest] == [(5, 1), (4, 1), (3, 4)]
    failures.annotate({5: _failed(5, "some output was never written")})
    assert [(one.trial.number, one.count) for one in failures.newest] == [(5, 2), (3, 4)]
    for number in range(20):
        failures.add(_failed(number, "abcdefghijklmnopqrstuvwxyz"[number]))
    assert len(failures.newest) == 8


def test_a_search_tells_kinds_of_failures_and_improvements(tmp_path: Path) -> None:
    """What `on_progress` hears: no slow trial among the failures, each kind once, every champion with its time."""
    heard: list[Progress] = []
    device = f"replay:{RECORDING}"
    evokern.search(study(), db=tmp_path / "r.db", device=device, trials=60, seed=1, on_progress=heard.append)
    last = heard[-1]
    assert (
        len(last.last_failures) == len(last.failure_counts) == len({text.split(":")[1] for text in last.last_failures})
    )
    assert sum(last.failure_counts) == sum(last.outcomes.values()) - sum(
        last.outcomes.get(name, 0) for name in ("measured", "duplicate", "slow", "infeasible")
    )
    assert last.best is not None
    assert last.improvements[-1][1] == last.best.evaluation.time_us
    times = [time_us for _, time_us in last.improvements]
    assert times == sorted(times, reverse=True)
    assert {gene.name for gene in last.genes} == set(last.best.config)


# ---- on a terminal


@pytest.fixture
def terminal() -> Iterator[tuple[Any, Callable[[], Screen]]]:
    """A pseudo-terminal of 30 × 8: the stream to write on, and what its screen shows by now."""
    import pty

    leader, follower = pty.openpty()
    os.set_blocking(leader, False)
    screen = Screen(30, 8)

    def now() -> Screen:
        end = time.monotonic() + 0.05
        while time.monotonic() < end:
            try:
                screen.feed(os.read(leader, 65536).decode())
            except BlockingIOError:
                time.sleep(0.002)
        return screen

    with os.fdopen(follower, "w", encoding="utf-8") as stream:
        yield stream, now
    os.close(leader)


def _screen(stream: Any, monkeypatch: pytest.MonkeyPatch, lines: list[str], size: list[int]) -> LiveScreen:
    """Return a screen that draws `lines` on a terminal of `size`, whenever it is asked to."""
    monkeypatch.setattr("evokern.cli._screen.terminal_size", lambda _stream: (size[0], size[1]))
    monkeypatch.setattr("evokern.cli._screen.REFRESH_S", 60.0)
    monkeypatch.setattr("sys.stderr", stream)
    stream.write("before\n")
    stream.flush()
    screen = LiveScreen(stream, lambda columns, height: [line[: columns - 1] for line in lines])
    while not screen._widths:
        time.sleep(0.001)
    return screen


def test_frames_are_drawn_in_place(terminal: tuple[Any, Callable[[], Screen]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer and shorter frames replace one another, prints go above them, and at the end nothing is left of them."""
    stream, now = terminal
    lines, size = ["+--+", "|ab|", "+--+"], [30, 8]
    screen = _screen(stream, monkeypatch, lines, size)
    assert now().text == "before\n+--+\n|ab|\n+--+\n"
    lines[:] = ["+-+", "|a|", "|b|", "+-+"]
    screen._draw()
    assert now().text == "before\n+-+\n|a|\n|b|\n+-+\n"
    print("a note", file=sys.stderr)
    assert now().text == "before\na note\n"
    lines[:] = ["++"]
    screen._draw()
    assert now().text == "before\na note\n++\n"
    print("half a", end="", file=sys.stderr)
    screen._draw()
    print(" line", file=sys.stderr)
    screen._draw()
    assert now().text == "before\na note\nhalf a line\n++\n"
    screen.close()
    screen.close()
    assert now().text == "before\na note\nhalf a line\n"
    assert sys.stderr is stream


def test_what_the_terminal_echoes_leaves_no_border(
    terminal: tuple[Any, Callable[[], Screen]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`^C` stands below the frame, where it moves nothing, and goes with it."""
    stream, now = terminal
    screen = _screen(stream, monkeypatch, ["+" + "-" * 27 + "+"] * 7, [30, 8])
    now().feed("^C")
    screen.close()
    assert (now().text, now().history) == ("", ["before"])


@pytest.mark.parametrize(("columns", "height"), [(12, 8), (60, 8), (30, 5), (10, 20)], ids=str)
def test_a_terminal_may_be_resized(
    columns: int, height: int, terminal: tuple[Any, Callable[[], Screen]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the next drawing one frame stands on the screen, wide or narrow; after the end none."""
    stream, now = terminal
    lines, size = ["+" + "-" * 27 + "+", "|" + "." * 27 + "|"], [30, 8]
    screen = _screen(stream, monkeypatch, lines, size)
    now().resize(columns, height)
    size[:] = [columns, height]
    screen._draw()
    assert now().text == "before\n" + "".join(f"{line[: columns - 1]}\n" for line in lines)
    screen.close()
    assert now().text == "before\n"


def test_a_stopped_job_does_not_scribble(
    terminal: tuple[Any, Callable[[], Screen]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the background nothing is drawn; in the foreground again the frame stands below what a shell wrote."""
    stream, now = terminal
    screen = _screen(stream, monkeypatch, ["+--+"], [30, 8])
    front = [False]
    monkeypatch.setattr("evokern.cli._screen._in_foreground", lambda _stream: front[0])
    stream.write("[1]+ Stopped\n")
    stream.flush()
    screen._draw()
    assert now().text == "before\n+--+\n[1]+ Stopped\n"
    front[0] = True
    screen._draw()
    assert now().text == "before\n+--+\n[1]+ Stopped\n+--+\n"
    stream.write("$ fg\n")
    stream.flush()
    os.kill(os.getpid(), signal.SIGCONT)
    screen._draw()
    assert now().text.endswith("$ fg\n+--+\n")
    screen.close()
    assert now().text.endswith("$ fg\n")


def test_a_terminal_that_is_gone_ends_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be written is given up."""
    import pty

    leader, follower = pty.openpty()
    stream = os.fdopen(follower, "w", encoding="utf-8")
    screen = _screen(stream, monkeypatch, ["+--+"], [30, 8])
    os.close(leader)
    assert not screen._draw_or_give_up()
    screen.close()
    with pytest.raises(OSError, match="Input/output"):
        stream.close()


def test_a_panel_that_cannot_be_drawn_ends_no_search(caplog: pytest.LogCaptureFixture) -> None:
    """A defect of the panel's is said once, and the search goes on without it."""
    screen = LiveScreen(io.StringIO(), lambda columns, height: [str(1 // 0)])
    screen.close()
    assert "cannot draw the panel" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_the_size_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the terminal tells none it is COLUMNS × LINES, or 80 × 24; variables make a known one smaller only."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("LINES", raising=False)
    assert terminal_size(io.StringIO()) == (80, 24)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("LINES", "x")
    assert terminal_size(io.StringIO()) == (60, 24)
    monkeypatch.setattr("os.get_terminal_size", lambda _number: os.terminal_size((40, 50)))
    with Path(os.devnull).open("w", encoding="utf-8") as stream:
        assert terminal_size(stream) == (40, 50)


def _searching(folder: Path) -> Callable[[], int]:
    """Return a search as a command that goes on until it is stopped: answers come 20 ms apart."""

    def work() -> int:
        from evokern.cli._command import run_command
        from evokern.device.recorded.recording import read_recording
        from evokern.device.recorded.table import TableDevice

        device = TableDevice(read_recording(RECORDING), delay_s=0.02)
        output = Output()

        def search() -> int:
            with Watcher(output) as watch:
                result = evokern.search(
                    study(), db=folder / "r.db", device=device, budget="1h", seed=1, sampler="random", on_progress=watch
                )
            output.print_line(f"ended: {result.end}")
            return 130 if result.interrupted else 0

        return run_command(output, search)

    return work


@pytest.mark.parametrize(
    ("how", "columns"), [("^C", 80), (signal.SIGTERM, 60), (signal.SIGHUP, 200)], ids=["ctrl-c", "sigterm", "sighup"]
)
def test_an_interrupted_search_leaves_a_clean_terminal(how: Any, columns: int, tmp_path: Path) -> None:
    """No border, no line of the panel, no hidden cursor; what was said before and the result stand there."""
    session = Session(_searching(tmp_path), columns, 24)
    session.wait_for(lambda text: "best so far" in text and "trials/min" in text)
    text = session.screen.text.splitlines()
    assert sum(line.startswith("╭") for line in text) == 1
    assert max(map(len, text)) < columns
    assert len(text) <= 24
    if how == "^C":
        session.type(b"\x03")
    else:
        session.kill(how)
    assert session.ended() == 130
    left = "\n".join([*session.screen.history, session.screen.text])
    assert not set(left) & set("╭╰│█▁━")
    assert "elapsed" not in left
    assert "ended: interrupted" in left
    assert not session.screen.hidden


@pytest.mark.parametrize(
    ("environment", "drawn"),
    [({"TERM": "dumb"}, False), ({"NO_COLOR": "1"}, True), ({"PYTHONIOENCODING": "ascii"}, True)],
    ids=["dumb", "no colour", "ascii"],
)
def test_terminals_of_all_kinds(environment: dict[str, str], drawn: bool, tmp_path: Path) -> None:
    """One that cannot draw in place gets lines; NO_COLOR gets no colour, an ASCII terminal nothing but ASCII."""
    session = Session(_searching(tmp_path), 80, 24, **environment)
    session.wait_for(lambda text: ("best so far" if drawn else " trials | best ") in text)
    text = session.screen.text
    assert drawn == ("elapsed" in text)
    assert ("PYTHONIOENCODING" in environment) == text.isascii()
    session.type(b"\x03")
    assert session.ended() == 130
    coloured = any(f"3{colour}m".encode() in session.sent for colour in range(8))
    assert coloured == ("PYTHONIOENCODING" in environment)


def test_a_rejected_baseline_is_named() -> None:
    """A baseline that failed is never reported as one that was not measured."""
    error = "wrong (check tolerance, largest error 3 × the tolerance): y[0] is 4, expected 1"
    progress = replace(example_progress(), baseline=None, rejected_baselines={"cudnn": error})
    assert baseline_text(progress) == f"baseline cudnn was rejected: {error}"
    assert baseline_text(replace(progress, rejected_baselines={})) == "not measured"
