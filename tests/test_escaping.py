"""Text of others stays text: in comments, literals, shell lines, terminals, Markdown and JSON."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evokern.escaping import c_string, in_comment, in_markdown, json_text, shell_line, visible, visible_lines

ANY = st.text(st.characters(exclude_categories=[]) | st.sampled_from("\n\r\\\x1b\x9b?/'\"\u2028\u202e"), max_size=20)


@given(ANY)
def test_a_terminal_is_never_commanded(text: str) -> None:
    """Nothing below a blank, no C1 control, nothing that turns the reading direction; printable text is untouched."""
    shown = visible(text)
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 or c in "\u2028\u2029\u202e\u2066" for c in shown)
    assert set(visible_lines(text).replace("\n", "").replace("\t", "")) <= set(visible(text.replace("\t", "")))
    if text.isprintable():
        assert shown == text


def test_what_is_escaped_can_be_read() -> None:
    r"""A line end reads `\\n`, an escape `\\x1b`; lines of several stay lines."""
    assert visible("a\n\x1b[2Jb\u202e") == r"a\n\x1b[2Jb\u202e"
    assert visible_lines("a\n\tb\r\x9b") == "a\n\tb\\r\\x9b"
    assert in_comment("// ends \\  ") == r"// ends \x5c"
    assert in_comment("// ends ??/") == r"// ends ??\x2f"


@given(ANY)
def test_a_comment_ends_with_its_line(text: str) -> None:
    """No text leaves its `//`, nor draws the next line into it."""
    line = in_comment(f"// {text}")
    assert len(line.splitlines()) == 1
    assert not line.endswith(("\\", "??/", " "))


@given(ANY)
def test_json_gives_the_same_text_back(text: str) -> None:
    """What a terminal would obey is escaped as JSON has it, so that a reader of `--json` gets the very text."""
    made = json_text({"name": text})
    assert json.loads(made) == {"name": text}
    assert not any((ord(c) < 32 and c != "\n") or 127 <= ord(c) < 160 for c in made)


@given(st.lists(ANY.filter(lambda text: "\x00" not in text and not any(0xD800 <= ord(c) < 0xE000 for c in text))))
def test_shell_lines_keep_their_words(words: list[str]) -> None:
    """A command line is one line, and a shell reads it as the number of words that it was made of."""
    line = shell_line(words)
    assert line == visible(line)
    assert len(shlex.split(line)) == len(words)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash on PATH")
def test_a_shell_receives_the_same_words() -> None:
    """Bash gives a program the words, whatever controls, quotes and backslashes they hold."""
    words = ["a b", "\n", "it's \\ \x1b[2J", "\x85ü\u202e", "\\n'", "", "$HOME `id`", "\udcff"]
    script = "printf '%s\\0' " + shell_line(words)
    got = subprocess.run(["bash", "-c", script], capture_output=True, check=True).stdout
    assert got.split(b"\0")[:-1] == [word.encode("utf-8", "surrogateescape") for word in words]


@given(ANY)
def test_markdown_has_no_markup(text: str) -> None:
    """A name makes neither a cell, a tag nor a link."""
    made = in_markdown(text)
    assert len(made.splitlines()) <= 1
    assert not set(re.sub(r"\\[^\w\s]", "", made)) & set("|<>[]`*&\\#")


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler on PATH")
def test_literals_of_cpp_hold_the_text(tmp_path: Path) -> None:
    """A compiler reads the text back that a terminal may show, with trigraphs on as well."""
    texts = ['quote " and \\', "line\nend", "??/ ??=", 'x"; system("id"); //', "ü\\"]
    body = "\n".join(f"  puts({c_string(text)});" for text in texts)
    source = f"#include <cstdio>\nint main() {{\n{body}\n}}\n"
    binary = f"{tmp_path}/literals"
    for options in ((), ("-trigraphs",)):
        command = ["g++", *options, "-x", "c++", "-", "-o", binary]
        subprocess.run(command, input=source, text=True, check=True, capture_output=True)
        told = subprocess.run([binary], capture_output=True, text=True, check=True).stdout
        assert told.splitlines() == [visible(text) for text in texts]
