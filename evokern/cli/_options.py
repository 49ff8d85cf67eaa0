"""Arguments and options that several commands share."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import Field, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from evokern.cluster.request import ray_request
from evokern.errors import UsageError
from evokern.search.request import ResumeRequest, SessionRequest
from evokern.study.options import RENAMED, described, plain_type

DEFAULT_STUDY = "attention-s512"
"""Study that `search` uses if the command line names none."""


def completions(names: Iterable[str], incomplete: str) -> list[str]:
    """Return the names that start with an unfinished word.

    A shell inserts a name without quoting it, so names with special characters (`$(…)`) are not offered.
    """
    return [name for name in names if name.startswith(incomplete) and re.fullmatch(r"[\w.+-]+", name)]


def _complete_studies(incomplete: str) -> list[str]:
    from evokern.study.discovery import study_files

    return completions(study_files(), incomplete)


def complete_kernels(incomplete: str) -> list[str]:
    """Return the kernels whose names start with an unfinished word."""
    from evokern.study.discovery import kernel_folders

    return completions(kernel_folders(), incomplete)


def complete_devices(incomplete: str) -> list[str]:
    """Return the devices whose names start with an unfinished word."""
    from evokern.hardware.profiles import CHIPS

    return [name for name in ("auto", "cuda:0", *(f"sim:{chip}" for chip in CHIPS)) if name.startswith(incomplete)]


StudyArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="STUDY",
        help=f"Name of a study, or path to its TOML file. Default: {DEFAULT_STUDY}.",
        autocompletion=_complete_studies,
    ),
]
StoredStudyArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="STUDY",
        help="Name of a study in the database. Default: the study searched last.",
        autocompletion=_complete_studies,
    ),
]
KernelArgument = Annotated[
    str,
    typer.Argument(metavar="KERNEL", help="Name of a kernel, or path to its folder.", autocompletion=complete_kernels),
]
ReferenceOption = Annotated[
    str | None,
    typer.Option(
        "--reference",
        metavar="MODULE:FUNCTION",
        help="Reference of a study that `evokern.tune` started, such as mykernels:reference or script.py:reference. "
        "The module is imported.",
    ),
]
DbOption = Annotated[
    Path,
    typer.Option(
        "--db", metavar="FILE", envvar="EVOKERN_DB", help="SQLite database that stores the results.", show_envvar=True
    ),
]
DEFAULT_DB = Path("evokern.db")
RayAddressOption = Annotated[
    str | None,
    typer.Option(
        "--ray-address",
        metavar="auto|HOST:PORT",
        help="Compile and measure on the Ray cluster at this address; auto finds a running cluster. Default: the value "
        "of RAY_ADDRESS; if RAY_ADDRESS is not set, only this machine is used.",
    ),
]
NumCpusOption = Annotated[
    int | None,
    typer.Option("--num-cpus", metavar="N", help="Number of CPU cores to use in the Ray cluster. Default: all."),
]
NumGpusOption = Annotated[
    int | None,
    typer.Option("--num-gpus", metavar="N", help="Number of GPUs to use in the Ray cluster. Default: all."),
]
TrialOption = Annotated[
    int | None,
    typer.Option("--trial", metavar="N", min=0, help="Use trial N instead of the champion."),
]
SetOption = Annotated[
    list[str],
    typer.Option("--set", metavar="GENE=VALUE", help="Change one gene of the default candidate; may be repeated."),
]


def _flag(one: Field[Any]) -> str:
    """Return the name of the option of a field; a field that is True by default has an option that turns it off."""
    return f"no_{one.name}" if one.default is True else one.name


def typer_option(record: type, name: str) -> Any:
    """Return the command-line option of a record's field."""
    one, entry = described(record, name), record.__dataclass_fields__[name]  # type: ignore[attr-defined]

    def complete(incomplete: str) -> list[str]:
        return [choice for choice in one.choices if choice.startswith(incomplete)]

    return typer.Option(
        f"--{_flag(entry).replace('_', '-')}",
        metavar=one.metavar or None,
        min=one.minimum,
        help=one.command_line or one.help,
        autocompletion=complete_devices if name == "device" else complete if one.choices else None,
    )


