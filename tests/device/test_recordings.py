"""Recordings of other tools become tables: failures count, violated constraints do not, and bad files are named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_helpers import small_table, study
from kernel_tuner_files import kernel_tuner_cache, write_json

from evokern.api import search
from evokern.declaration.genes import Config
from evokern.device.recorded.recording import read_recording
from evokern.device.recorded.table import TableDevice
from evokern.errors import DeviceError, StudyError
from evokern.export.t4 import t4
from evokern.store import database_of, dumps, open_readonly, open_recording
from evokern.study.trial import Outcome


def t4_file() -> dict[str, Any]:
    """The same space as other tools write it in T4."""
    invalidity = {
        "RuntimeFailedConfig": "runtime",
        "CompilationFailedConfig": "compile",
        "InvalidConfig": "constraints",
    }
    results = []
    for record in kernel_tuner_cache()["cache"].values():
        results.append(
            {
                "configuration": {name: record[name] for name in ("block_size_x", "use_padding", "layout")},
                "times": {"compilation": 500.0, "benchmark": 100.0, "runtimes": []},
                "invalidity": invalidity.get(record["time"], "correct"),
                "correctness": 1,
                "objectives": ["time"],
                "measurements": [{"name": "time", "value": record["time"], "unit": "ms"}],
            }
        )
    return {"schema_version": "1.0.0", "metadata": {"timeunit": "milliseconds"}, "results": results}


@pytest.mark.parametrize("name", ["toy.json", "toy.json.gz"])
@pytest.mark.parametrize("content", [kernel_tuner_cache, t4_file])
def test_both_formats_give_the_same_table(content: Callable[[], object], name: str, tmp_path: Path) -> None:
    """Times in µs, durations in seconds, failures with their kind; a violated constraint is no configuration."""
    table = read_recording(write_json(tmp_path / name, content()))
    assert table.name == "toy"
    outcomes = [answer.outcome for answer in table.answers.values()]
    assert len(outcomes) == 14
    assert {o: outcomes.count(o) for o in set(outcomes)} == {
        Outcome.MEASURED: 12,
        Outcome.CRASHED: 1,
        Outcome.COMPILE_ERROR: 1,
    }
    best = Config({"block_size_x": 32, "use_padding": 1, "layout": "column"})
    assert table.optimum_us == table.answers[best].time_us == pytest.approx(600.0)
    assert set(table.seconds.values()) == {0.6}
    assert not table.space().feasible(best.replace(block_size_x=256, use_padding=0))
    assert [(gene.name, gene.layer) for gene in table.genes] == [
        ("block_size_x", "parameter"),
        ("use_padding", "parameter"),
        ("layout", "mutation"),
    ]


def test_the_chip_of_a_recording_keeps_its_name(tmp_path: Path) -> None:
    """A model that is not listed is not passed off as the listed one it resembles."""
    assert (
        read_recording(write_json(tmp_path / "toy.json", kernel_tuner_cache())).profile.model == "NVIDIA A100-PCIE-40GB"
    )


def _without(content: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name != key}


def _first_record(content: dict[str, Any], **changes: Any) -> dict[str, Any]:
    first = next(iter(content["cache"]))
    content["cache"][first] = {**content["cache"][first], **changes}
    return content


def _all_fail(content: dict[str, Any]) -> dict[str, Any]:
    for record in content["cache"].values():
        record["time"] = "RuntimeFailedConfig"
    return content


def _first_result(content: dict[str, Any], **changes: Any) -> dict[str, Any]:
    content["results"][3] = {**content["results"][3], **changes}
    return content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"rows": []}, r"unknown format \(found: rows\); .*Kernel Tuner.*T4"),
        (7, r"unknown format \(found: int\)"),
        (_all_fail(kernel_tuner_cache()), "no measured configuration"),
        (kernel_tuner_cache() | {"cache": {}}, "nothing to search"),
        (kernel_tuner_cache() | {"tune_params_keys": ["block_size_x", "blok"]}, "unknown gene 'blok'.*block_size_x"),
        (_first_record(kernel_tuner_cache(), block_size_x=48), "block_size_x .*48.*known: 32, 64"),
        (_without(_first_record(kernel_tuner_cache()), "tune_params"), "unknown format"),
        (kernel_tuner_cache() | {"cache": {"a": {"time": 1.0}}}, "configuration a lacks the gene 'block_size_x'"),
        (t4_file() | {"results": []}, "results` is empty"),
        (
            _first_result(t4_file(), configuration={"block_size_x": 32, "colour": 1}),
            "result 3 has the unknown gene 'colour'",
        ),
        (_first_result(t4_file(), configuration={"block_size_x": 32}), "result 3 lacks the gene 'use_padding'"),
        (_first_result(t4_file(), invalidity="perhaps"), "result 3: unknown invalidity 'perhaps'"),
        (_first_result(t4_file(), measurements=[]), "result 3 is correct .*`time` nor `runtimes`"),
        (t4_file() | {"metadata": {"timeunit": "fortnights"}}, "fortnights"),
    ],
)
def test_unusable_files_are_said_to_be_so(content: object, message: str, tmp_path: Path) -> None:
    """One message with the file, what is wrong, and what would have been right."""
    path = write_json(tmp_path / "toy.json", content)
    with pytest.raises(DeviceError, match=message) as caught:
        read_recording(path)
    assert str(path) in str(caught.value)


def test_a_truncated_file_is_said_to_be_so(tmp_path: Path) -> None:
    """A download that stopped half-way, plain or compressed."""
    for name in ("toy.json", "toy.json.gz"):
        path = write_json(tmp_path / name, kernel_tuner_cache())
        path.write_bytes(path.read_bytes()[:-40])
        with pytest.raises(DeviceError, match="truncated"):
            read_recording(path)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with a search of a part of the small recording: failures, duplicates, conditional genes."""
    whole = small_table()
    part = {
        c: a for c, a in whole.answers.items() if c["TILE_N"] in (16, 32) and c["LOADS"] != "scalar" and c["WARPS"] == 2
    }
    runs = {c: a for c, a in part.items() if a.outcome is not Outcome.INFEASIBLE and c["SPLIT_KEYS"] == 0}
    path = tmp_path_factory.mktemp("searched") / "runs.db"
    device = TableDevice(replace(whole, answers=runs))
    search(study("small"), db=path, device=device, trials=70, sampler="random", seed=3)
    return path


