"""`evokern profile`: counters per source line, what bounds a candidate, and which candidate is meant."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from columns_kernel import SOURCE, ColumnsGpu, work_without_gpu
from profile_command import profile, refused
from typer.testing import CliRunner

from evokern.api import search
from evokern.cli._command import app
from evokern.cli.app import run  # noqa: F401 (registers every command)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the kernel and its study; what these tests are about happens where there is no GPU."""
    return work_without_gpu(tmp_path, monkeypatch)


def _line(found: dict[str, Any], file: str, text: str) -> dict[str, Any]:
    return next(line for line in found["launches"][0]["lines"] if (line["file"], line["source"]) == (file, text))


@pytest.mark.parametrize(("stride", "wavefronts"), [(1, 1), (2, 2), (32, 32)])
def test_counters_are_those_of_the_line(here: Path, stride: int, wavefronts: int) -> None:
    """A line's wavefronts and sectors, scaled to the grid, are what its accesses need; a header's line is its own."""
    found = profile("columns", "--device", "sim:l4", "--problem", "4096", "--set", f"STRIDE={stride}")
    launch = found["launches"][0]
    assert 6 == len(launch["sampled_blocks"])
    store = _line(found, "tile.cuh", "tile[threadIdx.x * STRIDE] = value;")
    assert (3, 128 * wavefronts, 128) == (store["line"], store["shared_wavefronts"], store["ideal_wavefronts"])
    load = _line(found, "", "put(tile, x[i]);")
    assert (128 * 4, 128 * 4) == (load["global_sectors"], load["ideal_sectors"])
    assert sum(line["warp_instructions"] for line in launch["lines"]) == sum(
        count for line in launch["lines"] for count in line["pipes"].values()
    )
    waits = launch["waits_clocks"]
    stalls = sum(line["stall_clocks"] for line in launch["lines"])
    assert pytest.approx(waits["barrier"] + waits["async_copy"] + waits["memory"]) == stalls > 0


def test_divergence_is_counted_at_its_line(here: Path) -> None:
    """Instructions that half of a warp runs while the other half is elsewhere count as divergent."""
    whole = profile("columns", "--device", "sim:l4", "--problem", "64")
    half = profile("columns", "--device", "sim:l4", "--problem", "64", "--set", "SHARE=16")
    store = "if (threadIdx.x < SHARE) y[i] = tile[threadIdx.x * STRIDE];"
    assert 0 == _line(whole, "", store)["divergent"]
    assert _line(half, "", store)["divergent"] >= 2


def test_the_bound_is_the_largest_term(here: Path) -> None:
    """32-way bank conflicts cost the lines that have them; the predicted time contains each term."""
    plain = profile("columns", "--device", "sim:l4", "--problem", "1048576")
    conflicts = profile("columns", "--device", "sim:l4", "--problem", "1048576", "--set", "STRIDE=32")
    assert (True, "shared-memory-bound", "shared") == (
        conflicts["predicted"],
        conflicts["cause"],
        conflicts["bound"],
    )
    assert max(conflicts["terms_us"], key=conflicts["terms_us"].get) == "shared"
    assert conflicts["time_us"] >= max(conflicts["terms_us"].values())
    assert conflicts["time_us"] > plain["time_us"]
    assert {"tile.cuh", ""} == {line["file"] for line in conflicts["launches"][0]["lines"][:2]}
    assert ["shared", "shared"] == [line["resource"] for line in conflicts["launches"][0]["lines"][:2]]


def test_a_helpers_line_is_split_by_the_lines_that_call_it(here: Path) -> None:
    """A call site that is run three times pays three quarters of a helper's conflicts; calls in between are named."""
    (here / "kernels" / "columns" / "kernel.cu").write_text(
        SOURCE.replace(
            "  put(tile, x[i]);\n",
            "  put(tile, x[i] + 1);\n  __syncthreads();\n"
            "  for (int k = 0; k < 3; k++) {\n    through(tile, x[i]);\n    __syncthreads();\n  }\n",
        ).replace("\n", "\n__device__ inline void through(float* tile, float value) { put(tile, value); }\n", 1)
    )
    command = ("columns", "--device", "sim:l4", "--problem", "4096", "--set", "STRIDE=32")
    line = _line(profile(*command), "tile.cuh", "tile[threadIdx.x * STRIDE] = value;")
    thrice, once = line["calls"]
    assert ([["", 2], ["", 9]], [["", 6]]) == (thrice["calls"], once["calls"])
    assert "put(tile, x[i] + 1);" == once["source"]
    assert ("shared", pytest.approx(3.0)) == (line["resource"], thrice["time_us"] / once["time_us"])
    assert pytest.approx(line["time_us"]) == thrice["time_us"] + once["time_us"]
    assert line["warp_instructions"] == thrice["warp_instructions"] + once["warp_instructions"]
    text = CliRunner().invoke(app, ["profile", *command, "--all"]).stdout
    assert "  from kernel.cu:6  put(tile, x[i] + 1);" in text
    assert " put(tile, value); } < kernel.cu:9" in text


