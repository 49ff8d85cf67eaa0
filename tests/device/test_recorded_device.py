"""The recorded device: answers do not depend on its disorder, and unusable recordings are said to be so."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import make_table_small
import pytest
from engine_helpers import small_table, study, tiny_table
from paths import DATA

from evokern.analysis.candidates import chip_of
from evokern.device import Request, Task
from evokern.device.opening import open_device
from evokern.device.recorded.recording import read_recording
from evokern.device.recorded.table import Table, TableDevice, measured
from evokern.errors import DeviceError, StudyError
from evokern.hardware.profiles import CHIPS
from evokern.store.records import SessionRecord
from evokern.study.trial import Outcome


def test_the_small_recording_is_what_its_script_writes() -> None:
    """The file under tests/data can be made again, bit for bit, and stays below 100 KB."""
    path = DATA / "table_small.json.gz"
    text = json.dumps(make_table_small.table(), separators=(",", ":"))
    assert gzip.decompress(path.read_bytes()).decode() == text
    assert path.stat().st_size <= 100_000


def test_the_small_recording_has_what_the_engine_must_bear() -> None:
    """Every outcome of a candidate, infeasible regions, equal machine code, and about one crash in ten."""
    table = small_table()
    outcomes = [answer.outcome for answer in table.answers.values()]
    assert len(outcomes) == 4320
    assert set(Outcome) - {Outcome.DUPLICATE, Outcome.SLOW, Outcome.LOST} == set(outcomes)
    failing = sum(outcome in (Outcome.CRASHED, Outcome.WRONG) for outcome in outcomes)
    running = sum(outcome is not Outcome.INFEASIBLE for outcome in outcomes)
    assert 0.08 < failing / running < 0.15
    prints = [answer.fingerprint for answer in table.answers.values() if answer.fingerprint]
    assert len(set(prints)) < len(prints)


def test_a_space_of_a_recording_agrees_with_its_violations() -> None:
    """What is not feasible names its constraint, also where the recording lists feasible configurations only."""
    table = small_table()
    space = table.space()
    assert all((table.violation(config) is None) == space.feasible(config) for config in space.grid())
    listed = Table("listed", table.genes, dict([next(iter(table.answers.items()))]), table.profile)
    only = next(iter(listed.answers))
    assert listed.space(listed=True).table == (only,)
    assert listed.space().table is None
    other = only.replace(UNROLL=2)
    assert not listed.space().feasible(other)
    violation = listed.violation(other)
    assert violation is not None
    assert violation.constraint == "recorded"


def test_the_recorded_chip_is_told() -> None:
    """Its peak rates draw the roofline of a study whose device is the recording."""
    table = small_table()
    device = TableDevice(table)
    report = device.start(Task(table.kernel(), (), study()))
    device.close()
    session = SessionRecord("u", "s", "2026-11-24", 1.0, environment=report.environment)
    assert chip_of(f"replay:{table.name}", [session]) == table.profile
    with pytest.raises(StudyError, match=rf"{table.name}.* is unknown.*NVIDIA L4"):
        chip_of(f"replay:{table.name}", [])


@pytest.mark.parametrize("workers", [1, 4])
def test_results_are_the_recorded_ones_in_any_order(workers: int) -> None:
    """Each request is answered once, by its number, with what was recorded."""
    table = tiny_table()
    device = TableDevice(table, workers=workers, delay_s=0.002)
    device.start(Task(table.kernel(), (), study()))
    runs = [config for config in table.answers if table.violation(config) is None]
    for number, config in enumerate(runs):
        device.submit(Request(number, config))
    answers = {}
    deadline = time.monotonic() + 20
    while len(answers) < len(runs) and time.monotonic() < deadline:
        answers |= {answer.number: answer.evaluation for answer in device.poll(0.1)}
    device.close()
    device.close()
    assert [table.answers[config] for config in runs] == [answers[number] for number in range(len(runs))]
    assert device.poll(0.0) == []
    assert device.busy_s() > 0


def test_device_names_open_devices() -> None:
    """`replay:FILE` opens a recording; anything unknown names what there is."""
    device = open_device(f"replay:{DATA / 'table_small.json.gz'}")
    assert (device.identity, device.profile, device.predicted) == ("replay:table_small", CHIPS["l4"], False)
    for name in ("cuba:0", "", "replay"):
        with pytest.raises(DeviceError, match="replay:FILE"):
            open_device(name)


def _first(table: dict[str, Any], time_us: object) -> dict[str, Any]:
    """Return a table whose first measured row has another time."""
    rows = [list(row) for row in table["rows"]]
    row = next(row for row in rows if "measured" in row)
    row[row.index("measured") + 1] = time_us
    return table | {"rows": rows}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table | {"format": "t4"}, "unknown format 't4'"),
        (lambda table: table | {"rows": [*table["rows"], table["rows"][0]]}, "row .* repeats .*; keep one"),
        (lambda table: _first(table, -1.0), "its time is -1.0; .* above 0"),
        (lambda table: _first(table, 0), "its time is 0; .* above 0"),
        (lambda table: _first(table, True), "its time is True; use a number"),
        (lambda table: _first(table, "5"), "its time is '5'; use a number"),
        (lambda table: _first(table, float("nan")), "its time is nan; .* above 0"),
        (lambda table: _first(table, 10**400), "its time is a number of .* bits"),
        (lambda table: table | {"baseline_us": -2}, "baseline_us is -2; .* above 0"),
        (lambda table: table | {"name": 3}, "name is 3; use a string"),
        (lambda table: table | {"name": "\ud800"}, "surrogates not allowed"),
        (lambda table: table | {"rows": [[-1] * 8 + ["measured", 1.0, "a"]]}, "3 values.* index -1"),
        (lambda table: table | {"genes": table["genes"] * 2}, "the index .* is invalid"),
        (lambda table: table | {"rows": []}, "no feasible configuration"),
        (lambda table: table | {"rows": [[0, 0]]}, "malformed"),
        (lambda table: table | {"rows": [[9] * 8 + ["measured", 1.0, "a"]]}, "3 values.* index 9"),
        (lambda table: {"format": table["format"]}, "malformed"),
        (lambda table: table | {"chip": "voodoo2"}, "voodoo2"),
        (lambda table: [1, 2], r"unknown format \(found: list\)"),
    ],
)
def test_unusable_recordings_are_said_to_be_so(change: object, message: str, tmp_path: Path) -> None:
    """One message with the file and what is wrong with it."""
    path = tmp_path / "table.json"
    path.write_text(json.dumps(change(make_table_small.table())))  # type: ignore[operator]
    with pytest.raises(DeviceError, match=message):
        read_recording(path)


def test_truncated_and_missing_files_are_said_to_be_so(tmp_path: Path) -> None:
    """A download that stopped half-way, or a wrong path."""
    whole = (DATA / "table_small.json.gz").read_bytes()
    path = tmp_path / "half.json.gz"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DeviceError, match="truncated"):
        read_recording(path)
    with pytest.raises(DeviceError, match="there is no recording"):
        read_recording(tmp_path / "none.json.gz")


def test_a_table_refuses_what_it_does_not_have() -> None:
    """A configuration outside the recording is a mistake of the caller, not an outcome."""
    table = tiny_table()
    device = TableDevice(Table("one", table.genes, {table.space().default(): measured(1.0)}, table.profile))
    device.start(Task(table.kernel(), (), study()))
    with pytest.raises(DeviceError, match=r"does not contain .*TILE.*64"):
        device.submit(Request(0, table.space().default().replace(TILE=64)))
    device.close()
