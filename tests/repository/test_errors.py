"""What errors suggest."""

from __future__ import annotations

import pytest

from evokern.errors import suggestion


@pytest.mark.parametrize(
    ("word", "known", "guess"),
    [
        ("65", ("32", "64", "96", "128"), "64"),
        ("129", ("32", "64", "128", "256"), "128"),
        ("-1", ("0", "10"), "0"),
        ("evoo", ("evo", "tpe", "random"), "evo"),
        ("block_m", ("BLOCK_M", "BLOCK_N"), "BLOCK_M"),
        ("Wgma", ("mma", "WGMMA"), "WGMMA"),
    ],
)
def test_the_nearest_is_suggested(word: str, known: tuple[str, ...], guess: str) -> None:
    """Of whole numbers the nearest by value, of words the one spelt most alike; all that is known is listed."""
    assert suggestion(word, known) == f"did you mean {guess!r}? known: {', '.join(known)}"


def test_nothing_is_suggested_where_nothing_is_alike() -> None:
    """A word that resembles none gets the list alone."""
    assert suggestion("zebra", ("evo", "tpe")) == "known: evo, tpe"
    assert suggestion("64", ("evo", "tpe")) == "known: evo, tpe"
    assert suggestion("ga", ("evo", "gp", "grid")) == "known: evo, gp, grid"
    assert suggestion("l5", ("h100", "l4")).startswith("did you mean 'l4'?")  # names that differ in a number are close
