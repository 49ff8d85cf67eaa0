"""Hostile words for every text of a database, and a page's markup without its texts."""

from __future__ import annotations

import json
import sqlite3
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from engine_helpers import small_table
from stored_studies import reseal

from evokern.store._integrity import COLUMN
from evokern.study.trial import Outcome

HOSTILE = "</title></td><script>alert('x')</script> & \"quoted\" <img src=x onerror='y'> {{ study }} &lt; --> ]]>"
FIXED = {
    *(outcome.value for outcome in Outcome),
    *("passed", "failed", "skipped", "random", "ablate", "verify", "parameter", "mutation", "operations"),
    *(gene.name for gene in small_table().genes),
    *("NVIDIA H200", "trial 3"),
}
"""Texts that decide what is shown, or that a database cannot hold otherwise: gene names are identifiers."""
IDENTITIES = ("uuid", "study", "session", "trial", "digest", "kernel_digest", "fingerprint")
"""Columns that tie rows to each other."""
FREE_KEYS = ("environment", "gate")
"""Columns with JSON objects whose keys are anybody's."""


def _hostile(text: str, words: str) -> str:
    return text if text in FIXED or not text else text + words


def _in_json(value: Any, words: str, *, keys: bool) -> Any:
    if isinstance(value, dict):
        return {
            _hostile(key, words) if keys else key: _in_json(entry, words, keys=keys) for key, entry in value.items()
        }
    if isinstance(value, list):
        return [_in_json(entry, words, keys=keys) for entry in value]
    return _hostile(value, words) if isinstance(value, str) else value


def _in_column(column: str, text: str | None, words: str) -> str | None:
    if not text:
        return text
    if column == "result":
        found = json.loads(text)
        if "stages" in found:
            found["stages"] = {_hostile(name, words): stage for name, stage in found["stages"].items()}
        return json.dumps(_in_json(found, words, keys=False))
    if text[0] in "{[":
        # The driver's reasons for throttling are words too; the studies of the tests have none.
        throttled = text.replace('"throttle":""', '"throttle":"heat"')
        return json.dumps(_in_json(json.loads(throttled), words, keys=column in FREE_KEYS))
    # What a file is stands at the end of its name, and a source ends with a line of its own.
    return words + text if column in ("file", "text") else _hostile(text, words)


def poison(path: Path, words: str = HOSTILE) -> None:
    """Put hostile words into every text of our tables."""
    with sqlite3.connect(path) as db:
        db.create_function("hostile", 2, lambda column, text: _in_column(column, text, words))
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            if not table.startswith("evokern_"):
                continue
            for _, column, kind, *_ in db.execute(f"PRAGMA table_info({table})").fetchall():
                if kind == "TEXT" and column not in (*IDENTITIES, COLUMN):
                    db.execute(f"UPDATE {table} SET {column} = hostile('{column}', {column})")
    reseal(path)


class Markup(HTMLParser):
    """A page's tags with the names of their attributes, and its texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, ...]] = []
        self.texts: list[str] = []
        self.values: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "wbr":  # stands wherever a name may be broken
            self.tags.append((tag, *(name for name, _ in attrs)))
        self.values += [value for _, value in attrs if value]

    def handle_endtag(self, tag: str) -> None:
        self.tags.append((f"/{tag}",))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
