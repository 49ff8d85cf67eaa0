"""Puts `tests/helpers` on the path, as pytest does: each script that is run by hand imports this first."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "simt" / "exact"))
