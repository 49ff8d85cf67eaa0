"""Arguments and options that several commands share, each declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evokern.errors import MOST_NUMBER, UsageError

DEFAULT_STUDY = "attention-s512"
"""The study that `search` takes when none is named."""


def _complete_studies(incomplete: str) -> list[str]:
    from evokern.study.discovery import study_files

    return [name for name in study_files() if name.startswith(incomplete)]


def _complete_kernels(incomplete: str) -> list[str]:
    from evokern.study.discovery import kernel_folders

    return [name for name in kernel_folders() if name.startswith(incomplete)]


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
    typer.Argument(metavar="KERNEL", help="A kernel's name or its folder.", autocompletion=_complete_kernels),
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
        help="auto, cuda:N, sim:CHIP or replay:FILE. Default: what the study says.",
        autocompletion=complete_devices,
    ),
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
    typer.Option("--trust", help="Remember that this kernel folder's kernel.py may run, wherever it lies."),
]


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
