"""A new study begins with what the database knows of its kernel: the nearest problem on the same chip, taken once."""

from __future__ import annotations

import math
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from instant_devices import InstantH200
from kernel_tuner_files import kernel_tuner_cache, write_json
from paths import DATA

from evokern.api import search
from evokern.declaration.genes import Config, Parameter
from evokern.declaration.problem import Problem
from evokern.device import Request
from evokern.device.recorded.table import measured
from evokern.errors import StoreError, StudyError
from evokern.hardware.profiles import CHIPS
from evokern.samplers import EACH
from evokern.search import Progress
from evokern.search._nearest_study import MIN_TIMED_CANDIDATES, NO_RATIO_DISTANCE, problem_distance, share_enough_genes
from evokern.store import Store, add_proof, open_readonly
from evokern.study.settings import Study
from evokern.study.trial import Evaluation, Outcome

SCALE_ROWS = DATA / "kernels" / "scale_rows"


class Gpu(InstantH200):
    """An H200 on which four warps are best, and more rows a block worse."""

    def evaluation(self, request: Request) -> Evaluation:
        config = request.config
        slower = 0.05 * (config.get("REDUCE") == "block") + 0.02 * (config.get("LOADS") == "scalar")
        time_us = 1.0 + abs(config.WARPS - 4) + 0.1 * config.ROWS_PER_BLOCK + slower + 0.01 * config.get("UNROLL", 0)
        return measured(time_us, config.key)


class OtherGpu(Gpu):
    """The same for an A100."""

    identity, profile = "NVIDIA A100-SXM4-80GB", CHIPS["a100"]


class FailingGpu(Gpu):
    """An H200 on which everything crashes."""

    def evaluation(self, request: Request) -> Evaluation:
        return Evaluation(Outcome.CRASHED, evidence={"error": "made up"})


def scaled(name: str, problem: str = "64,256", **changes: Any) -> Study:
    return Study(name=name, kernel=str(SCALE_ROWS), problems=(problem,), **changes)


def begun(db: Path, study: Study, device: InstantH200 | None = None, **keywords: Any) -> tuple[str, ...]:
    """Search a study; returns what it said before its first trial."""
    seen: list[Progress] = []
    settings = {"trials": 12, "seed": 3, "trust": True, "verify": False, **keywords}
    search(study, db=db, device=device or Gpu(), on_progress=seen.append, **settings)
    return tuple(note for note in seen[-1].notes if "warm start" in note)


def configs(db: Path, name: str) -> list[Config]:
    with open_readonly(db) as reader:
        return [trial.config for trial in reader.trials(reader.study(name))]


def source(db: Path, name: str) -> str | None:
    with open_readonly(db) as reader:
        warm = reader.summary(reader.study(name))["warm_start"]
    return None if warm is None else str(warm["source"])


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with a far and a near study of the kernel, the far one searched last."""
    path = tmp_path_factory.mktemp("known") / "runs.db"
    begun(path, scaled("near", "64,512"), warm_start="none", trials=16)
    begun(path, scaled("far", "4096,4096"), warm_start="none", trials=24)
    return path


@pytest.fixture
def db(known: Path, tmp_path: Path) -> Path:
    path = tmp_path / "runs.db"
    path.write_bytes(known.read_bytes())
    return path


def test_a_new_study_begins_with_the_nearest_one(db: Path) -> None:
    """Nobody asks for it; one line says what was taken and how to begin without; the best of it is the first trial."""
    (note,) = begun(db, scaled("new"))
    assert note.startswith(
        "warm start from study near (ROWS=64 COLS=512 on NVIDIA H200): 16 candidates and those of 1 further study; "
    )
    assert note.endswith("--warm-start none")
    assert source(db, "new") == f"{db}:near"
    with open_readonly(db) as reader:
        best = reader.best(reader.study("near"))
    assert best is not None
    assert configs(db, "new")[0] == best.config


class SlowedGpu(Gpu):
    """One on which eight warps are best."""

    def evaluation(self, request: Request) -> Evaluation:
        found = super().evaluation(request)
        config = request.config
        return measured((found.time_us or 0.0) + abs(config.WARPS - 8) * 2.0, config.key)


def test_the_fastest_of_further_studies_are_tried_too(db: Path) -> None:
    """Each after the nearest one's best, the nearer first, once; interrupted, the study goes on with the same ones."""
    begun(db, scaled("farther", "65536,4096"), SlowedGpu(), warm_start="none", trials=24)
    with open_readonly(db) as reader:
        wanted = []
        for name in ("near", "far", "farther"):
            best = reader.best(reader.study(name))
            assert best is not None
            wanted.append(best.config)
    assert len(set(wanted)) > 1, "studies that found the same have nothing to add"
    leaders = [config for config in dict.fromkeys(wanted[1:]) if config != wanted[0]]
    (note,) = begun(db, scaled("new"), trials=1)
    assert "16 candidates and those of 2 further studies; " in note
    begun(db, scaled("new"))
    assert configs(db, "new")[: 1 + len(leaders)] == [wanted[0], *leaders]
    with open_readonly(db) as reader:
        warm = reader.summary(reader.study("new"))["warm_start"]
    assert (warm["candidates"], warm["further"]) == (16, 2)