def test_a_study_replays_as_it_was_recorded(searched: Path) -> None:
    """Every configuration that was tried has its own answer, a duplicate that of the first with its machine code."""
    table = open_recording(f"{searched}:small")
    with open_readonly(searched) as reader:
        trials = [t for t in reader.trials(reader.study("small")) if t.outcome is not Outcome.INFEASIBLE]
    assert len(table.answers) == len(trials)
    assert Outcome.DUPLICATE in {trial.outcome for trial in trials}
    for trial in trials:
        answer = table.answers[trial.config]
        assert (answer.time_us, answer.fingerprint) == (trial.evaluation.time_us, trial.evaluation.fingerprint)
        assert answer.outcome is (Outcome.MEASURED if trial.outcome is Outcome.DUPLICATE else trial.outcome)
    assert [(g.name, g.values, g.default) for g in table.genes] == [
        (g.name, g.values, g.default) for g in small_table().genes
    ]
    assert table.baseline_us == 8.1


def test_an_exported_study_is_read_back_completely(searched: Path, tmp_path: Path) -> None:
    """T4 and back: the same genes, outcomes, times, machine code and reasons as the database has."""
    recorded = open_recording(str(searched))
    with open_readonly(searched) as reader:
        exported = t4(reader, reader.study("small"))
    path = tmp_path / "small.json"
    path.write_text(dumps(exported))
    back = read_recording(path)
    assert (back.name, back.genes, back.baseline_us) == (recorded.name, recorded.genes, recorded.baseline_us)
    assert list(back.answers) == list(recorded.answers)
    for config, answer in recorded.answers.items():
        found = back.answers[config]
        assert (found.outcome, found.fingerprint) == (answer.outcome, answer.fingerprint)
        assert (found.time_us or 0.0) == pytest.approx(answer.time_us or 0.0, rel=1e-12)
        assert dict(found.evidence) == dict(answer.evidence)


def test_every_result_of_an_export_keeps_to_the_schema(searched: Path) -> None:
    """The keys that T4 requires, with the types that it requires."""
    with open_readonly(searched) as reader:
        exported = json.loads(dumps(t4(reader, reader.study(None))))
    assert exported["schema_version"] == "1.0.0"
    kinds = {"timeout", "compile", "runtime", "correctness", "constraints", "correct"}
    for result in exported["results"]:
        assert set(result) >= {"configuration", "times", "invalidity", "correctness"}
        assert result["invalidity"] in kinds
        assert isinstance(result["times"]["runtimes"], list)
        (measured,) = result["measurements"]
        assert isinstance(measured["value"], float) == (result["invalidity"] == "correct")


