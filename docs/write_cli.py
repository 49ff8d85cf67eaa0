"""Write `docs/cli.md` from the help, arguments and options of all commands.

python docs/write_cli.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent / "cli.md"
HEAD = """# Commands

`docs/write_cli.py` generates this page from the output of `evokern COMMAND --help`. `evokern list` shows the names of
studies, kernels and devices. `evokern --version` prints the version. `evokern --install-completion` enables shell
completion.

| Exit code | Meaning |
|---|---|
| 0 | success |
| 1 | negative result: a failed check, a finding, a regression, no candidate that ran, or only refuted champions |
| 2 | usage error: one message with the invalid value and the remedy |
| 3 | bug in evokern: one line with the path of the traceback |
| 130 | interrupted |

`--go-on` and `--window` are deprecated names of `--allow-changes` and `--max-in-flight`. They still work and print a
warning.

Common options of all commands:

"""
EVERYWHERE = ("json_", "quiet", "verbose", "log")
"""Parameters that are common to all commands."""
OPTIONS = "| Option | Meaning | Default |\n|---|---|---|\n"


def page() -> str:
    """Return the page."""
    from typer.main import get_command

    from evokern.cli.app import app

    commands: dict[str, Any] = {}
    for name, one in sorted(get_command(app).commands.items()):  # type: ignore[attr-defined]
        commands |= (
            {f"{name} {part}": own for part, own in one.commands.items()} if hasattr(one, "commands") else {name: one}
        )
    common = {parameter.name: parameter for parameter in next(iter(commands.values())).params}
    parts = [HEAD, OPTIONS, *(_option(common[name]) for name in EVERYWHERE)]
    parts += ["\n| Command | Purpose |\n|---|---|\n"]
    parts += [
        f"| [`{name}`](#{name.replace(' ', '-')}) | {_cell(one.short_help.rstrip('.'))} |\n"
        for name, one in commands.items()
    ]
    for name, one in commands.items():
        about, _, examples = one.help.partition("\b\nExamples:\n")
        own = [parameter for parameter in one.params if parameter.name not in (*EVERYWHERE, "help")]
        places = [parameter for parameter in own if parameter.param_type_name == "argument"]
        usage = " ".join(["evokern", name, *(_place(one) for one in places), "[OPTIONS]"])
        lines = "\n".join(line.strip() for line in examples.strip().splitlines())
        parts.append(f"\n## {name}\n\n`{usage}`\n\n{about.strip()}\n\n```\n{lines}\n```\n")
        if places:
            parts.append("\n| Argument | Meaning |\n|---|---|\n")
            parts += [f"| `{_place(place)}` | {_cell(place.help)} |\n" for place in places]
        options = [_option(parameter) for parameter in own if parameter not in places]
        if options:
            parts += ["\n", OPTIONS, *options]
    return "".join(parts)


def _place(argument: Any) -> str:
    name = (argument.metavar or argument.name.upper()).strip("[]{}")
    return name if argument.required else f"[{name}]"


def _option(option: Any) -> str:
    """Return the table row of an option."""
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    takes = "" if option.is_flag or option.count else f" {_kind(option)}"
    variable = f" (or the environment variable `{option.envvar}`)" if option.envvar else ""
    several = "; may be repeated" if option.multiple and "repeated" not in option.help else ""
    return f"| {names}{takes} | {_cell(option.help.rstrip('.'))}{variable}{several} | {_default(option)} |\n"


def _kind(option: Any) -> str:
    return _cell(option.metavar or option.name.strip("_").upper())


def _default(option: Any) -> str:
    value = getattr(option.default, "value", option.default)
    if option.is_flag or option.count or value is None or value == [] or value == ():
        return ""
    return f"`{value}`"


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
