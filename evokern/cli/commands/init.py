"""`evokern init FILE`: a kernel folder and a study from a CUDA file, a tuning script, a T1 file or a torch module."""

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
    evokern init tune_matmul.py --trust
    evokern init convolution.json
    evokern init task.py --trust
    """,
)
def init(
    output: Output,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A CUDA file with a __global__ function, a tuning script of Kernel Tuner's, a T1 file, or a task of "
            "KernelBench.",
        ),
    ],
    entry: Annotated[
        str | None, typer.Option("--entry", metavar="NAME", help="Which kernel, where the file has several.")
    ] = None,
    include: Annotated[
        list[Path], typer.Option("--include", "-I", metavar="DIR", help="Folder with the file's own headers.")
    ] = [],  # noqa: B006 (typer makes a new list for every call)
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="Name of the kernel and study.")] = None,
    trust: Annotated[
        bool,
        typer.Option("--trust", help="A tuning script may run, up to its call of tune_kernel, or a task, in a child."),
    ] = False,
) -> None:
    """Write kernels/NAME/ and studies/NAME.toml from a CUDA file, a tuning script, a T1 file or a torch module.

    Macros, template parameters and the block's extents become parameters. The kernel runs on the simulator with guessed
    problems: what it reads and writes says which pointers are inputs and outputs, how far they reach, and which grid
    covers them. Host code and other kernels are left out. Guesses are marked in the files; what only you can know is
    listed here. A Kernel Tuner script or T1 file gives parameters, restrictions, grid, arguments and constant memory. A
    task of KernelBench gives everything but the kernel: reference, buffers, fields and tolerance of its torch module.
    """
    from evokern.scaffold import scaffold

    made = scaffold(file, Path.cwd(), name, entry, include, trust=trust)
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
