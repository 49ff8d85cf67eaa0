"""`evokern profile` as a user or a script calls it."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner

from evokern.cli._command import app
from evokern.cli.app import run  # noqa: F401 (registers every command)


def profile(*arguments: str) -> dict[str, Any]:
    """Return what `profile --json` prints."""
    result = CliRunner().invoke(app, ["profile", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def refused(*arguments: str) -> str:
    """Return what a refused `profile` says."""
    result = CliRunner().invoke(app, ["profile", *arguments])
    assert (2, "") == (result.exit_code, result.stdout), result.output
    return result.stderr
