"""A study of a database as a Python object: champion, trials, data frame, report, export.

Importing this module is cheap: what reads databases is imported when something is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from evokern.errors import EvokernError, StudyError, UsageError, nearest
from evokern.files import write_bytes

if TYPE_CHECKING:
    import pandas

    from evokern.store import Reader, StudyRecord
    from evokern.study.trial import Trial

Format = Literal["cu", "t4", "trace"]
"""What `StudyResults.export` writes."""
FORMATS: tuple[Format, ...] = ("cu", "t4", "trace")


def load_study(name: str | None = None, *, db: str | Path = "evokern.db") -> StudyResults:
    """Return a study of a database. It needs no GPU, no kernel folder and no study file.

    Args:
        name: the study's name; None takes the one searched last.
        db: database that keeps the results.

    Raises:
        StoreError: there is no such database, or it cannot be read.
        StudyError: it holds no such study; the message names those that it holds.
    """
    from evokern.store import open_readonly

    path = Path(db)
    with open_readonly(path) as reader:
        return StudyResults(path, reader.study(name))


@dataclass(frozen=True, eq=False, repr=False)
class StudyResults:
    """What a study found.

    It is read whenever it is asked for, so that a search which still runs is seen as it stands. Every access raises
    StoreError where the database cannot be read, and StudyError where the study was deleted.
    """

    db: Path
    """The database."""
    record: StudyRecord
    """The study as it stood when it was loaded: kernel, genes, problems, device, sampler, settings, budgets."""

    @property
    def name(self) -> str:
        """The study's name."""
        return self.record.name

    @property
    def best(self) -> Trial | None:
        """The champion with its samples, or None while nothing is measured.

        After a playoff (`evokern verify`) it is the playoff's winner, at the time that the playoff gave it.
        """
        with self._reading() as (reader, record):
            return reader.best(record)

    @property
    def trials(self) -> list[Trial]:
        """Every recorded trial in number order, without timing samples."""
        with self._reading() as (reader, record):
            return list(reader.trials(record))

    @property
    def summary(self) -> dict[str, Any]:
        """The object that `evokern show --json` prints: outcomes, baseline, best, limit, cost, control, hints."""
        from evokern.analysis.wrong_trials import hints

        with self._reading() as (reader, record):
            return {**reader.summary(record), "hints": hints(record.kernel, record.genes, reader.trials(record))}

    def trials_dataframe(self) -> pandas.DataFrame:
        """Return the trials as a data frame of pandas, one row each in number order.

        Columns: `number`, `outcome`, `time_us` (µs; NaN where there is none), `params_GENE` for every gene,
        `ci95_low_us` and `ci95_high_us` (95 % interval of the time), `reason`, `control` (whether random search drew
        it), `seconds` (study time at which it was recorded), `compile_s` and `device_s`, `registers` of a thread,
        `spill_bytes` of a thread, `shared_bytes` of a block, `occupancy` (0 to 1), `fingerprint` of the program.

        Raises:
            UsageError: pandas is not installed.
        """
        from evokern.results.frame import trials_dataframe

        with self._reading() as (reader, record):
            return trials_dataframe(reader.trials(record), [gene.name for gene in record.genes])

    def report(self, path: str | Path = "report.html") -> Path:
        """Write the report, one HTML page that needs no network, and return its path.

        Args:
            path: the file.

        Raises:
            UsageError: the file cannot be written.
        """
        from evokern.report import page

        with self._reading() as (reader, record):
            return _write(Path(path), page(reader, record.name).encode())

    def export(
        self,
        path: str | Path = "best.cu",
        format: Format = "cu",
        *,
        trial: int | None = None,
        problem: int = 0,
        trust: bool = False,
    ) -> Path:
        """Write a candidate as a program of its own, or the study for other tools, and return the file's path.

        Args:
            path: the file; a T4 file or a trace whose name ends in `.gz` is compressed.
            format: `cu`: one trial as a `.cu` that builds with nvcc alone, for which the kernel's folder is needed.
                `t4`: every trial as a T4 file, for other auto-tuners. `trace`: when each trial was compiled, checked
                and timed, as Chrome's trace-event JSON, which ui.perfetto.dev opens.
            trial: number of the trial; None takes the champion.
            problem: which of the study's problems the program is compiled for, counted from 0.
            trust: load the kernel's declaration as the database keeps it, where the folder is gone or changed.

        Raises:
            StudyError: there is no such trial or problem, or the trial was not measured; the study has no trial.
            KernelError: the kernel's code is not the one that the trial ran, and is not trusted.
            UsageError: the format is unknown or takes no trial, or the file cannot be written.
        """
        if format not in FORMATS:
            raise UsageError(f"there is no format {format!r} to export to: {nearest(str(format), FORMATS)}")
        file = Path(path)
        with self._reading() as (reader, record):
            if format != "cu":
                if trial is not None or problem:
                    name = {"t4": "a T4 file", "trace": "a trace"}[format]
                    raise UsageError(f"{name} holds every trial and problem; leave trial and problem away")
                from evokern.export.search_trace import search_trace
                from evokern.export.t4 import json_bytes, t4

                made = t4(reader, record) if format == "t4" else search_trace(reader, record)
                return _write(file, json_bytes(made, file))
            from evokern.export import export_trial

            program = export_trial(reader, record.name, trial, problem=problem, file_name=file.name, trust=trust)
        return _write(file, program.text.encode())

    def __repr__(self) -> str:
        try:
            with self._reading() as (reader, record):
                summary = reader.summary(record)
        except EvokernError as error:
            return f"<study {self.name!r} of {self.db}: {error}>"
        from evokern.results.overview import standing

        return f"<study {summary['study']!r} of {self.db}: {standing(summary)}>"

    def _repr_html_(self) -> str:
        from evokern.results.overview import overview_html

        with self._reading() as (reader, record):
            return overview_html(reader, record)

    @contextmanager
    def _reading(self) -> Iterator[tuple[Reader, StudyRecord]]:
        """Open the database, and find the study by its identity: a fresh search may have taken its name over."""
        from evokern.store import open_readonly

        with open_readonly(self.db) as reader:
            record = next((one for one in reader.studies() if one.uuid == self.record.uuid), None)
            if record is None:
                raise StudyError(
                    f"study {self.name!r} is no longer in {self.db}; evokern.load_study(db={str(self.db)!r}) loads the "
                    "one that was searched last"
                )
            yield reader, record


def _write(file: Path, content: bytes) -> Path:
    try:
        write_bytes(file, content)
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}; give another path") from error
    return file
