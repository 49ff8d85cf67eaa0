"""Cache of rates measured on a GPU: one small file for each GPU and driver.

The files are stored next to the compiled programs (`EVOKERN_CACHE`). A missing or damaged file is measured again.
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
from evokern.files import write_text
from evokern.measurement.roofline import Rates


def load_rates(uuid: str, driver: str) -> Rates | None:
    """Return the cached rates of a GPU under a driver, or None.

    Args:
        uuid: UUID of the GPU.
        driver: version of the driver.
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


def store_rates(uuid: str, driver: str, rates: Rates) -> None:
    """Store measured rates. Write errors, such as a full disk, are ignored."""
    path = _path(uuid, driver)
    if path is None:
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(temporary, json.dumps(asdict(rates)))
        temporary.replace(path)


def _path(uuid: str, driver: str) -> Path | None:
    folder = default_directory()
    name = re.sub(r"[^\w.-]", "_", f"{uuid}-{driver}.json")
    return folder / "rates" / name if folder else None
