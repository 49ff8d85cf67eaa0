"""Rates measured on a GPU, kept from one search to the next: for each GPU and driver one small file.

They stand beside the compiled programs (`EVOKERN_CACHE`); a missing or damaged file only means measuring again.
"""

from __future__ import annotations

import json
import math
import os
import re
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from evokern.compile.cache import default_directory
from evokern.measurement.roofline import Rates


def kept_rates(uuid: str, driver: str) -> Rates | None:
    """Return what was measured on a GPU under a driver, None where nothing was or nothing is kept.

    Args:
        uuid: the GPU's own identity.
        driver: the driver's version.
    """
    path = _path(uuid, driver)
    if path is None:
        return None
    try:
        rates = Rates(**{name: float(value) for name, value in json.loads(path.read_text(encoding="utf-8")).items()})
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    sound = all(math.isfinite(rate) and rate > 0 for rate in asdict(rates).values())
    return rates if sound else None


def keep_rates(uuid: str, driver: str, rates: Rates) -> None:
    """Keep what was measured. A full disk is no error: it is measured again next time."""
    path = _path(uuid, driver)
    if path is None:
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(asdict(rates)), encoding="utf-8")
        temporary.replace(path)


def _path(uuid: str, driver: str) -> Path | None:
    folder = default_directory()
    name = re.sub(r"[^\w.-]", "_", f"{uuid}-{driver}.json")
    return folder / "rates" / name if folder else None
