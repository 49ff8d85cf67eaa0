"""Puts the folders of other helpers and scripts on the path; each script of this folder imports this first."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(sys.path[0]).resolve().parent / part) for part in ("helpers", "scripts", "simt")]
