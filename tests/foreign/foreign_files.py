"""CUDA files that nobody here wrote: where their texts are, how each is run, and what is expected of it.

`sources.toml` names repository, commit, path and SHA-256 of every file and header. The texts are not part of this
repository: they are read from a folder laid out as OWNER/NAME/PATH, and fetched into it where they are missing.
"""

from __future__ import annotations

import hashlib
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evokern.analysis.sanitize.arguments import parse_argument
from evokern.analysis.sanitize.candidate import chip_for_architecture
from evokern.analysis.sanitize.file import FileLaunch, sanitize_file
from evokern.errors import EvokernError

RAW = "https://raw.githubusercontent.com"


class Unavailable(Exception):  # noqa: N818 (the suite is skipped for it)
    """A text is neither in the folder nor to be had."""


@dataclass(frozen=True)
class Text:
    """One file of a public repository."""

    repository: str
    """Owner and name."""
    commit: str
    """Commit at which it is read."""
    path: str
    """Path in the repository."""
    sha256: str
    """Digest of its bytes."""

    def place(self, folder: Path) -> Path:
        """Return where it lies in a folder of texts."""
        return folder / self.repository / self.path

    def provide(self, folder: Path) -> Path:
        """Return its place, fetched where it is not there.

        Raises:
            Unavailable: it cannot be fetched, or its digest is another.
        """
        place = self.place(folder)
        if not place.is_file():
            url = f"{RAW}/{self.repository}/{self.commit}/{self.path}"
            try:
                with urllib.request.urlopen(url, timeout=30) as answer:
                    content = answer.read()
            except (OSError, urllib.error.URLError) as error:
                raise Unavailable(f"{self.path} of {self.repository} is not in {folder}, and {url}: {error}") from None
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        found = hashlib.sha256(place.read_bytes()).hexdigest()
        if found != self.sha256:
            raise Unavailable(f"{place} has the digest {found}, and {self.sha256} is meant: commit {self.commit}")
        return place


@dataclass(frozen=True)
class Expected:
    """What a run must come to."""

    outcome: str
    """`runs` (without a finding), `warning` (what a sanitizer says without calling the kernel wrong), `finding` (a real
    defect of the file), or `refused` (for a true reason)."""
    kind: str = ""
    """Of a finding or a warning: its kind."""
    line: int = 0
    """Of a finding or a warning: its line."""
    also: tuple[str, ...] = ()
    """Kinds of findings that the same defect may bring at other lines."""
    reason: str = ""
    """Of a refusal: words that its message must hold."""


@dataclass(frozen=True)
class Run:
    """One kernel of a file, launched."""

    text: Text
    """The file."""
    launch: dict[str, Any]
    """Entry, grid, block and the rest, as `sources.toml` has them."""
    expected: Expected
    """What must come of it."""
    later: bool
    """Whether the file was chosen after the work that this suite measures was done."""

    @property
    def name(self) -> str:
        """File and kernel."""
        return f"{self.text.repository}/{self.text.path}:{self.launch['entry']}"

    def result(self, folder: Path) -> Result:
        """Run it."""
        path = self.text.place(folder)
        launch = self.launch
        try:
            wanted = FileLaunch(
                path,
                launch["entry"],
                _extent(launch.get("grid", "1")),
                _extent(launch["block"]),
                launch.get("shared", 0),
                tuple(parse_argument(word) for word in launch.get("arguments", "").split()),
                tuple(launch.get("defines", ())),
                tuple(folder / self.text.repository / name for name in launch.get("include", ())),
                suffix="a" if launch.get("arch", "").endswith("a") else "",
            )
            report = sanitize_file(wanted, chip_for_architecture(launch.get("arch", "sm_89")))
        except EvokernError as error:
            return Result(self, "refused", str(error))
        if not report.findings:
            return Result(self, "runs", "")
        told = "; ".join(f"{finding.kind} at line {finding.line}" for finding in report.findings)
        places = tuple((finding.kind, finding.line) for finding in report.findings)
        matter = any(finding.matters for finding in report.findings)
        return Result(self, "finding" if matter else "warning", told, places)


@dataclass(frozen=True)
class Result:
    """What came of a run."""

    run: Run
    """The run."""
    outcome: str
    """One of those of `Expected`."""
    detail: str
    """Findings, or why it was refused."""
    places: tuple[tuple[str, int], ...] = ()
    """Kind and line of each finding."""

    @property
    def as_expected(self) -> bool:
        """Whether it came to what it had to; a defect that is known brings no other one along."""
        wanted = self.run.expected
        if self.outcome != wanted.outcome:
            return False
        if wanted.outcome in ("finding", "warning"):
            others = {kind for kind, line in self.places if (kind, line) != (wanted.kind, wanted.line)}
            return (wanted.kind, wanted.line) in self.places and others <= set(wanted.also)
        return wanted.reason in self.detail

    @property
    def false_finding(self) -> bool:
        """Whether a kernel that is right is called wrong."""
        return self.outcome == "finding" and self.run.expected.outcome != "finding"


def _extent(text: str) -> tuple[int, int, int]:
    x, y, z = (*map(int, text.split(",")), 1, 1)[:3]
    return x, y, z


def texts_and_runs(sources: Path) -> tuple[list[Text], list[Run]]:
    """Return every text that `sources.toml` needs, headers too, and every run."""
    document = tomllib.loads(sources.read_text(encoding="utf-8"))
    commits: dict[str, str] = document["commits"]

    def text(entry: dict[str, Any]) -> Text:
        return Text(entry["repository"], commits[entry["repository"]], entry["path"], entry["sha256"])

    texts = [text(entry) for entry in (*document["header"], *document["file"])]
    return texts, [run for entry in document["file"] for run in _runs(text(entry), entry)]


def _runs(text: Text, entry: dict[str, Any]) -> Iterator[Run]:
    for launch in entry["runs"]:
        expected = Expected(
            launch.get("expect", "runs"),
            launch.get("kind", ""),
            launch.get("line", 0),
            tuple(launch.get("also", ())),
            launch.get("reason", ""),
        )
        yield Run(text, launch, expected, entry.get("later", False))


def provide(sources: Path, folder: Path) -> list[Run]:
    """Return every run of `sources.toml`, its texts in a folder.

    Raises:
        Unavailable: a text is not there and cannot be fetched.
    """
    texts, runs = texts_and_runs(sources)
    for text in texts:
        text.provide(folder)
    return runs