def test_databases_are_told_from_files(searched: Path, tmp_path: Path) -> None:
    """`runs.db`, `runs.db:study` and a file of any name, a colon included."""
    assert database_of(searched) == (searched, None)
    assert database_of(f"{searched}:small") == (searched, "small")
    odd = write_json(tmp_path / "a:b.json", kernel_tuner_cache())
    assert database_of(odd) is None
    assert open_recording(str(odd)).name == "a:b"
    with pytest.raises(StudyError, match="did you mean 'small'"):
        open_recording(f"{searched}:smal")


def test_a_study_without_a_measured_trial_is_no_recording(tmp_path: Path) -> None:
    """There is nothing to compare with where nothing ran."""
    table = small_table()
    failing = {c: a for c, a in table.answers.items() if a.outcome is Outcome.CRASHED}
    device = TableDevice(type(table)("bad", table.genes, failing, table.profile))
    search(study("bad"), db=tmp_path / "bad.db", device=device, trials=5, sampler="random")
    with pytest.raises(StudyError, match="no measured trial"):
        open_recording(f"{tmp_path / 'bad.db'}:bad")


@pytest.fixture
def doubled(tmp_path: Path) -> Path:
    """A kernel of two genes beside its study."""
    folder = tmp_path / "kernels" / "doubled"
    folder.mkdir(parents=True)
    (folder / "kernel.cu").write_text("")
    (folder / "kernel.py").write_text(
        "from evokern import Kernel, Parameter, ProblemField, Workload\n"
        "nothing = lambda *_: None\n"
        "genes = (Parameter('x', (1, 2, 3)), Parameter('y', (4, 5)))\n"
        "workload = Workload(nothing, nothing, {}, nothing, nothing)\n"
        "kernel = Kernel('doubled', genes, (ProblemField('N'),), nothing, workload)\n"
    )
    path = tmp_path / "doubled.toml"
    path.write_text('kernel = "kernels/doubled"\nproblems = ["64"]\n')
    return path


def _recording(path: Path, names: tuple[str, ...], kernel: str | None, device: str = "sim:l4") -> str:
    declared = {name: {"x": [1, 2], "y": [4, 5], "z": [7], "w": [1]}[name] for name in names}
    genes = [
        {"name": n, "values": v, "default": v[0], "doc": "", "when": {}, "layer": "parameter"}
        for n, v in declared.items()
    ]
    configuration = {name: values[0] for name, values in declared.items()}
    results = [
        {
            "configuration": configuration,
            "invalidity": "correct",
            "times": {},
            "measurements": [{"name": "time", "value": 1.0, "unit": "ms"}],
        }
    ]
    own = {"study": "other", "kernel": kernel, "device": device, "genes": genes}
    metadata = {"timeunit": "seconds"} | ({"evokern": own} if kernel else {})
    return f"replay:{write_json(path, {'metadata': metadata, 'results': results})}"


@pytest.mark.parametrize(
    ("genes", "kernel", "told"),
    [
        (("x", "y"), "attention", "is of kernel attention, but study doubled is of doubled"),
        (("x", "z"), "doubled", "it lacks y; z is not a gene of doubled"),
        (("x", "y", "w"), None, "w is not a gene of doubled"),
    ],
)
def test_a_recording_of_another_kernel_is_refused(
    doubled: Path, genes: tuple[str, ...], kernel: str | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times of another kernel are not reported under a study's name: kernels and genes must be the same."""
    monkeypatch.chdir(doubled.parent)
    with pytest.raises(DeviceError, match=told):
        search(str(doubled), db="r.db", device=_recording(Path("other.json"), genes, kernel), trials=1)
    assert not Path("r.db").exists()


@pytest.mark.parametrize("kernel", ["doubled", None])
def test_a_recording_of_the_kernel_is_played(
    doubled: Path, kernel: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recording of the study's kernel is searched, also where it has fewer values, or does not name its kernel."""
    monkeypatch.chdir(doubled.parent)
    result = search(str(doubled), db="r.db", device=_recording(Path("same.json"), ("x", "y"), kernel), trials=1)
    assert result.best is not None
    assert result.best.evaluation.time_us == pytest.approx(1000.0)


def _each(time: object, **more: object) -> dict[str, Any]:
    content = kernel_tuner_cache()
    record = next(one for one in content["cache"].values() if isinstance(one["time"], float))
    record.update({"time": time, **more})
    return content


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (lambda: _each(True), "its time is True; use a number"),
        (lambda: _each(10**400), "its time is a number of .* bits; .* above 0"),
        (lambda: _each([1.0]), r"its time is \[1.0\]; use a number"),
        (lambda: _each(1.0, times=[1.0, "2"]), "one of its times is '2'; use a number"),
        (lambda: _each(1.0, compile_time=True), "compile_time is True; use a number"),
        (lambda: _each(1.0, benchmark_time="3"), "benchmark_time is '3'; use a number"),
        (lambda: _changed_t4(measurements=[], times={"runtimes": [True]}), "runtimes is True"),
        (lambda: _doubled_t4(), "result 16 .* crashed .* measured in .*; keep one"),
    ],
)
def test_times_are_numbers_and_configurations_say_one_thing(
    content: Callable[[], dict[str, Any]], told: str, tmp_path: Path
) -> None:
    """A time that is not a number, and a configuration with two answers, are named: none is taken for a failure."""
    with pytest.raises(DeviceError, match=told):
        read_recording(write_json(tmp_path / "toy.json", content()))


