"""`evokern init FILE.cu`: a kernel folder and a study from a CUDA file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evokern.cli._command import command
from evokern.cli._output import Output
from evokern.wording import command as command_line


@command(
    "init",
    examples="""
    evokern init my_kernel.cu
    evokern init my_kernel.cu --entry 'reduce<float, 256>' --name reduce
    """,
)
def init(
    output: Output,
    file: Annotated[Path, typer.Argument(metavar="FILE.cu", help="A CUDA file with a __global__ function.")],
    entry: Annotated[
        str | None, typer.Option("--entry", metavar="NAME", help="Which kernel, where the file has several.")
    ] = None,
    include: Annotated[
        list[Path], typer.Option("--include", "-I", metavar="DIR", help="Folder with the file's own headers.")
    ] = [],  # noqa: B006 (typer makes a new list for every call)
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="Name of the kernel and study.")] = None,
) -> None:
    """Write kernels/NAME/ and studies/NAME.toml from a CUDA file.

    Numeric macros become parameters, pointers become tensors, the file's own launch gives grid and block. Host code is
    left out. What only you can know is marked in the files and listed here.
    """
    from evokern.scaffold import scaffold

    made = scaffold(file, Path.cwd(), name, entry, include)
    if output.json:
        output.emit({"kernel": made.name, "files": [str(path) for path in made.files], "confirm": made.confirm})
        return
    here = Path.cwd()
    for path in made.files:
        output.say(f"wrote {path.relative_to(here)}")
    output.say("Now:")
    for note in made.confirm:
        output.say(f"  - {note}")
    output.say(f"Then: {command_line('check', made.name)}")
