"""Live page of a running search, updated at a small, bounded cost.

New trials are read and sent row by row, and a new champion gets updated cards soon. Parts that depend on all trials
(tables, the gene model) are rebuilt so rarely that they take at most `SHARE` of a core. Nothing is read while no page
is open.
"""

from __future__ import annotations

import datetime
import importlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from evokern.analysis.genes.gene_report import GenesReport
from evokern.errors import EvokernError, StudyError
from evokern.report import render_first, render_page
from evokern.report.facts import Facts, KnownFacts, facts_with_champion, gather, learn
from evokern.report.page_data import TrialRows, difference, thinned
from evokern.report.source_difference import SourceDifference
from evokern.store import Reader, SessionRecord, open_readonly
from evokern.study.trial import Outcome, Trial
from evokern.wording import count_noun, duration, microseconds

POLL_S = 0.6
"""Interval between queries for new trials, in seconds."""
STATE_POLL_S = 1.2
"""Interval between queries for the study's state (sessions, verifications, replacement by a new study), in seconds."""
PAGE_POLL_S = 0.8
"""Interval between requests of a page, in seconds; with the intervals above, a trial appears within two seconds."""
SHARE = 0.006
"""Maximum share of a core for the parts that depend on all trials."""
MIN_REBUILD_INTERVAL_S = 5.0
"""Minimum time between two rebuilds of these parts, in seconds."""
LEAST_CARDS_S = 1.0
"""Minimum time between two updates of the champion's cards, in seconds."""
WATCHED_S = 10.0
"""Time after its last request during which a page counts as open, in seconds."""
SILENT_S = 60.0
"""Time without a write after which the page warns that an unfinished search is silent, in seconds."""
DATA = '<script type="application/json"'
"""Start tag of the page's data; an open page replaces only the content before it."""