def _changed_t4(**more: object) -> dict[str, Any]:
    content = t4_file()
    next(one for one in content["results"] if one["invalidity"] == "correct").update(more)
    return content


def _doubled_t4() -> dict[str, Any]:
    content = t4_file()
    first = next(one for one in content["results"] if one["invalidity"] == "correct")
    content["results"].append({**first, "invalidity": "runtime"})
    return content


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[" * 100_000, "nests lists or objects"),
        ('{"format": "evokern-table/1", "format": "x"}', "the key 'format' .* twice"),
        ('{"a": ' + "9" * 5000 + "}", "not JSON: Exceeds the limit"),
        ('{"a": "\\ud800"}', "not JSON: .*surrogates not allowed"),
        ("\x00", "truncated or not JSON"),
    ],
)
def test_json_that_is_no_recording(text: str, told: str, tmp_path: Path) -> None:
    """Deep nesting, a key twice, numbers of thousands of digits and half characters are refused as what they are."""
    path = tmp_path / "toy.json"
    path.write_text(text)
    with pytest.raises(DeviceError, match=told):
        read_recording(path)


def test_a_byte_order_mark_is_no_content(tmp_path: Path) -> None:
    """A recording that passed through an editor on Windows is read."""
    path = write_json(tmp_path / "toy.json", kernel_tuner_cache())
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_recording(path).optimum_us == pytest.approx(600.0)


@pytest.mark.parametrize("time", [0.0, 0, -0.173, float("nan"), float("inf")])
def test_an_impossible_time_is_left_out_and_counted(
    time: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A broken clock spoils its own configuration only: the others are read, and a warning names it."""
    whole = read_recording(write_json(tmp_path / "whole.json", kernel_tuner_cache()))
    with caplog.at_level("WARNING", "evokern"):
        found = read_recording(write_json(tmp_path / "toy.json", _each(time)))
    assert len(found.answers) == len(whole.answers) - 1
    assert len(found.left_out) == 1 and repr(time) in found.left_out[0]
    assert "left out 1 configuration whose time is not a positive number" in caplog.text
    assert read_recording(write_json(tmp_path / "s.json", _each(1.0, times=[1.0, time]))).optimum_us is not None


def test_an_impossible_time_of_a_t4_file_is_left_out(tmp_path: Path) -> None:
    """T4 files follow the same rule, with a measurement and with runtimes."""
    for change in ({"measurements": [{"name": "time", "value": -1.0}]},
                   {"measurements": [], "times": {"runtimes": [1.0, 0.0]}}):  # fmt: skip
        assert len(read_recording(write_json(tmp_path / "t4.json", _changed_t4(**change))).left_out) == 1


@pytest.mark.parametrize("cut", ["},\n", "},", "}", "}\r\n"])
def test_an_open_cache_is_read(cut: str, tmp_path: Path) -> None:
    """Kernel Tuner leaves a cache open during a search, and closes it when it reads it."""
    text = json.dumps(kernel_tuner_cache())
    assert text.endswith("}}}")
    (tmp_path / "open.json").write_text(text[: -len("}}}")] + cut)
    whole = read_recording(write_json(tmp_path / "whole.json", kernel_tuner_cache()))
    assert read_recording(tmp_path / "open.json").answers == whole.answers
    (tmp_path / "half.json").write_text(text[: -len("}}}")] + '},\n"1,2": {"a": 1, "b')
    with pytest.raises(DeviceError, match=r"truncated or not JSON.*delete the incomplete configuration"):
        read_recording(tmp_path / "half.json")
