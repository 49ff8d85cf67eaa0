"""Shapes of a sweep as a distribution."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from evokern.errors import StudyError
from evokern.sweep import read_sweep
from evokern.sweep.check import check_sweep

HEAD = 'kernel = "attention"\ndevice = "sim:l4"\ntrials = 4\n'
RANGES = """[shapes]
count = 60
held_out = 20
seed = 3
[shapes.fields]
B = { least = 1, most = 16, scale = "log" }
H = [8, 16]
S = { least = 64, most = 2048, step = 64, scale = "log" }
D = 64
"""


def _sweep(folder: Path, text: str, **files: str):  # type: ignore[no-untyped-def]
    for name, content in files.items():
        (folder / name.replace("_", ".")).write_text(content)
    path = folder / "shapes.toml"
    path.write_text(HEAD + text)
    return read_sweep(path)


def _error(folder: Path, text: str, **files: str) -> str:
    with pytest.raises(StudyError) as caught:
        check_sweep(_sweep(folder, text, **files), folder / "db", bounded=False, allow_changes=False)
    return str(caught.value).replace(f"{folder}/", "")


def test_ranges_are_drawn_and_divided_the_same_way_each_time(tmp_path: Path) -> None:
    """The same seed gives the same shapes; another seed gives others; held-out shapes are not among the studies."""
    found, again = _sweep(tmp_path, RANGES), _sweep(tmp_path, RANGES)
    assert found == again
    assert (len(found.studies), len(found.held_out)) == (40, 20)
    texts = {one.problem for one in (*found.studies, *found.held_out)}
    assert len(texts) == 60
    assert texts != {one.problem for one in _sweep(tmp_path, RANGES.replace("seed = 3", "seed = 4")).studies}
    values = [dict(part.split("=") for part in text.split()) for text in texts]
    lengths = [int(one["S"]) for one in values]
    assert all(64 <= one <= 2048 and one % 64 == 0 for one in lengths)
    assert 200 < math.exp(sum(map(math.log, lengths)) / 60) < 520  # the middle of the logarithms is 362
    assert {one["H"] for one in values} == {"8", "16"}


def test_a_file_of_observed_shapes_gives_weights(tmp_path: Path) -> None:
    """Equal lines add up, in CSV and JSON alike; `count` keeps the heaviest shapes."""
    text = '[shapes]\nfile = "FILE"\ncount = 2\n'
    csv = "B,H,S,D,count\n1,8,64,64,2\n2,8,64,64,1\n1,8,64,64,3\n4,8,64,64,2\n"
    rows = ['{"B": 1, "H": 8, "S": 64, "D": 64, "weight": 5}', '{"D": 64, "B": 4, "H": 8, "S": 64, "weight": 2}']
    found = _sweep(tmp_path, text.replace("FILE", "seen.csv"), seen_csv=csv)
    assert {one.problem: one.weight for one in found.studies} == {"B=1 H=8 S=64 D=64": 5.0, "B=4 H=8 S=64 D=64": 2.0}
    other = _sweep(tmp_path, text.replace("FILE", "seen.jsonl"), seen_jsonl="\n".join(rows))
    assert {one.problem: one.weight for one in other.studies} == {one.problem: one.weight for one in found.studies}


def test_fields_complete_problems(tmp_path: Path) -> None:
    """A list of problems and a field give their product; weights of the problems stay."""
    text = 'problems = ["H=8 S=64 D=64", "H=16 S=64 D=64"]\n[weights]\n"H=8 S=64 D=64" = 3.0\n'
    found = _sweep(tmp_path, text + "[shapes]\nheld_out = 0.5\n[shapes.fields]\nB = { least = 1, most = 2 }\n")
    both = {one.problem: one.weight for one in (*found.studies, *found.held_out)}
    assert both == {f"H={h} S=64 D=64 B={b}": w for h, w in ((8, 3.0), (16, 1.0)) for b in (1, 2)}
    assert len(found.held_out) == 2


@pytest.mark.parametrize(
    ("text", "files", "message"),
    [
        (RANGES.replace("D = 64\n", ""), {}, "shapes.toml: [shapes.fields] lacks the field D"),
        (RANGES + "Z = 1\n", {}, "[shapes.fields]: attention has no problem field 'Z'"),
        (RANGES.replace("most = 16", "most = 0"), {}, "B: the range from 1 to 0 is empty; exchange least and most"),
        (RANGES.replace("H = [8, 16]", "H = []"), {}, "H is an empty list; add a value"),
        (RANGES.replace("H = [8, 16]", "H = { least = 8 }"), {}, "H lacks most"),
        (RANGES.replace("step = 64", "step = 0"), {}, "step is 0; use a whole number of at least 1"),
        (RANGES.replace('"log"', '"exp"'), {}, "scale is 'exp'; use 'linear' or 'log'"),
        (RANGES.replace("D = 64", "D = 96"), {}, "D=96 is not supported; choose from 64, 128"),
        (RANGES.replace("held_out = 20", "held_out = 60"), {}, "held_out = 60 leaves none of 60 shapes to search"),
        (RANGES.replace("count = 60", "count = 6000"), {}, "count is 6000; use at most 4096"),
        (RANGES.replace("count = 60\n", ""), {}, "B has scale = 'log', so add count"),
        ("[shapes]\nseed = 1\n", {}, "has neither fields nor a file"),
        ('[shapes]\nfile = "no.csv"\n', {}, "cannot read no.csv: No such file or directory"),
        ('[shapes]\nfile = "a.csv"\n', {"a_csv": "B,H,S\n1,8,64\n"}, "a.csv lacks the field D"),
        ('[shapes]\nfile = "a.csv"\n', {"a_csv": "B,H,S,D,count\n1,8,64,64,0\n"}, "a.csv, line 2: the weight is '0'"),
        ('[shapes]\nfile = "a.csv"\n', {"a_csv": "B,H,S,D\n1,8,64\n"}, "line 2: column D is empty"),
        ('[shapes]\nfile = "a.csv"\n', {"a_csv": "B,H,S,D\n1,8,9,64,5\n"}, "line 2 has more values than the 4 columns"),
        ('[shapes]\nfile = "a.csv"\n', {"a_csv": "B,H,S,D\n1,8,,64\n"}, "line 2: column S is empty"),
        ('[shapes]\nfile = "a.csv"\n', {"a_csv": "B,H,S,D\n1,8,64,96\n"}, "a.csv, line 2: B=1 H=8 S=64 D=96:"),
        ('[shapes]\nfile = "a.csv"\n', {"a_csv": "B,H,S,D\n"}, "a.csv contains no shapes"),
        ('[shapes]\nfile = "a.jsonl"\n', {"a_jsonl": '{"B": 1.5}\n'}, "a.jsonl, line 1: B is 1.5"),
        ('[shapes]\nfile = "a.jsonl"\n', {"a_jsonl": "[1]\n"}, "a.jsonl, line 1 is '[1]'"),
        ('[shapes]\nfile = "a.jsonl"\n', {"a_jsonl": '{"B": 1}\n{"S": 1}\n'}, "line 2: the field 'B' is set in some"),
    ],
)
def test_errors_name_the_place_and_the_remedy(tmp_path: Path, text: str, files: dict[str, str], message: str) -> None:
    """Each kind of bad file has a message of its own."""
    assert message in _error(tmp_path, text, **files)
