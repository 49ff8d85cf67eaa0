"""Check that texts follow the language rules of CONTRIBUTING.md: banned words, long sentences, dates, long lines.

python docs/lint_words.py [FILE ...]        without FILE: everything that a person reads

Texts are the Markdown pages, the docstrings, comments and sentence-like strings of `evokern/` and `kernels/`, and the
comments of CUDA sources, studies and templates. To keep a banned word, put `words: REASON` in a comment on the line of
the text or on the line before it. `words, whole file: REASON` in the first three lines excludes a file.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BANNED = {
    r"anew": "again, from scratch, start over",
    r"(?:go|goes|going|went|gone) on": "resume, continue",
    r"tells?|telling|told": "report, show, state, say",
    r"besides?": "next to, with, in addition to, also",
    r"in turn": "one after another, alternately, head-to-head",
    r"stands?(?! for\b)|stood|standing": "is, appears, exists",
    r"who(?:so|se|m)?ever": "any user, anyone",
    r"what (?:came|comes|became|becomes) of": "the result of",
    r"(?:leave|leaves|leaving|left) (?:\S+ )?away": "omit",
    r"(?:turn|turns|turned|turning) (?:\S+ )?away": "reject",
    r"of (?:which|whom)": "two sentences",
    r"(?<!there )(?:is|are|was|were) no(?! (?:more|longer)\b)": "is not a",
    r"mend(?:s|ed|ing)?": "fix, correct",
    r"remarks?": "note",
    r"at hand": "current, given",
    r"surroundings": "environment",
    r"(?:held?|holds|holding) (?:\S+ )?against": "compare with",
    r"of evokern's|of (?:yours|theirs|ours)": "a bug in evokern, your ...",
    r"per cent": "%",
    r"(?:measured|times|told|tell) apart": "separately, distinguish",
    r"earn(?:s|ed)? its keep": "pay off",
    r"thereof|therein|wherein|whereof|wherefore|thereby": "plain words",
    r"who proposes": "the sampler",
    r"rooms?": "layer, package; for memory: space",
    r"(?:said|called|named) so": "said, called",
    r"begins? with what": "start from",
    r"from outside": "external",
    r"of (?:its|their|his) own making": "own",
}
"""Word or phrase (a regular expression, matched between word boundaries) and what to write instead."""
WORD = re.compile(r"(?<![\w-])(?:" + "|".join(f"(?:{one})" for one in BANNED) + r")(?![\w-])", re.IGNORECASE)
SUBJECT = re.compile(r"(?:^|(?<=[.:;|] ))(?:What|Who|Whom|Which|Whoever|Whatever) [^?]*$")
"""Pattern of a statement whose subject is a question word."""
DATED = re.compile(r"\b20\d\d-\d\d-\d\d\b|±")
MAX_WORDS = 25
"""Maximum number of words in a sentence; a code span counts as one word."""
MAX_LINE = 120
"""Maximum number of characters in a line of a page, outside tables and code."""
MARKER = re.compile(r"\bwords: \S")
WHOLE_FILE = re.compile(r"\bwords, whole file: \S")


class Text(NamedTuple):
    """One text and its location."""

    file: Path
    line: int
    kind: str
    text: str


Reader = Callable[[Path, list[str]], Iterator[Text]]
"""Function that returns the texts of a file, given its lines."""


def main(names: list[str]) -> int:
    """Print the violations of the rules; return 1 if there are any."""
    files = [Path(name).resolve() for name in names] or sorted(readable())
    found = [one for file in files for one in problems(file)]
    if not names:
        found += subjects()
    for one in found:
        print(one)
    if found:
        print(f"{len(found)} places break the language rules of CONTRIBUTING.md")
    return int(bool(found))


def readable() -> Iterator[Path]:
    """Return the files whose texts are checked."""
    for name in _git("ls-files", "--cached", "--others", "--exclude-standard"):
        file = ROOT / name
        if not file.is_file() or name == "docs/lint_words.py":
            continue
        page = name.endswith(".md") and not name.startswith("tests/data/")
        if page or (name.startswith(("evokern/", "kernels/", "docs/", "studies/")) and _reader(file)):
            yield file


def problems(file: Path) -> list[str]:
    """Return a line for each violation in a file."""
    lines = file.read_text(encoding="utf-8").splitlines()
    if any(WHOLE_FILE.search(line) for line in lines[:3]):
        return []
    reader = _reader(file)
    found = []
    for one in reader(file, lines) if reader else ():
        if any(MARKER.search(line) for line in lines[max(0, one.line - 2) : one.line]):
            continue
        place = f"{_shown(file)}:{one.line}"
        plain = CODE.sub("x", one.text)
        found += [f"{place}: {match[0]!r}: write {_instead(match[0])}" for match in WORD.finditer(plain)]
        for sentence in SENTENCE_END.split(plain):
            words = len(sentence.split())
            if one.kind != "comment" and words > MAX_WORDS:
                found.append(f"{place}: a sentence of {words} words: {sentence.strip()[:50]!r}")
            if one.kind != "comment" and SUBJECT.search(sentence.strip()):
                found.append(f"{place}: a question word as subject: {sentence.strip()[:50]!r}")
    if file.suffix == ".md":
        found += page_problems(file, lines)
    return found


CODE = re.compile(r"``.*?``|`[^`\n]*`|\[([^\]]*)\]\([^)]*\)|\{[^{}]*\}|https?://\S+")
SENTENCE_END = re.compile(
    r"(?<=[.!?:;])\s+|\s+[–—|-]\s+|\n\s*\n|\n\s*[-*|#] |\n(?=Args:|Returns:|Raises:)|\n(?=\s+\w+: )"
)


def page_problems(file: Path, lines: list[str]) -> list[str]:
    """Return the violations in the lines of a page: long lines, and dates outside the laboratory notes."""
    log = file.name in ("results.md", "CHANGELOG.md") or file.parent.name == "lab"
    found = []
    for number, line in _prose_lines(lines):
        if len(line) > MAX_LINE and not line.startswith(("|", "![", "[")) and not re.fullmatch(r"\s*\S+\s*", line):
            found.append(f"{_shown(file)}:{number}: {len(line)} characters")
    if not log and file.is_relative_to(ROOT / "docs"):
        found += [
            f"{_shown(file)}:{number}: {match[0]!r}: measurements with dates belong in docs/lab/"
            for number, line in enumerate(lines, 1)
            if (match := DATED.search(CODE.sub("x", line)))
        ]
    return found


def _prose_lines(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Return the numbers and texts of the lines outside fenced code."""
    fenced = False
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


