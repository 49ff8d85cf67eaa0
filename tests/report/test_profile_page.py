"""`profile --html`: the source with what each line costs beside it, in one file that runs and loads nothing."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path

import pytest
from columns_kernel import SOURCE, work_without_gpu
from hostile_texts import HOSTILE, Markup
from typer.testing import CliRunner

from evokern.analysis.profile.bound import Bottleneck
from evokern.analysis.profile.counters import CountedCandidate, CountedLaunch
from evokern.analysis.profile.nsight import METRICS
from evokern.analysis.profile.simulated import CandidateProfile, LaunchProfile, LineProfile
from evokern.cli._command import app
from evokern.cli.app import run  # noqa: F401 (registers every command)
from evokern.report.pages.profile_page import profile_page
from evokern.study.trial import Resources

BOUND = Bottleneck("memory-bound", ("l2 alone would take 2 of 3 µs",), {})


def line(number: int, time_us: float, file: str = "", **changes: float) -> LineProfile:
    """Return a line of a made-up profile."""
    plain = LineProfile(file, number, "text", time_us, "shared", 100, 3200, 0, 0, 0, 0, 0, 0.0, {})
    return replace(plain, **changes)


def candidate(*lines: LineProfile, words: str = "one") -> CandidateProfile:
    """Return a made-up profile of one launch."""
    launch = LaunchProfile(
        words, (4, 1, 1), (128, 1, 1), (0, 1), Resources(32, 0, 0, 0, 0, 0.5), 2, 3.0, {"l2": 2.0, "issue": 1.0}, "l2",
        {"barrier": 10.0, "async_copy": 0.0, "memory": 30.0, "pipes": 5.0}, lines,
    )  # fmt: skip
    bound = replace(BOUND, evidence=(words,))
    return CandidateProfile(
        words, words, "kernel.cu", {"TILE": words}, words, words, "sim:l4", True, 3.0, launch.terms_us, "l2",
        "memory-bound", (launch,), bound, words,
    )  # fmt: skip


def rows(page: str) -> dict[str, list[str]]:
    """Return id → cells of the rows of the listings."""
    found = re.findall(r'<tr id="([^"]*)"[^>]*>(.*?)</tr>', page, re.DOTALL)
    return {name: re.findall(r"<td[^>]*>(.*?)</td>", cells, re.DOTALL) for name, cells in found}


def test_counters_stand_beside_their_line() -> None:
    """Time, stalls, conflicts, sectors and divergence of a line, all launches together; other lines are text."""
    lines = (
        line(2, 1.0, shared_wavefronts=320, ideal_wavefronts=100, stall_clocks=44.4, divergent=25),
        line(3, 0.01, global_sectors=64, ideal_sectors=64),
        line(1, 0.5, "tile.cuh", global_sectors=64, ideal_sectors=32),
        line(0, 0.25),
    )
    once = candidate(*lines)
    page = profile_page(
        replace(once, launches=once.launches * 2), {"": "a\nb < c\nd\n", "tile.cuh": "e", "x.h": "f"}, "k.cu"
    )
    found = rows(page)
    assert found["k.cu:2"] == ["2", "2.00", "shared", "89", "640 (3.2×)", "", "200", "25 %", "b &lt; c"]
    assert found["k.cu:3"][5] == "128"
    assert found["k.cu:1"] == ["1", "", "", "", "", "", "", "", "a"]
    assert found["tile.cuh:1"][5] == "128 (2.0×)"
    assert not [name for name in found if name.startswith("x.h")], "a header that nothing runs of"
    assert re.findall(r'<a href="#([^"]*)">', page) == ["k.cu%3A2", "tile.cuh%3A1"]
    assert 'class="n conflict">640 (3.2×)' in page
    assert page.count('class="hot"') == 2
    assert "without a source line take 0.500 µs" in page
    assert "predicted" in page


def test_a_page_runs_and_loads_nothing() -> None:
    """No script, no link out, a policy that allows neither; colours follow the reader's light or dark."""
    page = profile_page(candidate(line(1, 1.0)), {"": "x"}, "kernel.cu")
    found = Markup(page)
    assert not {tag[0] for tag in found.tags} & {"script", "link", "img", "iframe", "object", "form"}
    assert not re.search(r"https?:|url\(|@import", page)
    assert "default-src 'none'" in page
    assert "prefers-color-scheme: dark" in page
    names = [tag[0] for tag in found.tags if tag[0] not in ("meta", "br", "hr", "!doctype")]
    assert sorted(name for name in names if name[0] != "/") == sorted(name[1:] for name in names if name[0] == "/")


def test_texts_do_not_become_markup() -> None:
    """A kernel's name, its source, its problems and file names are shown as they are."""
    plain = Markup(profile_page(candidate(line(1, 1.0), line(1, 0.5, "h")), {"": "x", "h": "y"}, "kernel.cu"))
    hostile = candidate(line(1, 1.0), line(1, 0.5, HOSTILE), words=HOSTILE)
    found = Markup(profile_page(hostile, {"": HOSTILE, HOSTILE: HOSTILE + "\x1b[2J"}, HOSTILE))
    assert found.tags == plain.tags
    assert "".join(found.texts).count(HOSTILE) >= 12
    assert "\x1b" not in "".join(found.texts)


def test_counters_of_a_gpu_have_no_lines() -> None:
    """Nsight Compute counts launches: the counters stand in a table, and the page says that lines have none."""
    values = {metric.key: 12.5 for metric in METRICS} | {METRICS[1].key: None}
    launch = CountedLaunch("k", (4, 1, 1), (128, 1, 1), values)
    counted = CountedCandidate(
        "trial 3", "k", {"TILE": 64}, "4096", "N=4096", "NVIDIA H200", 5.5, 6.1, values, (launch,), BOUND, "ncu …"
    )
    page = profile_page(counted, {"": "a\nb"}, "kernel.cu")
    assert rows(page)["kernel.cu:2"] == ["2", "b"]
    assert "k at N=4096 on NVIDIA H200" in page
    assert (counted.as_dict()["problem"], "in_words" in counted.as_dict()) == ("4096", False)
    assert all(metric.label in html.unescape(page) for metric in METRICS)
    assert '<td class="n">n/a</td>' in page
    assert "no counters per line" in page
    assert "predicted" not in re.sub(r"<style>.*</style>", "", page, flags=re.DOTALL)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the kernel `columns`, where there is no GPU."""
    return work_without_gpu(tmp_path, monkeypatch)


def test_profile_writes_the_page(here: Path) -> None:
    """The conflicts of a column stand beside the line that has them; the barrier's wait beside the barrier."""
    command = ["profile", "columns", "--device", "sim:l4", "--problem", "4096", "--set", "STRIDE=32", "--html"]
    done = CliRunner().invoke(app, [*command, "p.html"])
    assert (done.exit_code, "wrote p.html" in done.stderr) == (0, True)
    page = (here / "p.html").read_text(encoding="utf-8")
    found = rows(page)
    store = next(cells for name, cells in found.items() if name.startswith("tile.cuh:") and "value;" in cells[-1])
    assert store[4] == "4,096 (32.0×)"
    number = next(n for n, text in enumerate(SOURCE.splitlines(), 1) if "__syncthreads" in text)
    assert int(found[f"kernel.cu:{number}"][3].replace(",", "")) > 0
    refused = CliRunner().invoke(app, [*command, "nowhere/p.html"])
    assert (refused.exit_code, "another file with --html" in refused.stderr) == (2, True)