class FollowedStudy:
    """The live page of one study, and its updates.

    `start` starts two threads: one for new rows and one for the parts that depend on all trials. Each uses its own
    database connection for short reads. The other methods are thread-safe and never raise. Of these, only
    `trial` reads the database.
    """

    def __init__(self, path: Path, name: str | None, *, on_message: Callable[[str], None] = lambda text: None) -> None:
        """Read the study once.

        Args:
            path: Database file.
            name: Name of the study; None selects the latest one.
            on_message: Function called with a message when the search starts or ends.

        Raises:
            StoreError: The database cannot be read.
            StudyError: There is no such study.
        """
        self._path = path
        self._on_message = on_message
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._looked = time.monotonic()
        self._page = b""
        self._source: tuple[str, SourceDifference] | None = None
        self._threads = [
            threading.Thread(target=self._follow, args=[act], name=name, daemon=True)
            for act, name in ((self._look, "evokern-report-rows"), (self._rebuild_if_due, "evokern-report-parts"))
        ]
        importlib.import_module("sklearn.tree")  # import early, to keep it out of the measured cost of the first parts
        with open_readonly(path) as reader:
            self.record = reader.study(name)
            self._begin()
            self._read_trials(reader)
            self._read_state(reader)
            self._make(reader)

    def _begin(self) -> None:
        """Reset the state, initially or after the study was started over."""
        self._rows = TrialRows(self.record.genes)
        self._table: list[list[Any]] = []
        self._trials: dict[int, Trial] = {}
        self._learned: GenesReport | None = None
        self._learned_at = self._next_parts = self._next_cards = float("-inf")
        self._next_row = 0
        self._ended = ""
        self._status = ""
        self._version = 0
        self._database_version = -1
        self._stood = float("-inf")
        self._stale = True
        self._proofs = 0
        self._facts: Facts | None = None
        self._best: Trial | None = None
        self._cards = b""

    def start(self) -> None:
        """Start the two threads that follow the search."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop both threads and wait until the database is closed."""
        self._stop.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=10)

    def page(self) -> bytes:
        """Return the complete page."""
        self._looked = time.monotonic()
        return self._page

    def parts(self) -> bytes:
        """Return the page without its data, and newer cards that replace the cards in the page."""
        with self._lock:
            return self._page.partition(DATA.encode())[0] + self._cards

    def news(self, since: int, texts: int) -> bytes:
        """Return, as JSON, the updates that a page does not have yet.

        Args:
            since: Number of rows that the page has.
            texts: Number of texts that the page has.
        """
        self._looked = time.monotonic()
        with self._lock:
            best = self._best
            return _json(
                {
                    "rows": self._table[since:],
                    "texts": self._rows.texts[texts:],
                    "since": len(self._table),
                    "version": self._version,
                    "study": self.record.uuid,
                    "status": self._status,
                    "ended": bool(self._ended),
                    "champion": best.number if best else None,
                    "champion_us": best.evaluation.time_us if best else None,
                    "baseline": self._facts.baseline if self._facts else None,
                    "refuted": self._facts.refuted if self._facts else {},
                }
            )

    def trial(self, number: int) -> bytes | None:
        """Return the details of a trial's card that are not in the trial's row, or None for an unknown trial.

        The details are the full reason, the samples, and the difference from the source of the current champion, whose
        number is `champion`.
        """
        with self._lock:
            trial, facts, best = self._trials.get(number), self._facts, self._best
        if trial is None:
            return None
        try:
            with open_readonly(self._path) as reader:
                samples = reader.samples(self.record, [number]).get(number)
        except EvokernError:
            samples = None
        found: dict[str, Any] = {"reason": trial.evaluation.reason}
        if samples:
            found["samples"] = thinned(samples)
        if best is not None and facts is not None and facts.sources:
            kept = self._source
            if kept is None or kept[0] != facts.best_digest:
                self._source = kept = facts.best_digest, SourceDifference(facts.sources, self.record.genes)
            found |= {"champion": best.number, "difference": difference(kept[1], best, trial)}
        return _json(found)

    def _follow(self, act: Callable[[Reader], None]) -> None:
        """Call `act` repeatedly while a page is open."""
        try:
            with open_readonly(self._path) as reader:
                while not self._stop.wait(POLL_S):
                    if time.monotonic() - self._looked < WATCHED_S:
                        act(reader)
        except EvokernError as error:
            with self._lock:
                self._status = f"the database can no longer be read: {error}"
                self._ended = "unreadable"
            self._on_message(self._status)

    def _look(self, reader: Reader) -> None:
        """Read new trials and, at intervals, the study's state."""
        if (version := reader.version()) != self._database_version:
            self._database_version = version
            self._read_trials(reader)
        if time.monotonic() - self._stood >= STATE_POLL_S:
            self._stood = time.monotonic()
            self._read_state(reader)

    def _rebuild_if_due(self, reader: Reader) -> None:
        """Rebuild the parts if they are due, or else the cards of a new champion."""
        now = time.monotonic()
        if self._stale and now >= self._next_parts:
            self._make(reader)
        elif now >= self._next_cards:
            self._make_cards(reader)

    def _read_state(self, reader: Reader) -> None:
        """Read the study's state."""
        studies = reader.studies()
        named = [one for one in studies if one.name == self.record.name]
        # A study that starts over is renamed first, so briefly no study has the name.
        current = next(iter([*named, *(one for one in studies if one.uuid == self.record.uuid)]), None)
        if current is None:
            raise StudyError(f"study {self.record.name} is no longer in {self._path}")
        if current.uuid != self.record.uuid:
            with self._lock:
                self.record = current
                self._begin()
            self._read_trials(reader)
        proofs = sum(len(reader.proofs(current, kind)) for kind in ("verify", "ablate", "undone"))
        if proofs != self._proofs:
            # A new verification is rare and can change the champion, so rebuild at once.
            self._proofs, self._stale, self._next_parts = proofs, True, float("-inf")
        self._update_status(reader.sessions(current))

    def _read_trials(self, reader: Reader) -> None:
        found, self._next_row = reader.trials_since(self.record, self._next_row)
        fresh = [trial for _, trial in found if trial.number not in self._trials]
        with self._lock:
            for trial in fresh:
                self._trials[trial.number] = trial
                self._table.append(self._rows.row(trial))
            self._update_champion(fresh)
        self._stale = self._stale or bool(fresh)

    def _update_status(self, sessions: list[SessionRecord]) -> None:
        """Update the status line."""
        last = sessions[-1] if sessions else None
        best = self._best
        spent = duration(sum(session.elapsed_s for session in sessions))
        unit = "µs predicted" if self.record.predicted else "µs"
        found = f", best {microseconds(best.evaluation.time_us or 0.0)} {unit} (trial {best.number})" if best else ""
        count = f"{count_noun(len(self._trials), 'trial')} in {spent}{found}"
        ended = (last.end_reason or "ended") if last and last.ended else ""
        if ended:
            status = f"Ended ({ended}): {count}"
        elif last and (silent := _silent_s(last)) > SILENT_S:
            status = f"No results for {duration(silent)}; the search may have been killed: {count}"
        else:
            status = f"Searching: {count}"
        if ended != self._ended and self._facts is not None:
            # The end changes the verification state and the stop reason, so rebuild at once.
            self._stale, self._next_parts = True, float("-inf")
            self._on_message(f"the search has ended ({ended})" if ended else "the search continues")
        with self._lock:
            self._status, self._ended = status, ended

    def _take_over(self, facts: Facts, page: bytes | None, cards: bytes) -> None:
        """Publish rebuilt content; the caller must hold the lock."""
        self._facts, self._page, self._cards = facts, page or self._page, cards
        self._version += 1
        self._best = None
        self._update_champion(self._trials.values())

    def _update_champion(self, trials: Iterable[Trial]) -> None:
        """Update the champion; a playoff winner stays champion until the next rebuild."""
        kept = self._facts
        if kept and kept.best and kept.best.evaluation.evidence.get("time_from") == "playoff":
            self._best = kept.best
            return
        refuted = kept.refuted if kept else {}
        known = [self._best] if self._best else []
        running = [t for t in (*known, *trials) if t.outcome is Outcome.MEASURED and t.number not in refuted]
        self._best = min(running, key=lambda t: (t.evaluation.time_us or 0.0, t.number), default=None)

    def _make(self, reader: Reader) -> None:
        """Rebuild the page and schedule the next rebuild."""
        begun = time.thread_time()
        with self._lock:
            record, known, self._stale = self.record, dict(self._trials), False
            table, texts, version = list(self._table), list(self._rows.texts), self._version + 1
        trials = tuple(known[number] for number in sorted(known))
        if self._learned is None or self._ended or time.monotonic() >= self._learned_at:
            before = time.thread_time()
            self._learned = learn(record, trials)
            self._learned_at = time.monotonic() + max(MIN_REBUILD_INTERVAL_S, (time.thread_time() - before) / SHARE)
        facts = gather(reader, record.name, KnownFacts(trials, self._learned))
        live = {"every": round(1000 * PAGE_POLL_S), "version": version, "since": len(table), "study": record.uuid}
        page = render_page(facts, live, (table, texts)).encode()
        with self._lock:
            if self.record.uuid != record.uuid:
                return  # started over in the meantime
            self._take_over(facts, page, b"")
        self._next_parts = time.monotonic() + max(MIN_REBUILD_INTERVAL_S, (time.thread_time() - begun) / SHARE)

    def _make_cards(self, reader: Reader) -> None:
        """Rebuild the first screen if there is a new champion."""
        begun = time.thread_time()
        with self._lock:
            record, facts, best = self.record, self._facts, self._best
            if facts is None or best is None or (facts.best is not None and facts.best.number == best.number):
                return
            known = dict(self._trials)
        facts = facts_with_champion(reader, facts, tuple(known[number] for number in sorted(known)), best.number)
        cards = render_first(facts).encode()
        with self._lock:
            if self.record.uuid != record.uuid:
                return  # started over in the meantime
            self._take_over(facts, None, cards)
        self._next_cards = time.monotonic() + max(LEAST_CARDS_S, (time.thread_time() - begun) / SHARE)


def _silent_s(session: SessionRecord) -> float:
    """Return the time since a session last wrote, in seconds."""
    try:
        started = datetime.datetime.fromisoformat(session.started)
    except ValueError:
        return 0.0
    now = datetime.datetime.now(started.tzinfo)
    return (now - started).total_seconds() - session.elapsed_s


def _json(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":"), allow_nan=False).encode()
