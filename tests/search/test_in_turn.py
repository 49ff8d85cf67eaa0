"""The ratio that people are told: champion and baseline measured in turn at the end of a search."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from engine_helpers import tiny_table
from instant_devices import InstantH200
from stored_studies import MEASURED, record
from typer.testing import CliRunner

from evokern.cli.app import app
from evokern.declaration.genes import Config
from evokern.device import BaselineResult, StartReport, Task
from evokern.errors import DeviceError
from evokern.report.facts import gather
from evokern.report.first_screen import first_screen
from evokern.search import _run
from evokern.search.baseline_comparison import LEAST_ROUNDS, ROUNDS, compare_with_baseline
from evokern.store import Reader, Session, Store, add_proof, open_readonly
from evokern.study.trial import Proposal, Timing, Trial
from evokern.wording import speedup

BASELINES = tuple(BaselineResult(name, (Timing(us, (us, us), (us,)),)) for name, us in (("math", 90.0), ("cudnn", 9.2)))


class Rounds(InstantH200):
    """A device on which a candidate takes 5 µs when it works beside others, and a baseline 8."""

    def __init__(self, round_s: float = 0.1, error: str = "", start_s: float = 0.0, first_s: float = 0.0) -> None:
        super().__init__()
        self.now, self.asked, self.rounds_played = 0.0, [], 0
        self._round_s, self._error, self._start_s, self._first_s = round_s, error, start_s, first_s

    def rounds(self, task: Task, candidates: Sequence[Config | str]) -> Callable[..., Sequence[Sequence[float]]]:
        """Keep who plays."""
        self.asked = list(candidates)
        self.now += self._start_s

        def play(alive: Sequence[int], samples: int) -> Sequence[Sequence[float]]:
            if self._error:
                raise DeviceError(self._error)
            self.now += self._round_s + (0.0 if self.rounds_played else self._first_s)
            self.rounds_played += 1
            drift = 1.0 + 0.1 * self.rounds_played
            return [[drift * (8.0 if isinstance(self.asked[n], str) else 5.0)] * samples for n in alive]

        return play


def champion() -> Trial:
    config = next(iter(tiny_table().answers))
    return Trial(0, Proposal(config, {}), MEASURED, 1.0)


@pytest.mark.parametrize(
    ("round_s", "seconds", "least_s", "rounds"),
    [
        (0.1, 4.0, 6.0, ROUNDS),
        (0.5, 2.6, 0.0, 5),
        (0.9, 2.5, 6.0, LEAST_ROUNDS),
        (1.5, 2.5, 6.0, LEAST_ROUNDS),
        (1.0, 2.5, 0.0, None),
        (1.6, 2.5, 6.0, None),
        (9.0, 4.0, 6.0, None),
    ],
)
def test_rounds_are_as_many_as_there_is_time_for(
    round_s: float, seconds: float, least_s: float, rounds: int | None
) -> None:
    """Eight, fewer where they take long, but four where these still fit; fewer are not told, and not played on."""
    device = Rounds(round_s)
    found = compare_with_baseline(
        device, cast("Task", None), champion(), "cudnn", seconds, least_s, clock=lambda: device.now
    )
    assert device.asked == [champion().config, "cudnn"]
    assert device.rounds_played == (rounds or device.rounds_played)
    if rounds is None:
        assert (found, device.rounds_played) == (None, 1 if round_s > 3.0 else 2)  # of one, nothing is known
        return
    assert found is not None
    assert (found["rounds"], found["baseline"]["name"]) == (rounds, "cudnn")
    assert found["ratio"] == pytest.approx(1.6)
    assert found["ratio_ci95"] == pytest.approx([1.6, 1.6])


@pytest.mark.parametrize(("start_s", "first_s"), [(3.0, 0.0), (0.0, 2.2), (0.5, 1.5)])
def test_what_comes_once_is_not_taken_for_a_round(start_s: float, first_s: float) -> None:
    """Compilers end what they have at hand, the first round compiles the baseline: four rounds still fit."""
    device = Rounds(0.6, start_s=start_s, first_s=first_s)
    task = cast("Task", None)
    found = compare_with_baseline(device, task, champion(), "cudnn", 1.0, 6.0, clock=lambda: device.now)
    assert found is not None
    assert found["rounds"] == LEAST_ROUNDS


def test_a_user_who_wants_an_end_waits_for_no_round() -> None:
    """Ctrl-C between two rounds ends it, with nothing told."""
    device = Rounds()
    left = iter([False, False, True])
    found = compare_with_baseline(device, cast("Task", None), champion(), "cudnn", 4.0, 4.0, lambda: next(left))
    assert (found, device.rounds_played) == (None, 2)


@contextmanager
def searched(
    tmp_path: Path, device: Any, baselines: tuple[BaselineResult, ...] = BASELINES, seconds: float = 4.0
) -> Iterator[list[str]]:
    """Compare the champion of a stored study with its baselines; yields what was noted."""
    notes: list[str] = []
    with Store(tmp_path / "a.db") as store:
        study = store.create(record(), {})
        session: Session = store.session(study, tiny_table().space())
        session.write_start_report(StartReport(baselines))
        trial = champion()
        session.propose(0, trial.proposal, 1.0)
        session.record(trial, 1.0)
        loop: Any = SimpleNamespace(best=trial, stop_requested=False)
        reporter: Any = SimpleNamespace(after_loop=notes.append)
        _run._compare_with_baseline(
            device, cast("Task", None), loop, StartReport(baselines), session, reporter, seconds, seconds
        )
        session.ended(2.0, "trials")
        yield notes


def summary_of(path: Path) -> dict[str, Any]:
    with open_readonly(path) as reader:
        return cast("Reader", reader).summary(reader.study())


def test_what_is_told_comes_from_turns(tmp_path: Path) -> None:
    """`show`, its JSON and the page tell the ratio of what was measured in turn, with its interval."""
    with searched(tmp_path, Rounds()) as notes:
        pass
    assert notes == []
    best = summary_of(tmp_path / "a.db")["best"]
    assert best["speedup"] == pytest.approx(1.6)  # 9.2 ÷ 5.5 is what both took apart from each other
    assert best["speedup_ci95"] == pytest.approx([1.6, 1.6])
    assert best["in_turn"] == {"name": "cudnn", "time_us": pytest.approx(11.6), "champion_us": pytest.approx(7.25)}
    both = "head-to-head: 7.25 µs vs 11.6"
    assert speedup(best) == f"1.60× (within .005, {both})"
    assert speedup(best | {"speedup_ci95": [1.58, 1.62]}) == f"1.60× (1.58 to 1.62, {both})"
    done = CliRunner().invoke(app, ["show", "--db", str(tmp_path / "a.db")])
    assert f"1.60× (within .005, {both}) as fast" in done.stdout
    with open_readonly(tmp_path / "a.db") as reader:
        speed = first_screen(gather(reader, None), curve=False)["speed"]
    assert (speed["speedup"], speed["speedup_interval"]) == ("1.60×", f"1.60 to 1.60, {both}")


def test_a_later_playoff_counts(tmp_path: Path) -> None:
    """A verification in which champion and baseline met tells the ratio from then on; of its baselines the fastest."""
    with searched(tmp_path, Rounds()):
        pass
    finalists = [
        {
            "name": name,
            "standing": standing,
            "time_us": 5.0 * ratio,
            "ci95_us": [5.0, 6.0],
            "ratio": ratio,
            "ratio_ci95": [ratio - 0.01, ratio + 0.01],
        }
        for name, standing, ratio in (
            ("trial 1", "champion", 1.0),
            ("trial 0", "tie", 1.1),
            ("cudnn", "slower", 1.7),
            ("SDPA", "slower", 1.65),
        )
    ]
    played = {"stages": {}, "playoff": {"finalists": finalists, "rounds": 8, "predicted": False}}
    with open_readonly(tmp_path / "a.db") as reader:
        study = reader.study()
    add_proof(tmp_path / "a.db", study, "verify", 0, played)
    best = summary_of(tmp_path / "a.db")["best"]
    assert (best["trial"], best["speedup"], best["in_turn"]["name"]) == (0, pytest.approx(1.5), "SDPA")
    assert best["speedup_ci95"] == pytest.approx([1.64 / 1.11, 1.66 / 1.09])


@pytest.mark.parametrize(
    ("device", "told"),
    [
        (Rounds(), "skipped the head-to-head comparison with cudnn: one round takes too long"),
        (Rounds(error="it was wrong"), "skipped the head-to-head comparison with cudnn: it was wrong"),
        (InstantH200(), ""),
    ],
)
def test_without_turns_the_ratio_is_of_both_apart(device: Any, told: str, tmp_path: Path) -> None:
    """Why not is said, and the ratio is that of the times as they were measured, without an interval."""
    with searched(tmp_path, device, seconds=0.0) as notes:
        pass
    assert "".join(notes) == told
    best = summary_of(tmp_path / "a.db")["best"]
    assert best["speedup"] == pytest.approx(9.2 / 5.5)
    assert speedup(best) == "1.67×"


def test_without_a_baseline_there_is_nothing_to_compare(tmp_path: Path) -> None:
    """Neither is the device asked, nor anything said."""
    device = Rounds()
    with searched(tmp_path, device, ()) as notes:
        pass
    assert (notes, device.asked) == ([], [])