def _markdown(file: Path, lines: list[str]) -> Iterator[Text]:
    """Return paragraphs, list items and table cells of a page."""
    start, parts = 0, []
    for number, line in [*_prose_lines(lines), (len(lines) + 1, "")]:
        row = line.lstrip().startswith("|")
        begins = re.match(r"\s*(?:[-*] |\d+\. |#+ )", line)
        if (not line.strip() or row or begins or (parts and number != start + len(parts))) and parts:
            yield Text(file, start, "prose", " ".join(parts))
            parts = []
        if row:
            for cell in re.split(r"(?<!\\)\|", line.strip().strip("|")):
                yield Text(file, number, "prose", cell.strip())
        elif line.startswith("#"):
            continue
        elif line.strip():
            start = start if parts else number
            parts.append(re.sub(r"^\s*(?:[-*]|\d+\.) ", "", line).strip())


def _python(file: Path, lines: list[str]) -> Iterator[Text]:
    """Return docstrings, strings of three words and more, and comments of a module."""
    source = "\n".join(lines) + "\n"
    tree = ast.parse(source)
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant | ast.JoinedStr) or id(node) in inner:
            continue
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        text = "".join(str(one.value) if isinstance(one, ast.Constant) else "x" for one in parts)
        if isinstance(node, ast.Constant) and not isinstance(node.value, str):
            continue
        if id(node) in docs:
            yield Text(file, node.lineno, "docstring", text)
        elif text.count(" ") >= 2 and not re.search(r"SELECT|CREATE TABLE|INSERT|#include|\n.*;\n", text):
            yield Text(file, node.lineno, "string", text)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not MARKER.search(token.string):
            yield Text(file, token.start[0], "comment", token.string)


def _commented(pattern: str) -> Reader:
    """Return a function that reads the comments that match a pattern."""

    def read(file: Path, lines: list[str]) -> Iterator[Text]:
        text = "\n".join(lines)
        for match in re.finditer(pattern, text, re.DOTALL | re.MULTILINE):
            yield Text(file, text.count("\n", 0, match.start()) + 1, "comment", match[0])

    return read


_TAGS = _commented(r">[^<>{}]{3,}<")
READERS: dict[str, Reader] = {
    ".md": _markdown,
    ".py": _python,
    ".toml": _commented(r"#[^\n]*"),
    ".j2": _TAGS,
    ".html": _TAGS,
    **dict.fromkeys((".cu", ".cuh", ".h", ".in", ".js"), _commented(r"//[^\n]*|/\*.*?\*/")),
}


def _reader(file: Path) -> Reader | None:
    """Return the function that reads the texts of a file, or None."""
    return READERS.get(file.suffix)


def subjects() -> list[str]:
    """Return the commits without upstream copy whose subject breaks the rule.

    Without an upstream branch, all commits after the one that added this file count.
    """
    start = _git("rev-parse", "--quiet", "--verify", "@{upstream}")
    start = start or _git("log", "--diff-filter=A", "--format=%H", "--", "docs/lint_words.py")
    listed = _git("log", "--no-merges", "--format=%h %s", f"{start[-1]}..HEAD") if start else []
    return [
        f"commit {line}: write 'area: imperative change' with at most 72 characters"
        for line in listed
        if not re.fullmatch(r"[\w/., -]+: .+", line.partition(" ")[2]) or len(line.partition(" ")[2]) > 72
    ]


def _git(*words: str) -> list[str]:
    """Return the lines that a git command prints."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.splitlines()


def _instead(word: str) -> str:
    """Return the replacement of a banned word."""
    return next(better for one, better in BANNED.items() if re.fullmatch(one, word, re.IGNORECASE))


def _shown(file: Path) -> Path:
    """Return a file's path below the root of the project."""
    return file.relative_to(ROOT) if file.is_relative_to(ROOT) else file


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
