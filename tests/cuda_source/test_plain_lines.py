"""Line ends, splices and comments in the form that every compiler reads alike."""

from __future__ import annotations

import pytest

from evokern.cuda_source.lexer import TokenStream, directive_body
from evokern.cuda_source.specialize.layout import plain_lines, squeeze


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("\ufeffint a;\r\nint b;\r", "int a;\nint b;\n"),
        ("__glo\\\nbal__ void k();", "__global__ void k();\n"),
        ("/\\\n/ comment\nint x;", "// comment\nint x;\n"),
        ("#define A(x) \\\n  x + \\\n  1\n", "#define A(x) \\\n  x + \\\n  1\n"),
        ("// C:\\kernels\\ \nint y;\n", "// C:\\kernels\nint y;\n"),
        ("/* a\n b */ #define X 1\n", "/* a\n b */\n #define X 1\n"),
        ('R"(a\\\nb)"', 'R"(a\\\nb)"\n'),
        ("int x; // end \\", "int x; // end \n"),
    ],
)
def test_plain_lines(text: str, plain: str) -> None:
    """Each form means the same as the original."""
    assert plain_lines(text) == plain


def test_strings_of_several_lines_keep_their_lines() -> None:
    """Blank lines and trailing spaces inside a raw string stay."""
    text = 'int a;  \n\n\n\nconst char* s = R"(x  \n\n\n\ny)";\n\n\n\n'
    assert squeeze(text) == 'int a;\n\nconst char* s = R"(x  \n\n\n\ny)";\n\n'


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ("#define A 1 // see /* here\nint x; /* e */", "A 1"),
        ("#define Q '\"' // \"\nint z;", "Q '\"'"),
        ("#define K 1'000 /* ' */\nint r;", "K 1'000"),
        ("# /* c */ define /* d\n e */ B 2\nint q;", "B 2"),
    ],
)
def test_directives_end_where_the_compiler_ends_them(text: str, body: str) -> None:
    """Comments, character literals and separators in a directive do not move its end."""
    tokens = TokenStream(text).tokens
    assert (tokens[0].directive, directive_body(tokens[0].text), tokens[1].text) == ("define", body, "int")
