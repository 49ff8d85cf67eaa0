"""Arguments and options that several commands share, each declared once."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from evokern.errors import MOST_NUMBER, UsageError

DEFAULT_STUDY = "attention-s512"
"""The study that `search` takes when none is named."""


def completions(names: Iterable[str], incomplete: str) -> list[str]:
    """Return the names that an unfinished word may be the beginning of.

    A shell puts them into the command line as they are, so that a folder called `$(…)` is not offered.
    """
    return [name for name in names if name.startswith(incomplete) and re.fullmatch(r"[\w.+-]+", name)]


def _complete_studies(incomplete: str) -> list[str]:
    from evokern.study.discovery import study_files

    return completions(study_files(), incomplete)


def complete_kernels(incomplete: str) -> list[str]:
    """Return the kernels that an unfinished word may be the beginning of."""
    from evokern.study.discovery import kernel_folders

    return completions(kernel_folders(), incomplete)


def complete_devices(incomplete: str) -> list[str]:
    """Return the devices that an unfinished word may be the beginning of."""
    from evokern.hardware.profiles import CHIPS

    return [name for name in ("auto", "cuda:0", *(f"sim:{chip}" for chip in CHIPS)) if name.startswith(incomplete)]


StudyArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[STUDY]", help="A study's name or the path to its TOML file.", autocompletion=_complete_studies
    ),
]
KernelArgument = Annotated[
    str,
    typer.Argument(metavar="KERNEL", help="A kernel's name or its folder.", autocompletion=complete_kernels),
]
DbOption = Annotated[
    Path,
    typer.Option("--db", metavar="FILE", envvar="EVOKERN_DB", help="Database with the results.", show_envvar=True),
]
DEFAULT_DB = Path("evokern.db")
DeviceOption = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="DEVICE",
        help="auto, cuda:N, several GPUs as cuda:0,1 or cuda:all, sim:CHIP or replay:FILE. "
        "Default: what the study says.",
        autocompletion=complete_devices,
    ),
]
RayAddressOption = Annotated[
    str | None,
    typer.Option(
        "--ray-address",
        metavar="auto|HOST:PORT",
        help="Compile and measure on the hosts of a Ray cluster. Default: RAY_ADDRESS, else this machine.",
    ),
]
NumCpusOption = Annotated[
    int | None,
    typer.Option("--num-cpus", metavar="N", help="Processors of the Ray cluster to use. Default: all."),
]
NumGpusOption = Annotated[
    int | None,
    typer.Option("--num-gpus", metavar="N", help="GPUs of the Ray cluster to search on. Default: all."),
]
TrialOption = Annotated[
    int | None,
    typer.Option("--trial", metavar="N", min=0, max=MOST_NUMBER, help="Take this trial instead of the champion."),
]
SetOption = Annotated[
    list[str],
    typer.Option("--set", metavar="GENE=VALUE", help="Change a gene of the default candidate; may be repeated."),
]
TrustOption = Annotated[
    bool,
    typer.Option("--trust", help="Remember that this kernel folder's kernel.py may run, wherever and whosever it is."),
]
StoredTrustOption = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Run the kernel.py that the database keeps a copy of, where the folder is gone, changed or not yours.",
    ),
]


PROBLEM_FORMS = '"B=1 S=128", as reports print it, or 1,128, the values in the order of the fields'
"""How help says what a problem is."""


_NAMED = re.compile(r"(--problem=)?[A-Za-z_]\w*=")


def with_whole_problem(args: list[str]) -> list[str]:
    """Return arguments in which a problem that a shell took apart, `--problem B=1 S=128`, is one of them."""
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
    """Return gene → value from `GENE=VALUE` texts.

    Raises:
        UsageError: a text has no `=`.
    """
    changes: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise UsageError(f"--set {text!r} is no GENE=VALUE; write for example --set BLOCK_M=64")
        changes[name.strip()] = value.strip()
    return changes


def parse_extent(option: str, text: str | None) -> tuple[int, int, int] | None:
    """Return three extents from `4,2`, None where nothing was given.

    Raises:
        UsageError: they are no one to three whole numbers of at least 1.
    """
    if text is None:
        return None
    parts = [part.strip() for part in text.replace("x", ",").split(",")]
    if len(parts) > 3 or not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        raise UsageError(f"{option} {text!r} is no extent; write one to three whole numbers from 1 on, such as 4,2")
    x, y, z = (*map(int, parts), 1, 1)[:3]
    return x, y, z