def test_call_sites_that_are_not_shown_are_counted(here: Path) -> None:
    """Of five call sites the three most expensive are shown, then how many others there are and what these take."""
    calls = "".join(f"  put(tile, x[i] + {k});\n  __syncthreads();\n" for k in range(4))
    (here / "kernels" / "columns" / "kernel.cu").write_text(
        SOURCE.replace("  put(tile, x[i]);\n", calls + "  put(tile, x[i]);\n")
    )
    command = ("columns", "--device", "sim:l4", "--problem", "1048576", "--set", "STRIDE=32")
    line = _line(profile(*command), "tile.cuh", "tile[threadIdx.x * STRIDE] = value;")
    assert (5, pytest.approx(line["time_us"])) == (len(line["calls"]), sum(call["time_us"] for call in line["calls"]))
    others = line["calls"][3:]
    issued = sum(call["warp_instructions"] for call in others)
    told = f"{sum(call['time_us'] for call in others):.3g} µs, {issued:,} warp instr.  from 2 other call sites"
    text = CliRunner().invoke(app, ["profile", *command]).stdout
    assert told in text
    assert 3 == sum("warp instr.  from kernel.cu:" in row for row in text.splitlines())
    text = CliRunner().invoke(app, ["profile", *command, "--all"]).stdout
    assert 5 == sum("warp instr.  from kernel.cu:" in row for row in text.splitlines())
    assert "other call site" not in text


@pytest.mark.thorough
def test_a_call_that_leaves_the_lines_resource_alone_has_no_part_in_it(here: Path) -> None:
    """A call of a helper may not load the resource that bounds its line, as in `attention`: it has 0 µs."""
    found = profile("attention-s512", "--device", "sim:l4")
    lines = [line for launch in found["launches"] for line in launch["lines"]]
    assert any(call["time_us"] == 0 for line in lines for call in line["calls"])


def test_the_text_shows_lines_terms_and_resources(here: Path) -> None:
    """A person sees the time as predicted, what bounds it, registers, occupancy, waits, and lines with their text."""
    result = CliRunner().invoke(app, ["profile", "columns", "--device", "sim:l4", "--problem", "4096", "--top", "2"])
    lines = result.stdout.splitlines()
    assert (0, "the default candidate of columns at N=4096 on sim:l4") == (result.exit_code, lines[0])
    assert lines[1].startswith("predicted time ")
    for part in ("registers", "occupancy", "waits", "sampled    6 of 128 blocks, scaled to all", "--top N"):
        assert part in result.stdout
    rows = [line for line in lines if "kernel.cu:" in line or "tile.cuh:" in line]
    assert 2 == len(rows)
    assert max(map(len, lines)) <= 120


def test_a_profile_is_short_unless_all_is_asked_for(here: Path) -> None:
    """Five lines of source by default, every one of the JSON's with `--all`."""
    every = profile("columns", "--device", "sim:l4", "--problem", "4096")["launches"][0]["lines"]
    assert len(every) > 5
    for options, shown in (((), 5), (("--all",), len(every))):
        text = CliRunner().invoke(app, ["profile", "columns", "--device", "sim:l4", "--problem", "4096", *options])
        rows = re.findall(r"(?m)^ *[\d.]+ +\S+ .*(?:\.cuh?:\d+ |\(no line\))", text.stdout)
        assert (len(rows) == shown) if options else (0 < len(rows) <= shown)


def test_wrong_results_are_told(here: Path) -> None:
    """Counters of a candidate that leaves work out are shown with a word about it."""
    source = here / "kernels" / "columns" / "kernel.cu"
    source.write_text(SOURCE.replace("tile[threadIdx.x * STRIDE];", "1 + tile[threadIdx.x * STRIDE];"))
    result = CliRunner().invoke(app, ["profile", "columns", "--device", "sim:l4", "--problem", "64"])
    assert "results are wrong: " in result.stdout
    assert profile("columns", "--problem", "64")["fault"]


