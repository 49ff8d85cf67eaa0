"""External sources to evaluate, from files, folders and texts, and the result of an evaluation."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evokern.declaration.foreign import Extent, ForeignSource, LaunchGeometry
from evokern.declaration.problem import ProblemField, words_of
from evokern.errors import SourceError, suggestion
from evokern.escaping import repr_of
from evokern.study.trial import Evaluation, Outcome

_RESULT_EVIDENCE = ("file", "line", "finding", "problem", "input_set", "foreign_load", "diagnosis")
"""Evidence that is useful to readers of the result, in addition to `check` and `reason`."""


@dataclass(frozen=True)
class SourceResult:
    """Result of evaluating one external source."""

    source: str
    """Name of the source: a file name, or `source_3.cu` for a text."""
    evaluation: Evaluation
    """The device's evaluation with all evidence."""
    predicted: bool
    """Whether the time is predicted by a simulated device."""
    baseline: tuple[str, float] | None = None
    """Name and time in µs of the fastest correct baseline."""
    duplicate_of: str | None = None
    """Source with the same machine code and launch that was evaluated in place of this one, or None."""
    fields: tuple[ProblemField, ...] = ()
    """Fields of the kernel's problems."""

    __repr__ = repr_of("source", "outcome", "time_us", "reason")

    @property
    def right(self) -> bool:
        """Whether the source passed the feasibility check, the compiler and the gate."""
        return self.evaluation.passed_gate

    @property
    def outcome(self) -> str:
        """Outcome of the source, a value of `evokern.study.trial.Outcome`."""
        return self.evaluation.outcome.value

    @property
    def check(self) -> str | None:
        """The failed check, the violated constraint or the error of a crash; None for other outcomes."""
        evidence = self.evaluation.evidence
        match self.evaluation.outcome:
            case Outcome.WRONG:
                return str(evidence["check"])
            case Outcome.INFEASIBLE | Outcome.OVER_RESOURCES:
                return str(evidence["constraint"])
            case Outcome.CRASHED:
                return str(evidence["error"])
            case _:
                return None

    @property
    def reason(self) -> str:
        """Reason for the outcome, in one line."""
        evidence = self.evaluation.evidence
        if self.evaluation.outcome is Outcome.DUPLICATE:
            return f"same machine code and launch as {self.duplicate_of}"
        reason, why = " ".join(self.evaluation.reason.split()), str(evidence.get("reason") or "")
        beyond = self.evaluation.outcome in (Outcome.INFEASIBLE, Outcome.OVER_RESOURCES)
        return f"{reason} ({why})" if beyond and why not in reason else reason

    @property
    def share(self) -> float | None:
        """Share of the problem's blocks that ran on a simulated device; None on a GPU, which runs all blocks."""
        return self.evaluation.own_problem_share if self.right else None

    @property
    def covered(self) -> bool | None:
        """Whether all output elements of the problem are known to be written; None if `share` is None."""
        return None if self.share is None else all(one["covered"] for one in self._own.values())

    @property
    def _own(self) -> dict[str, Any]:
        return dict(self.evaluation.evidence.get("own_problem") or {})

    @property
    def doubt(self) -> str:
        """Text about the parts of the problem that were not verified; empty if all parts were verified."""
        if self.share is None or (self.share == 1 and self.covered):
            return ""
        scaled = ", ".join(words_of(self.fields, problem) for problem in self.evaluation.scaled_problems)
        text = f"{100 * self.share:.2g} % of its blocks ran"
        text += f", and all blocks ran on the problem scaled down to {scaled}" if scaled else ""
        return text if self.covered else f"{text}; could not confirm that every output is written"

    @property
    def time_us(self) -> float | None:
        """Median time of a call in µs, or None if the source is not correct."""
        return self.evaluation.time_us if self.right else None

    @property
    def ci95_us(self) -> tuple[float, float] | None:
        """95 % confidence interval of the median in µs, or None for predicted times and incorrect sources."""
        if not self.right or self.predicted or not self.evaluation.timings:
            return None
        return self.evaluation.timings[0].ci95_us

    @property
    def speedup(self) -> float | None:
        """Time of the fastest baseline divided by the source's time, or None without a baseline."""
        return self.baseline[1] / self.time_us if self.baseline and self.time_us else None

    def as_dict(self) -> dict[str, Any]:
        """Return the result as a JSON-serialisable dictionary."""
        evidence = self.evaluation.evidence
        return {
            "source": self.source,
            "right": self.right,
            "outcome": self.outcome,
            "check": self.check,
            "reason": self.reason,
            "time_us": self.time_us,
            "ci95_us": None if self.ci95_us is None else list(self.ci95_us),
            "predicted": self.predicted,
            "speedup": self.speedup,
            "share": self.share,
            "covered": self.covered,
            "duplicate_of": self.duplicate_of,
            "evidence": {name: evidence[name] for name in _RESULT_EVIDENCE if name in evidence},
            "log": str(evidence.get("log", "")),
            "compile_s": self.evaluation.compile_s,
            "device_s": self.evaluation.device_s,
        }


