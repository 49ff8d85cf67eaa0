"""A stored study or the result of a search as a Python object, with its champion, trials, plot, report and export.

Importing this module is cheap, because the code that reads databases is imported only when needed.
"""

from __future__ import annotations

import os
import reprlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, overload

from evokern.errors import EvokernError, StudyError, UsageError, suggestion
from evokern.escaping import repr_of
from evokern.files import write_whole
from evokern.wording import verification_word

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects

    from evokern.declaration.genes import Value
    from evokern.search import EndReason, SessionResult
    from evokern.store import Reader, StudyRecord
    from evokern.study.trial import Outcome, Trial

ExportFormat = Literal["cu", "t4", "trace", "torch"]
"""Output format of `StudyResults.export`."""
packers: dict[str, Callable[..., Path]] = {}
"""Formats that are written by subpackages above this one: the function that writes a trial, and returns the path."""


def load_study(name: str | None = None, *, db: str | Path = "evokern.db") -> StudyResults:
    """Load a study from a database. No GPU, kernel folder or study file is needed.

    Args:
        name: name of the study; None for the study searched last.
        db: database that stores the results.

    Raises:
        StoreError: the database does not exist or cannot be read.
        StudyError: the database does not contain the study; the message lists the studies that it contains.
    """
    from evokern.store import open_readonly

    path = given_path("db", db)
    with open_readonly(path) as reader:
        return StudyResults(path, reader.study(stored_name(name)))


@dataclass(frozen=True, repr=False)
class StudySummary:
    """One study of a database, as `list_studies` returns it."""

    name: str
    """Name of the study."""
    kernel: str
    """Name of the kernel."""
    problems: tuple[str, ...]
    """Problems in readable form, such as `B=2 S=512`."""
    device: str
    """Device model."""
    trials: int
    """Number of recorded trials."""
    best_time_us: float | None
    """Time of the champion in µs; None if no trial has been measured."""

    __repr__ = repr_of("name", "device", "trials", "best_time_us")


def list_studies(db: str | Path = "evokern.db") -> list[StudySummary]:
    """Return a summary of each study in a database, starting with the study searched last.

    Args:
        db: database that stores the results.

    Raises:
        StoreError: the database does not exist or cannot be read.
    """
    from evokern.store import open_readonly

    found = []
    with open_readonly(given_path("db", db)) as reader:
        for record in reader.studies():
            best = reader.best(record)
            problems = tuple(record.in_words(problem) for problem in record.problems)
            trials, time_us = sum(reader.outcomes(record).values()), best.time_us if best else None
            found.append(StudySummary(record.name, record.kernel, problems, record.device, trials, time_us))
    return found


def stored_name(name: str | None) -> str | None:
    """Return the name of a stored study that a caller gives.

    Raises:
        StudyError: the value is not a name.
    """
    if name is None or isinstance(name, str):
        return name
    raise StudyError(f"study = {reprlib.repr(name)}; use the name of a study, or None for the study searched last")


def given_path(name: str, path: str | Path) -> Path:
    """Return a path that a caller gives.

    Args:
        name: name of the argument, for the message.
        path: the path.

    Raises:
        UsageError: the value is not a path.
    """
    if isinstance(path, (str, os.PathLike)) and os.fspath(path):
        return Path(path)
    raise UsageError(f"{name} = {reprlib.repr(path)}; use the path of a file")


