"""A stored study as a Python object, with its champion, trials, data frame, report and export.

Importing this module is cheap, because the code that reads databases is imported only when needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from evokern.errors import EvokernError, StudyError, UsageError, suggestion
from evokern.files import write_whole

if TYPE_CHECKING:
    import pandas

    from evokern.store import Reader, StudyRecord
    from evokern.study.trial import Trial

Format = Literal["cu", "t4", "trace"]
"""Output format of `StudyResults.export`."""
FORMATS: tuple[Format, ...] = ("cu", "t4", "trace")


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

    path = Path(db)
    with open_readonly(path) as reader:
        return StudyResults(path, reader.study(name))


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
    def trials(self) -> list[Trial]:
        """All recorded trials in number order, without timing samples."""
        with self._reading() as (reader, record):
            return list(reader.trials(record))

    @property
    def summary(self) -> dict[str, Any]:
        """The object that `evokern show --json` prints: outcomes, baseline, champion, limits, cost, control, hints."""
        from evokern.analysis.wrong_trials import hints

        with self._reading() as (reader, record):
            return {**reader.summary(record), "hints": hints(record.kernel, record.genes, reader.trials(record))}

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
        from evokern.results.frame import trials_dataframe

        with self._reading() as (reader, record):
            return trials_dataframe(reader.trials(record), [gene.name for gene in record.genes])

    def report(self, path: str | Path = "report.html") -> Path:
        """Write an HTML report that works offline, and return its path.

        Args:
            path: file to write.

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
        """Export a trial as a CUDA program, or the study for other tools, and return the path of the file.

        Args:
            path: file to write; a T4 file or a trace is compressed if its name ends in `.gz`.
            format: `cu`: one trial as a CUDA program that builds with nvcc alone; this needs the kernel folder. `t4`:
                all trials as a T4 file, for other auto-tuners. `trace`: a timeline of the search as Chrome trace-event
                JSON, to open at ui.perfetto.dev.
            trial: number of the trial; None for the champion.
            problem: index (from 0) of the study's problem for which the program is compiled.
            trust: load the database's copy of the kernel's declaration if the folder is missing or changed.

        Raises:
            StudyError: the trial or problem does not exist, the trial was not measured, or the study has no trials.
            KernelError: the kernel's code differs from the code that the trial ran, and the stored copy is not trusted.
            UsageError: the format is unknown or does not take a trial, or the file cannot be written.
        """
        if format not in FORMATS:
            raise UsageError(f"unknown export format {format!r}: {suggestion(str(format), FORMATS)}")
        file = Path(path)
        with self._reading() as (reader, record):
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
        return _write(file, program.text.encode())

    def __repr__(self) -> str:
        try:
            with self._reading() as (reader, record):
                summary = reader.summary(record)
        except EvokernError as error:
            return f"<study {self.name!r} of {self.db}: {error}>"
        from evokern.results.overview import summary_line

        return f"<study {summary['study']!r} of {self.db}: {summary_line(summary)}>"

    def _repr_html_(self) -> str:
        from evokern.results.overview import overview_html

        with self._reading() as (reader, record):
            return overview_html(reader, record)

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


def _write(file: Path, content: bytes) -> Path:
    try:
        write_whole(file, content)
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}; choose another path") from error
    return file