def test_what_was_taken_is_kept_whole(db: Path) -> None:
    """Distances and times of every study, so that an interrupted search goes on alike; of a large one some."""
    begun(db, scaled("large", "128,512"), warm_start="none", trials=EACH + 20)
    begun(db, scaled("new"), trials=1)
    with Store(db) as store:
        record = store.study("new")
        assert record is not None
        prior = store.prior(record)
    assert prior is not None
    assert (prior.distance, [one.distance for one in prior.further]) == (1.0, [2.0, 10.0])
    assert [len(prior.entries), *(len(one.entries) for one in prior.further)] == [16, EACH, 24]
    times = [value for _, value in prior.further[0].entries]
    assert times == sorted(times)
    with open_readonly(db) as reader:
        best = reader.best(reader.study("large"))
    assert best is not None
    assert (prior.further[0].entries[0][0], times[0]) == (
        best.config,
        pytest.approx(math.log(best.evaluation.time_us or 0)),
    )


def test_the_same_problem_is_no_source(db: Path) -> None:
    """A study that is begun anew, or searched with another seed under another name, finds what it finds."""
    begun(db, scaled("far", "4096,4096"), fresh=True)
    assert source(db, "far") == f"{db}:near"


def test_a_new_database_has_nothing_to_take(tmp_path: Path) -> None:
    """Then nothing is said, and the sequence is that of a study which asks for none."""
    assert begun(tmp_path / "auto.db", scaled("new")) == ()
    assert begun(tmp_path / "none.db", scaled("new"), warm_start="none") == ()
    assert configs(tmp_path / "auto.db", "new") == configs(tmp_path / "none.db", "new")


def test_whoever_wants_none_gets_none(db: Path, tmp_path: Path) -> None:
    """`none` leaves what the database knows aside."""
    assert begun(db, scaled("new"), warm_start="none") == ()
    begun(tmp_path / "new.db", scaled("new"))
    assert configs(db, "new") == configs(tmp_path / "new.db", "new")


def test_what_was_taken_is_taken_once(db: Path, tmp_path: Path) -> None:
    """An interrupted search goes on as it would have, whatever its source or its database has become."""
    copy = tmp_path / "parts.db"
    copy.write_bytes(db.read_bytes())
    begun(db, scaled("new"), trials=20)
    assert len(begun(copy, scaled("new"), trials=9)) == 1
    begun(copy, scaled("near", "64,512"), trials=24)
    begun(copy, scaled("nearer", "64,256"), warm_start="none")
    for asked in (None, "auto"):
        assert begun(copy, scaled("new"), trials=20, warm_start=asked) == ()
    assert configs(copy, "new") == configs(db, "new")


def test_a_study_that_goes_on_cannot_begin_otherwise(db: Path) -> None:
    """Its trials depend on what it began with; what it began with may be named."""
    begun(db, scaled("new"), trials=9)
    with pytest.raises(StudyError, match=r"started from .*:near, .*omit warm_start='none'"):
        begun(db, scaled("new"), warm_start="none")
    begun(db, scaled("new"), warm_start=f"{db}:near")
    begun(db, scaled("cold"), warm_start="none", trials=9)
    begun(db, scaled("cold"), warm_start="none", trials=10)
    assert begun(db, scaled("cold"), warm_start="auto", trials=11) == ()
    assert source(db, "cold") is None


@pytest.mark.parametrize("asked", [{"control": "random"}, {"sampler": "random"}, {"sampler": "tpe"}])
def test_comparisons_and_samplers_that_cannot_use_it_begin_cold(db: Path, asked: dict[str, str]) -> None:
    """A control asks what the sampler is worth by itself. Nothing is said, for nobody asked."""
    assert begun(db, scaled("new"), **asked) == ()
    assert source(db, "new") is None


def test_a_recording_is_searched_cold(db: Path, tmp_path: Path) -> None:
    """Searches of it are there to be compared, and what they found is no knowledge of a chip."""
    table = write_json(tmp_path / "toy.json", kernel_tuner_cache())
    toy = Study(name="toy", kernel="recording", problems=("recorded",))
    for name in ("one", "two"):
        search(Study(name, "recording", ("recorded",)), db=db, device=f"replay:{table}", trials=8)
    assert search(toy, db=db, device=f"replay:{table}", trials=8).summary["warm_start"] is None


def test_another_chip_says_nothing(db: Path) -> None:
    """What is fast there may be slow here."""
    assert begun(db, scaled("new"), OtherGpu()) == ()
    assert source(db, "new") is None


@pytest.mark.parametrize("named", [True, False])
def test_refuted_trials_are_not_taken(db: Path, *, named: bool) -> None:
    """Everything else of the study is, whether it is named or found."""
    with open_readonly(db) as reader:
        near = reader.study("near")
        best = reader.best(near)
    assert best is not None
    add_proof(db, near, "verify", best.number, {"stages": {"gate": {"state": "failed"}}})
    (note,) = begun(db, scaled("new"), warm_start=f"{db}:near" if named else None)
    assert ": 15 candidates" in note
    assert configs(db, "new")[0] != best.config