def test_candidates_of_a_database(here: Path) -> None:
    """The champion by default, a trial by number, the study's problem, the chip that the study ran on."""
    from evokern.study.discovery import find_study

    search(find_study("mine"), db=here / "evokern.db", device=ColumnsGpu(), trials=6)
    champion = profile()
    assert ("sim:h200", "4096", 2) == (champion["device"], champion["problem"], champion["config"]["STRIDE"])
    assert "(the champion)" in champion["title"]
    trial = profile("mine", "--trial", "0", "--device", "sim:l4", "--problem", "64")
    assert ("sim:l4", "64") == (trial["device"], trial["problem"])
    assert trial["title"].startswith("trial 0 of mine")
    changed = profile("mine", "--set", "STRIDE=32")
    assert 32 == changed["config"]["STRIDE"]
    assert "the study ran on NVIDIA H200" in CliRunner().invoke(app, ["profile"]).stderr


def test_a_trial_runs_the_code_it_was_searched_with(here: Path) -> None:
    """Where the kernel's folder changed since, the copy in the database is profiled, once it is trusted."""
    from evokern.study.discovery import find_study

    search(find_study("mine"), db=here / "evokern.db", device=ColumnsGpu(), trials=2)
    source = here / "kernels" / "columns" / "kernel.cu"
    source.write_text(SOURCE.replace("put(tile, x[i]);", "put(tile, x[i]);  // changed"))
    assert "the code of kernel columns changed" in refused("--trial", "0")
    found = profile("--trial", "0", "--trust")
    assert "put(tile, x[i]);" in {line["source"] for line in found["launches"][0]["lines"]}


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ([], "there is no database evokern.db"),
        (["mine", "--trial", "3"], "there is no database evokern.db"),
        (["mien"], "there is no study or kernel 'mien'; known: mine"),
        (["columns", "--trial", "1", "--set", "STRIDE=1"], "--trial and --set both choose"),
        (["columns", "--set", "STRIDE=3"], "STRIDE cannot be '3'"),
        (["columns", "--problem", "0"], "N=0 is out of range"),
        (
            ["columns", "--problem", "1000000000", "--device", "sim:l4"],
            "use a smaller problem (--problem), or profile on",
        ),
        (["columns", "--device", "cuda:0"], "no GPU found: no NVIDIA driver is installed"),
        (["columns", "--device", "replay:x"], "device 'replay:x' has no counters"),
        (["columns", "--device", "sim:l4", "--keep", "a"], "omit --keep"),
        (["columns", "--device", "sim:l5"], "did you mean 'l4'?"),
    ],
)
def test_mistakes_are_told_with_the_remedy(here: Path, command: list[str], told: str) -> None:
    """Each mistake ends with exit code 2 and names the value and what to do."""
    assert told in refused(*command)


def test_a_gene_that_does_not_count_is_told(here: Path) -> None:
    """A gene that `--set` names and that is inactive is remarked on, for a kernel and for a study of a database."""
    from evokern.study.discovery import find_study

    declared = here / "kernels" / "columns" / "kernel.py"
    text, spare = declared.read_text(), 'Parameter("SPARE", (1, 2), when={"STRIDE": (2,)}),'
    declared.write_text(text.replace("default=32),", f"default=32), {spare}"))
    told = "SPARE=2 has no effect with STRIDE=1; it needs STRIDE=2"
    words = ("--device", "sim:l4", "--problem", "64", "--set", "SPARE=2")
    assert told in profile("columns", *words)["notes"]
    search(find_study("mine"), db=here / "evokern.db", device=ColumnsGpu(), trials=2)
    assert told in profile("mine", *words)["notes"]


def test_a_study_of_a_gpu_asks_for_a_chip(here: Path) -> None:
    """A study file for a GPU is profiled on the chip that is named, and no other is assumed."""
    path = here / "studies" / "mine.toml"
    path.write_text(path.read_text() + 'device = "cuda:0"\n')
    assert "--device sim:l4" in refused("mine")


def test_a_candidate_that_fails_is_no_profile(here: Path) -> None:
    """A candidate that crashes is refused with the line, and where to look."""
    source = here / "kernels" / "columns" / "kernel.cu"
    source.write_text(SOURCE.replace("y[i] =", "y[i + 100000000] ="))
    told = refused("columns", "--problem", "64")
    assert "out of bounds at line 7" in told
    assert "`evokern sanitize`" in told
