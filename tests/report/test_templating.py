"""Compiled templates are kept as compiled modules are, and are needed by nobody."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from jinja2 import DictLoader, Environment

from evokern.templating import _TemplateCache


def filled(folder: Path, text: str = "{{ a }}!") -> str:
    kept = _TemplateCache(str(folder), "template-%s.cache")
    return Environment(loader=DictLoader({"one": text}), bytecode_cache=kept).get_template("one").render(a=1)


def test_a_template_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until its text changes; what was kept of another text, or is damaged, is no harm."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert filled(tmp_path) == "1!"
    (kept,) = tmp_path.iterdir()
    monkeypatch.setattr(Environment, "_generate", lambda *_, **__: pytest.fail("compiled again"))
    assert filled(tmp_path) == "1!"
    monkeypatch.undo()
    assert filled(tmp_path, "{{ a }}?") == "1?"
    for damaged in (b"no template", kept.read_bytes()[:20], b""):
        kept.write_bytes(damaged)
        assert filled(tmp_path) == "1!"


def test_no_templates_are_cached_if_python_caches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told so by PYTHONDONTWRITEBYTECODE, or without a place: templates are compiled each time."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert filled(tmp_path) == "1!"
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert filled(tmp_path / "absent") == "1!"
