"""Damaged databases: what changed is named and left out, or the file is refused; nothing changes in silence.

`pytest -p no:xdist tests/fuzz -k databases --count N --seed S` runs N cases, from seed S on.
"""

from __future__ import annotations

import gzip
import json
import random
import shutil
import sqlite3
from pathlib import Path

import pytest
from fuzzed_cases import Done, at, checked, command, each, workplace
from hostile_values import harmed
from paths import DATA
from stored_studies import add_proofs, write_study

from evokern.store._integrity import COLUMN, TABLES

APART = 60
"""Every so many cases run in a process of their own, as a user's do."""
READERS = (
    ("show", "--json"),
    ("show",),
    ("show", "--trial", "3"),
    ("show", "--genes"),
    ("list", "--json"),
    ("report", "-o", "out.html"),
    ("export", "--format", "t4", "-o", "out.json"),
    ("compare", "whole.db:small", "fuzzed.db:small", "--json"),
)
"""Commands that only read; the last names its databases itself."""
WRITERS = (
    ("resume", "small", "--trials", "14", "--quiet", "--no-verify"),
    ("search", "small", "--trials", "14", "--quiet", "--no-verify"),
    ("search", "small", "--fresh", "--trials", "2", "--quiet", "--no-verify"),
)
"""Commands that go on with a study."""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a whole database: a search, a study with baselines and samples, a verification, an ablation."""
    place = workplace(tmp_path_factory.mktemp("fuzz"))
    with at(place):
        proved = write_study(place / "whole.db", 12, name="written")
        add_proofs(place / "whole.db", proved)
        done = command(("search", "small", "--trials", "12", "--quiet", "--no-verify", "--db", "whole.db"))
        assert done.code == 0, done
    for name in ("with_secret", "with_proofs_and_priors"):
        content = (DATA / "databases" / f"{name}.db.gz").read_bytes()
        (place / f"{name}.db").write_bytes(gzip.decompress(content))
    shutil.copy(DATA / "table_small.json.gz", place)
    return place


def _flip(path: Path, rng: random.Random, tables: tuple[str, ...]) -> str:
    """Change a letter of a text in a table, or cut the text, and leave everything else alone; returns the table."""
    database = sqlite3.connect(path)
    places = [
        (table, column)
        for table in tables
        for _, column, kind, *_ in database.execute(f"PRAGMA table_info({table})").fetchall()
        if kind == "TEXT" and column != COLUMN
    ]
    while True:
        table, column = rng.choice(places)
        held = f"SELECT rowid, {column} FROM {table} WHERE length({column}) > 0"
        rows = database.execute(held).fetchall()
        if rows:
            break
    number, text = rng.choice(rows)
    place = rng.randrange(len(text))
    other = rng.choice([letter for letter in '09azAZ-.,:{}[]"\x1b\n\u00b5' if letter != text[place]])
    changed = text[:place] if rng.random() < 0.2 else text[:place] + other + text[place + 1 :]
    database.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", [changed, number])
    database.commit()
    database.close()
    return table


def _bytes(path: Path, rng: random.Random) -> None:
    """Damage the file itself: letters anywhere, pages of zeros or of something else, an end that is missing."""
    data = bytearray(path.read_bytes())
    match rng.randrange(5):
        case 0 | 1:
            for _ in range(rng.randint(1, 6)):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case 2:
            place = rng.randrange(len(data))
            data[place : place + rng.randint(1, 4096)] = bytes(rng.randint(1, 4096))
        case 3:
            del data[rng.randrange(len(data)) :]
        case _:
            data = bytearray(harmed(bytes(data), rng))
    path.write_bytes(data)


def _same(one: Done, other: Done, here: Path) -> bool:
    """Tell whether two commands said the same of two databases."""
    return one.stdout.replace("fuzzed.db", "whole.db") == other.stdout


def test_flipped_texts_are_told(here: Path, fuzz: tuple[int, int]) -> None:
    """A text that changed on the disk changes no answer in silence: its row is named and left out, or refused."""
    with at(here):
        whole = {words: command((*words, "--db", "whole.db")) for words in READERS[:3]}

        def one(seed: int, rng: random.Random) -> None:
            path = here / "fuzzed.db"
            shutil.copy(here / "whole.db", path)
            table = _flip(path, rng, TABLES)
            words = rng.choice(READERS[:3])
            before = path.read_bytes()
            done = checked((*words, "--db", "fuzzed.db"), here, ["fuzzed.db"])
            assert before == path.read_bytes(), "reading changed the file"
            noticed = "damaged" in done.stderr or done.code == 2
            assert noticed or _same(done, whole[words], here), f"{table}: {words} changed in silence"
            if done.code == 0 and words == ("show", "--json") and noticed:
                assert json.loads(done.stdout)["damaged"], "a script is told as well"
            writer = rng.choice(WRITERS)
            written = checked((*writer, "--db", "fuzzed.db"), here, ["fuzzed.db"])
            if table in ("evokern_studies", "evokern_trials"):
                assert written.code == 2 and "is damaged" in written.stderr, f"{table}: a search went on: {written}"
            path.unlink()

        each(fuzz, one)


def test_damaged_databases(here: Path, fuzz: tuple[int, int]) -> None:
    """A file with pages, letters or its end gone is read as far as is honest or refused; also one without digests."""

    def one(seed: int, rng: random.Random) -> None:
        path = here / "fuzzed.db"
        source = rng.choice(("whole", "whole", "with_secret", "with_proofs_and_priors"))
        shutil.copy(here / f"{source}.db", path)
        if source != "whole" and rng.random() < 0.5:
            old = sqlite3.connect(path)
            there = {name for (name,) in old.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            old.close()
            _flip(path, rng, tuple(table for table in TABLES if table in there))
        else:
            _bytes(path, rng)
        words = rng.choice(READERS if rng.random() < 0.6 else WRITERS)
        line = words if words[0] == "compare" else (*words, "--db", "fuzzed.db")
        checked(line, here, ["fuzzed.db", "whole.db", "out.html", "out.json"], apart=seed % APART == 0)
        for suffix in ("", "-wal", "-shm", "-journal"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)

    with at(here):
        each(fuzz, one)