DeviceOption = Annotated[str | None, typer_option(SessionRequest, "device")]
TrustOption = Annotated[bool, typer_option(SessionRequest, "trust")]
StoredTrustOption = Annotated[bool, typer_option(ResumeRequest, "trust")]
InputsOption = Annotated[str | None, typer_option(SessionRequest, "inputs")]
KeepGoingOption = Annotated[bool, typer_option(SessionRequest, "keep_going")]
AllowChangesOption = Annotated[bool, typer_option(SessionRequest, "allow_changes")]

CLUSTER_OPTIONS = {"ray_address": RayAddressOption, "num_cpus": NumCpusOption, "num_gpus": NumGpusOption}
"""Options that describe a Ray cluster, in the order of the arguments of `ray_request`."""


def option_parameters(record: type) -> list[inspect.Parameter]:
    """Return a command's parameters for the options of a record; `requested` converts their values."""
    found = []
    for one in fields(record):
        if one.name == "cluster":
            found += [_parameter(name, None, annotation) for name, annotation in CLUSTER_OPTIONS.items()]
        elif one.name != "kernel":  # an object has no form on the command line
            kind: Any = plain_type(str(one.type))
            annotation: Any = Annotated[kind if kind is bool else kind | None, typer_option(record, one.name)]
            found.append(_parameter(_flag(one), None if one.default is None else False, annotation))
    return found


def _parameter(name: str, default: object, annotation: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def requested(options: Mapping[str, Any]) -> SessionRequest:
    """Return the request of a command from the values of its `option_parameters`."""
    given: dict[str, Any] = {
        one.name: not options[_flag(one)] if one.default is True else options[one.name]
        for one in fields(SessionRequest)
        if _flag(one) in options
    }
    return SessionRequest(**given, cluster=ray_request(*(options[name] for name in CLUSTER_OPTIONS)))


PROBLEM_FORMS = 'such as "B=1 S=128", or only its values in field order, such as 1,128'
"""Notation of a problem, as described in help texts."""

DEPRECATED_OPTIONS = {f"--{old}".replace("_", "-"): f"--{new}".replace("_", "-") for old, new in RENAMED.items()}
"""Current name of each deprecated option, by its old name. Old names still work, but the help does not list them."""


def with_current_names(
    args: list[str], known: Container[str], with_value: Container[str], warn: Callable[[str], None]
) -> list[str]:
    """Return arguments with each deprecated option replaced by its current name.

    Words after `--` and option values are not changed.

    Args:
        args: arguments of one command.
        known: all option names of this command.
        with_value: names of the options that take a value.
        warn: called with a warning for each deprecated name.
    """
    renamed = list(args)
    skipped = False
    for place, word in enumerate(args):
        if skipped:
            skipped = False
            continue
        if word == "--":
            break
        old, equals, value = word.partition("=")
        new = DEPRECATED_OPTIONS.get(old, old)
        if new != old and old not in known and new in known:
            warn(f"{old} is deprecated; use {new}")
            renamed[place] = f"{new}{equals}{value}"
        skipped = not equals and (old in with_value or new in with_value)
    return renamed


_NAMED = re.compile(r"(--problem=)?[A-Za-z_]\w*=")


def with_whole_problem(args: list[str]) -> list[str]:
    """Return arguments in which the words of an unquoted problem (`--problem B=1 S=128`) are joined into one word."""
    joined: list[str] = []
    within = False
    for before, word in zip(["", *args], args, strict=False):
        named = _NAMED.match(word)
        if within and named:
            joined[-1] += f" {word}"
            continue
        joined.append(word)
        within = named is not None and (before == "--problem" or named[1] is not None)
    return joined


def parse_assignments(given: list[str]) -> dict[str, str]:
    """Parse `GENE=VALUE` texts into a mapping from gene to value.

    Raises:
        UsageError: a text has no `=`.
    """
    changes: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise UsageError(f"--set {text!r} is not of the form GENE=VALUE; use, for example, --set BLOCK_M=64")
        changes[name.strip()] = value.strip()
    return changes


def parse_extent(option: str, text: str | None) -> tuple[int, int, int] | None:
    """Parse one to three extents, such as `4,2`; missing extents become 1. Return None for None.

    Raises:
        UsageError: the text is not one to three integers of at least 1.
    """
    if text is None:
        return None
    parts = [part.strip() for part in text.replace("x", ",").split(",")]
    if len(parts) > 3 or not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        raise UsageError(f"{option} {text!r} is not a valid extent; use one to three positive integers, such as 4,2")
    x, y, z = (*map(int, parts), 1, 1)[:3]
    return x, y, z