Source = str | Path | ForeignSource
"""A source given by a caller: a path, a text of several lines, or a named source."""
SUFFIX = ".cu"
"""Suffix of source files in a folder."""
LAUNCH_SUFFIX = ".toml"
"""Suffix of the optional launch file next to a source of the same name."""
LAUNCH_KEYS = ("grid", "block", "smem", "set")
"""Keys of a launch file; each has the meaning of the command-line option with the same name."""
MOST_BYTES = 8 << 20
"""Maximum size of a source in bytes, about a hundred times the size of the largest kernel files."""


def given_source(given: Source, number: int = 0) -> ForeignSource:
    """Return one source from a path or from a text.

    Args:
        given: a path, a text (a `str` with a line break), or a named source.
        number: position among other sources, from 0; part of a text's name.

    Raises:
        SourceError: the file does not exist or is too large.
    """
    if isinstance(given, ForeignSource):
        return given
    if isinstance(given, str) and "\n" in given:
        if len(given) > MOST_BYTES:
            raise SourceError(f"source {number} has {len(given):,} characters; at most {MOST_BYTES:,} are accepted")
        return ForeignSource(f"source_{number}.cu", given)
    if not isinstance(given, (str, Path)):
        raise SourceError(f"source {number} is a {type(given).__name__}; pass a path or the text of a CUDA file")
    return _read(Path(given).expanduser())


def sources_of(paths: Iterable[Path]) -> Iterator[ForeignSource]:
    """Return the sources of files and folders; a folder's `.cu` files are sorted by name.

    All paths are checked before the first source is read, so that errors are reported before any evaluation.

    Raises:
        SourceError: a path does not exist, or a folder has no `.cu` file.
    """
    files: list[tuple[Path, str]] = []
    for given in paths:
        path = given.expanduser()
        if path.is_dir():
            inside = sorted(one for one in path.iterdir() if one.suffix == SUFFIX and one.is_file())
            if not inside:
                raise SourceError(f"{given} has no {SUFFIX} file; choose a folder of candidates, or a single file")
            files += [(one, one.name) for one in inside]
        else:
            _require_file(path)
            files.append((path, path.name))
    # If two folders have files of the same name, their full paths distinguish the results.
    names = [name for _, name in files]
    return (_read(path, name if names.count(name) == 1 else str(path)) for path, name in files)


def _require_file(path: Path) -> None:
    if not path.is_file():
        if path.is_dir():
            raise SourceError(f'the source {path} is a folder; pass its files: sorted(Path("{path}").glob("*.cu"))')
        kind = "is not a regular file" if path.exists() else "does not exist"
        raise SourceError(f"the source {str(path)[:200]} {kind}; use a CUDA file or a folder of CUDA files")


def _read(path: Path, name: str | None = None) -> ForeignSource:
    try:
        _require_file(path)
        if path.stat().st_size > MOST_BYTES:
            raise SourceError(
                f"the source {path} has {path.stat().st_size:,} bytes; at most {MOST_BYTES:,} are accepted"
            )
        text = path.read_bytes().decode("utf-8", errors="replace")
    except (OSError, ValueError) as error:
        raise SourceError(f"cannot read the source {str(path)[:200]}: {error}") from error
    genes, geometry = _launch_file(path.with_suffix(LAUNCH_SUFFIX))
    return ForeignSource(path.name if name is None else name, text.removeprefix("\ufeff"), genes, geometry)


def _launch_file(path: Path) -> tuple[Mapping[str, Any], LaunchGeometry]:
    """Return the genes and the launch from a source's launch file, or empty values if there is none.

    Raises:
        SourceError: the file cannot be read, or has an invalid key or value.
    """
    if not path.is_file():
        return {}, LaunchGeometry()
    try:
        with path.open("rb") as file:
            table = tomllib.loads(file.read(MOST_BYTES).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise SourceError(
            f"cannot read {path}, the launch file of the source with the same name: {error}; fix or rename the file"
        ) from error
    for key in table:
        if key not in LAUNCH_KEYS:
            wrong = f"{path} is the launch file of a source, but {key!r} is not a launch key"
            raise SourceError(f"{wrong}: {suggestion(key, LAUNCH_KEYS)}; fix or rename the file")
    smem, genes = table.get("smem"), table.get("set", {})
    if smem is not None and not (type(smem) is int and smem >= 0):
        raise SourceError(f"{path}: smem = {smem!r:.80} is not a number of bytes; use an integer of at least 0")
    if not isinstance(genes, dict) or not all(isinstance(value, (str, int)) for value in genes.values()):
        raise SourceError(
            f"{path}: set = {genes!r:.80} is not a table of genes; write a table [set] with lines GENE = value"
        )
    return genes, LaunchGeometry(_extent(path, "grid", table), _extent(path, "block", table), smem)


def _extent(path: Path, key: str, table: Mapping[str, Any]) -> Extent | None:
    given = table.get(key)
    if given is None:
        return None
    listed = given if isinstance(given, list) else [given]
    if not 1 <= len(listed) <= 3 or not all(type(one) is int and one >= 1 for one in listed):
        raise SourceError(
            f"{path}: {key} = {given!r:.80} is not an extent; use one to three positive integers, such as [64, 2]"
        )
    x, y, z = (*listed, 1, 1)[:3]
    return (x, y, z)