@dataclass(frozen=True, eq=False, repr=False)
class StudyResults:
    """Results of a study.

    Every access reads the database, so the results are current even while a search is running. An access raises
    StoreError if the database cannot be read, and StudyError if the study was deleted.
    """

    db: Path
    """The database."""
    record: StudyRecord
    """The study's record when it was loaded: kernel, genes, problems, device, sampler, settings and budgets."""

    @property
    def name(self) -> str:
        """Name of the study."""
        return self.record.name

    @property
    def best(self) -> Trial | None:
        """The champion with its timing samples, or None if no trial has been measured.

        After a playoff (`evokern verify`), the champion is its winner, with the time measured in the playoff.
        """
        with self._reading() as (reader, record):
            return reader.best(record)

    @property
    def best_params(self) -> dict[str, Value]:
        """Value of each gene of the champion, by name; empty if no trial has been measured."""
        best = self.best
        return best.params if best else {}

    @property
    def best_time_us(self) -> float | None:
        """Time of the champion in µs, or None if no trial has been measured."""
        best = self.best
        return best.time_us if best else None

    @property
    def speedup(self) -> float | None:
        """Time of the fastest baseline divided by the time of the champion; None if either is unknown."""
        best = self._summary()["best"]
        return best["speedup"] if best else None

    @property
    def trials(self) -> list[Trial]:
        """All recorded trials in number order, without timing samples."""
        return self.get_trials()

    def __iter__(self) -> Iterator[Trial]:
        return iter(self.trials)

    def __len__(self) -> int:
        with self._reading() as (reader, record):
            return sum(reader.outcomes(record).values())

    def __bool__(self) -> bool:
        return True  # also without trials

    @overload
    def __getitem__(self, index: int) -> Trial: ...
    @overload
    def __getitem__(self, index: slice) -> list[Trial]: ...
    def __getitem__(self, index: int | slice) -> Trial | list[Trial]:
        trials = self.trials
        try:
            return trials[index]
        except IndexError:
            raise IndexError(f"study {self.name!r} has {len(trials)} trials, but not [{index}]") from None

    def get_trials(self, outcomes: str | Outcome | Iterable[str | Outcome] | None = None) -> list[Trial]:
        """Return the recorded trials in number order, without timing samples.

        Args:
            outcomes: one outcome or several, such as `"measured"`; None for all.

        Raises:
            UsageError: an outcome is unknown.
        """
        from evokern.study.trial import Outcome

        several = isinstance(outcomes, Iterable) and not isinstance(outcomes, str)
        given: Any = Outcome if outcomes is None else outcomes if several else [outcomes]
        try:
            wanted = {Outcome(one) for one in given}
        except ValueError as error:
            raise UsageError(str(error)) from error
        with self._reading() as (reader, record):
            return [trial for trial in reader.trials(record) if trial.outcome in wanted]

    @property
    def summary(self) -> dict[str, Any]:
        """The object that `evokern show --json` prints: outcomes, baseline, champion, limits, cost, control, hints."""
        from evokern.analysis.no_success import hints_of

        with self._reading() as (reader, record):
            return {**reader.summary(record), "hints": hints_of(record, reader.trials(record))}

    def trials_dataframe(self) -> pandas.DataFrame:
        """Return the trials as a pandas data frame, with one row per trial in number order.

        Columns:

        - `number`, `outcome`, `reason`, `params_GENE` for every gene, and the program's `fingerprint`
        - `control`: whether the trial belongs to the control
        - `time_us`: time in µs, or NaN; `ci95_low_us`, `ci95_high_us`: its 95 % interval
        - `seconds`: study time when the trial was recorded; `compile_s`, `device_s`: time spent on it
        - `registers`, `spill_bytes`: per thread; `shared_bytes`: per block; `occupancy`: 0 to 1

        Raises:
            UsageError: pandas is not installed.
        """
        from evokern.results.overview import trials_dataframe

        with self._reading() as (reader, record):
            return trials_dataframe(reader.trials(record), [gene.name for gene in record.genes])

    def plot_convergence(self) -> plotly.graph_objects.Figure:
        """Return a Plotly figure of the time of each measured trial, the best time so far, and the baseline.

        Raises:
            UsageError: Plotly is not installed.
        """
        from evokern.results.overview import convergence

        with self._reading() as (reader, record):
            return convergence(record, reader.trials(record), reader.baseline(record))

    def report(self, path: str | Path = "report.html") -> Path:
        """Write an HTML report that works offline, and return its path.

        Args:
            path: file to write.

        Raises:
            UsageError: the file cannot be written.
        """
        from evokern.report import page

        with self._reading() as (reader, record):
            return _write(given_path("path", path), page(reader, record.name).encode())

    def export(
        self,
        path: str | Path = "best.cu",
        format: ExportFormat = "cu",
        *,
        trial: int | None = None,
        problem: int = 0,
        trust: bool = False,
    ) -> Path:
        """Export a trial as a CUDA program, or the study for other tools, and return the path of the file.

        Args:
            path: file to write; a T4 file or a trace is compressed if its name ends in `.gz`.
            format: `cu`: one trial as a CUDA program that builds with nvcc alone; this needs the kernel folder. A
                kernel without reference.h gets a second file, NAME.golden, from which the program checks itself. `t4`:
                all trials as a T4 file, for other auto-tuners. `trace`: a timeline of the search as Chrome trace-event
                JSON, to open at ui.perfetto.dev. `torch`: one verified trial as an operator for torch, in a folder
                that `pip install` installs.
            trial: number of the trial; None for the champion.
            problem: index (from 0) of the study's problem for which the program is compiled.
            trust: load the database's copy of the kernel's declaration if the folder is missing or changed.

        Raises:
            StudyError: the trial or problem does not exist, the trial was not measured, or the study has no trials.
            KernelError: the kernel's code differs from the code that the trial ran, and the stored copy is not trusted.
            UsageError: the format is unknown or does not take a trial, or the file cannot be written.
        """
        if format not in get_args(ExportFormat):
            raise UsageError(f"unknown export format {format!r}: {suggestion(str(format), get_args(ExportFormat))}")
        file = given_path("path", path)
        if not all(value is None or hasattr(value, "__index__") for value in (trial, problem)):
            raise UsageError(f"trial = {trial!r}, problem = {problem!r}; use whole numbers")
        with self._reading() as (reader, record):
            if format in packers:
                return packers[format](reader, record.name, trial, file, problem=problem, trust=trust)
            if format != "cu":
                if trial is not None or problem:
                    name = {"t4": "a T4 file", "trace": "a trace"}[format]
                    raise UsageError(f"{name} contains all trials and problems; omit trial and problem")
                from evokern.export.search_trace import search_trace
                from evokern.export.t4 import json_bytes, t4

                made = t4(reader, record) if format == "t4" else search_trace(reader, record)
                return _write(file, json_bytes(made, file))
            from evokern.export import export_trial

            program = export_trial(reader, record.name, trial, problem=problem, file_name=file.name, trust=trust)
        if program.unchecked:
            warnings.warn(f"the program has no check: {program.unchecked}", UserWarning, stacklevel=2)
        if program.golden is not None:
            _write(file.with_name(program.golden.file_name), program.golden.data)
        return _write(file, program.text.encode())

    def __repr__(self) -> str:
        try:
            summary = self._summary()
        except EvokernError as error:
            return f"<study {self.name!r} of {self.db}: {error}>"
        from evokern.results.overview import summary_line

        proof = f", {verification_word(summary)}" if summary["best"] else ""
        return f"<study {summary['study']!r} of {self.db}: {summary_line(summary)}{proof}>"

    def _repr_html_(self) -> str:
        from evokern.results.overview import overview_html

        with self._reading() as (reader, record):
            return overview_html(reader, record)

    def _summary(self) -> Mapping[str, Any]:
        with self._reading() as (reader, record):
            return reader.summary(record)

    @contextmanager
    def _reading(self) -> Iterator[tuple[Reader, StudyRecord]]:
        """Open the database and find the study by UUID, because a newer study may have the same name."""
        from evokern.store import open_readonly

        with open_readonly(self.db) as reader:
            record = next((one for one in reader.studies() if one.uuid == self.record.uuid), None)
            if record is None:
                raise StudyError(
                    f"study {self.name!r} is no longer in {self.db}; load the study searched last with "
                    f"evokern.load_study(db={str(self.db)!r})"
                )
            yield reader, record


@dataclass(frozen=True, eq=False, repr=False)
class SearchResult(StudyResults):
    """Result of a search: the study with the reason why the session ended.

    `best` and `summary`, and all values derived from them, are those at the end of the session.
    """

    _session: SessionResult
    """The session as of its end."""

    @property
    def study(self) -> str:
        """Name of the study."""
        return self._session.study

    @property
    def end(self) -> EndReason:
        """Reason why the session ended."""
        return self._session.end

    @property
    def interrupted(self) -> bool:
        """Whether the user stopped the session."""
        return self._session.interrupted

    @property
    def best(self) -> Trial | None:
        """The champion with its timing samples, or None if no trial has been measured."""
        return self._session.best

    @property
    def summary(self) -> dict[str, Any]:
        """The object that `evokern show --json` prints, without hints."""
        return dict(self._session.summary)

    def _summary(self) -> Mapping[str, Any]:
        return self._session.summary


def _write(file: Path, content: bytes) -> Path:
    try:
        write_whole(file, content)
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}; choose another path") from error
    return file
