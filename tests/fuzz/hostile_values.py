"""Values that no user means and every program is given: too large, too long, of another type, of another world."""

from __future__ import annotations

import json
import random
from typing import Any

NUMBERS = (
    *("0", "-1", "1", "3", "7", "1.5", "-0.0", "nan", "inf", "-inf", "1e400", "1e-320", "0x10", "1_000"),
    *(str(2**31), str(2**63), str(-(2**63) - 1), str(10**30), "9" * 400, "9" * 5000),
)
"""Numbers as an option takes them."""
WORDS = (
    *("", " ", "-", "--", ".", "..", "/", "~", "~nobody", "%s%n", "{}", "'", '"', ";id", "$(id)", "a\nb", "a\x1b[31mb"),
    *("é", "\U0001f600", "\udcff", "ﬀ", "\u202e", "a" * 300, "a" * 5000, "a/" * 2500, "a" * 100_000),
    *("small", "smal", "none", "random", "auto", "sim:l4", "sim:", "cuda:99", "cuda:-1", "replay:", "replay:fifo"),
    *("replay:folder", "replay:table.json.gz", "replay:/dev/zero", "replay:" + "a/" * 2500, "true", "1,2", "2x", "5m"),
    *("fifo", "folder", "absent", "absent/x", "file.cu", "table.json.gz", "studies/small.toml", "results.db", "fifo/x"),
    *(
        "results.db:small",
        "results.db:",
        ":",
        "absent.db:small",
        "/dev/null",
        "/dev/full",
        "/dev/zero",
        "/proc/self/mem",
    ),
)
"""Words as an option takes them."""
DURATIONS = ("0s", "1s", "9" * 400 + "h", "-1m", "1h1h", "1e9h", "2", "999999999h", "0.0000001s", "١s")
"""Times to spend."""
TOML = (
    *("0", "-1", "1", "1.5", "nan", "inf", "-inf", "1e400", str(2**63), str(-(2**63)), "9" * 400, "9" * 5000, "true"),
    *(
        '""',
        '"a"',
        '"\\u0000"',
        '"\\u001b[31m"',
        '"' + "a" * 5000 + '"',
        '"' + "a/" * 2500 + '"',
        "[]",
        "[1, 2]",
        "[[]]",
    ),
    *('["a", 1]', "{}", "{a = 1}", '{name = "tpe"}', "{name = 3}", "1979-05-27", "07:32:00", "[" * 3000 + "]" * 3000),
    *('"sim:l4"', '"replay:fifo"', '"replay:folder"', '"cuda:99"', '"2x"', '"5m"', '"normal"', '["normal", "normal"]'),
    *('"é"', '"~nobody/x"', '"../../x"', "'''\na\n'''", "0x7fffffffffffffff", "0b1", "1e-320", "-0.0", '["recorded"]'),
)
"""Values of a study file."""
JSON: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 7, 1.5, -2.5, 10**400, 2**63, float("nan"), float("inf"), 1e308, 1e-320, 1e20),
    *("", "a", "1", "\ud800", "\x00", "a" * 5000, "infeasible", "measured", "seconds", [], [[]], [1, 2], {}, {"a": 1}),
    *([True], [-1.0], ["x"], {"name": "x"}, {"a": {"b": []}}),
)
"""Values of a recording."""


def word(rng: random.Random) -> str:
    """Return a value for an option."""
    return rng.choice(rng.choice((NUMBERS, WORDS, WORDS, DURATIONS)))


def harmed(content: bytes, rng: random.Random) -> bytes:
    """Return bytes with some of them flipped, cut away, doubled or replaced."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(max(len(data), 1))
        match rng.randrange(6):
            case 0 if data:
                data[place] ^= 1 << rng.randrange(8)
            case 1:
                del data[place : place + rng.randint(1, 40)]
            case 2:
                data[place:place] = data[place : place + rng.randint(1, 60)]
            case 3:
                data[place:place] = rng.choice(
                    (b"\xef\xbb\xbf", b"\xff\xfe", b"\x00", b"[" * 50_000, b"\xc3", b"9" * 5000)
                )
            case 4:
                del data[place:]
            case _ if data:
                data[place] = rng.randrange(256)
    return bytes(data)


def harmed_json(value: Any, rng: random.Random) -> Any:
    """Return a copy of a JSON value in which something is replaced, left out or doubled."""
    copy = json.loads(json.dumps(value))
    for _ in range(rng.randint(1, 3)):
        _harm(copy, rng)
    return copy


def _harm(value: Any, rng: random.Random) -> None:
    while True:
        places = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not places:
            return
        place = rng.choice(places)
        deeper = isinstance(value[place], dict | list) and len(value[place]) > 0
        if deeper and rng.random() < 0.85:
            value = value[place]
            continue
        match rng.randrange(6):
            case 0:
                del value[place]
            case 1 if isinstance(value, list):
                value.append(value[place])
            case 2 if isinstance(value, dict):
                value[rng.choice(("a", "", "time", "name", place + "x"))] = value[place]
            case _:
                value[place] = rng.choice(JSON)
        return
