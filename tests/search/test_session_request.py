"""What a user asks of a session reaches it whole, from Python and from the command line."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import fields
from typing import Any

import pytest
from typer.testing import CliRunner

import evokern
from evokern import api
from evokern.cli.app import app
from evokern.cluster import RayRequest
from evokern.errors import StudyError
from evokern.search import SessionRequest

GIVEN: dict[str, Any] = {
    "device": "sim:l4",
    "budget": "1h",
    "extend": "10m",
    "trials": 3,
    "sampler": "tpe",
    "seed": 4,
    "max_in_flight": 5,
    "control": "random",
    "warm_start": "sim",
    "cost_per_hour": 2.5,
    "fresh": True,
    "inputs": "normal",
    "keep_going": True,
    "allow_changes": True,
    "trust": True,
    "verify": False,
}
"""A value for each field that the command line has an option for."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[SessionRequest]:
    """The requests that reach a search or a resume, which go no further."""
    found: list[SessionRequest] = []

    def take(_study: object, request: SessionRequest, **_keywords: object) -> None:
        found.append(request)
        raise StudyError("seen")

    for module in (api, importlib.import_module("evokern.search")):
        monkeypatch.setattr(module, "search_study", take)
        monkeypatch.setattr(module, "resume_study", take)
    return found


def _option(name: str, value: object) -> str:
    return f"--{name}" if value is True else f"--no-{name}" if value is False else f"--{name}={value}"


def values(request: SessionRequest) -> dict[str, Any]:
    return {field.name: getattr(request, field.name) for field in fields(request)}


def test_every_keyword_of_python_reaches_the_session(asked: list[SessionRequest]) -> None:
    """`evokern.search` has a keyword for each field of the request, and `evokern.resume` passes all that it takes."""
    keywords = {**GIVEN, "kernel": object(), "cluster": RayRequest("auto")}
    assert set(keywords) == {field.name for field in fields(SessionRequest)}
    with pytest.raises(StudyError, match="seen"):
        evokern.search("attention-s512", **keywords)
    assert [keywords] == [values(request) for request in asked]
    again = {name: value for name, value in GIVEN.items() if name in inspect.signature(evokern.resume).parameters}
    with pytest.raises(StudyError, match="seen"):
        evokern.resume(**again)
    assert {**values(SessionRequest()), **again} == values(asked[-1])


@pytest.mark.parametrize("command", ["search", "resume"])
def test_every_option_of_the_command_line_reaches_the_session(command: str, asked: list[SessionRequest]) -> None:
    """Both commands pass every option that they take; `resume` takes those that `evokern.resume` takes."""
    taken = inspect.signature(getattr(evokern, command)).parameters
    given = {name: value for name, value in GIVEN.items() if name in taken}
    words = [_option(name.replace("_", "-"), value) for name, value in given.items()]
    CliRunner().invoke(app, [command, *words])
    assert {**values(SessionRequest()), **given} == values(asked[-1])


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("name", ["search", "resume"])
def test_the_old_keyword_still_works(name: str, given: bool, asked: list[SessionRequest]) -> None:
    """`go_on` is accepted for `allow_changes`, with a DeprecationWarning at the caller's line."""
    with pytest.warns(DeprecationWarning, match="use allow_changes") as caught, pytest.raises(StudyError, match="seen"):
        getattr(evokern, name)("attention-s512", go_on=given)
    assert [warning.filename for warning in caught] == [__file__]
    assert [request.allow_changes for request in asked] == [given]