def test_damaged_trials_are_not_taken(db: Path) -> None:
    """A search does not begin on a database with one: it may be any study's, and is told of."""
    with sqlite3.connect(db) as connection:
        connection.execute("UPDATE evokern_trials SET time_us = 0.5 WHERE number = 4")
    with pytest.raises(StoreError, match=r"trial 4, .* is damaged"):
        begun(db, scaled("new"))


def test_a_study_that_says_too_little_is_passed_over(db: Path) -> None:
    """One without enough times is not taken, however near, and one of an older timing rule is not either."""
    begun(db, scaled("empty"), FailingGpu(), warm_start="none")
    begun(db, scaled("short"), trials=MIN_TIMED_CANDIDATES - 1, warm_start="none")
    begun(db, scaled("new"))
    assert source(db, "new") == f"{db}:near"


def test_an_attempt_without_a_trial_binds_nothing(db: Path) -> None:
    """What it would have begun with is taken again, unless something else is asked for."""
    for asked, expected in ((None, f"{db}:near"), (f"{db}:far", f"{db}:far"), (None, f"{db}:far"), ("none", None)):
        with pytest.raises(RuntimeError, match="does not start"):
            begun(db, scaled("new"), Gpu(start=RuntimeError("does not start")), warm_start=asked)
        assert source(db, "new") == expected


def test_a_study_of_another_kernel_is_refused(db: Path, tmp_path: Path) -> None:
    """Values of genes that happen to have the same name mean something else there."""
    folder = tmp_path / "kernels" / "other"
    folder.mkdir(parents=True)
    for file in SCALE_ROWS.iterdir():
        if file.is_file():
            text = file.read_text().replace('"scale_rows",\n    genes', '"other",\n    genes')
            for gene in ("LOADS", "REDUCE", "UNROLL"):
                text = text.replace(gene, f"{gene}_2")
            (folder / file.name).write_text(text)
    other = Study(name="other", kernel=str(folder), problems=("64,256",))
    begun(db, other)
    assert source(db, "other") is None
    with pytest.raises(StudyError, match=r"study near of .* is of kernel scale_rows, whose genes differ"):
        begun(db, other, fresh=True, warm_start=f"{db}:near")


def test_a_study_without_a_time_says_so(db: Path) -> None:
    """Whoever names it hears why it cannot be begun with."""
    begun(db, scaled("empty"), FailingGpu(), warm_start="none")
    with pytest.raises(StudyError, match=r"study empty of .* has no timed trial"):
        begun(db, scaled("new"), warm_start=f"{db}:empty")


def test_a_file_from_before_warm_starts_began_cold(db: Path) -> None:
    """Reading it needs no table of priors."""
    with sqlite3.connect(db) as connection:
        connection.execute("DROP TABLE evokern_priors")
    assert source(db, "near") is None


def test_genes_that_changed_drop_what_an_attempt_without_a_trial_kept(db: Path) -> None:
    """A prior is kept as positions of values, which mean other values once the genes are others."""
    with pytest.raises(RuntimeError):
        begun(db, scaled("new"), Gpu(start=RuntimeError("does not start")), warm_start=f"{db}:far")
    narrowed = scaled("new", genes={"UNROLL": (2, 1)})
    begun(db, narrowed)
    assert source(db, "new") == f"{db}:near"
    with Store(db) as store:
        record = store.study("new")
        assert record is not None
        prior = store.prior(record)
    assert prior is not None
    assert {config.UNROLL for config, _ in prior.entries} == {1, 2}


@given(st.integers(1, 2**20), st.integers(1, 2**20), st.integers(1, 2**20))
def test_distance_of_problems_is_one(one: int, two: int, three: int) -> None:
    """Nothing to itself, the same both ways, no shorter by a detour, and equal for equal ratios."""
    a, b, c = (Problem({"S": n, "causal": n % 2, "dtype": "f16" if n % 3 else "bf16"}) for n in (one, two, three))
    assert problem_distance(a, a) == 0.0
    assert problem_distance(a, b) == pytest.approx(problem_distance(b, a))
    assert (problem_distance(a, b) > 0.0) == (a != b)
    assert problem_distance(a, c) <= problem_distance(a, b) + problem_distance(b, c) + 1e-9
    assert problem_distance(Problem({"S": one}), Problem({"S": 2 * one})) == pytest.approx(1.0)
    assert problem_distance(Problem({"dtype": "f16"}), Problem({"dtype": "bf16"})) == NO_RATIO_DISTANCE


def test_kernels_are_alike_by_their_genes() -> None:
    """Half of all genes must be in both."""
    genes = [Parameter(name, (1, 2)) for name in "ABCD"]
    assert share_enough_genes(genes, genes[:2])
    assert not share_enough_genes(genes, genes[:1])
    assert not share_enough_genes(genes[:2], genes[1:])
