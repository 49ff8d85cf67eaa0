"""`evokern init FILE`: draft a kernel folder and a study from an existing file."""

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
            help="CUDA file with a __global__ function, Kernel Tuner script, T1 file, or KernelBench task.",
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- ARGUMENTS]", help="Arguments of the Kernel Tuner script.", show_default=False),
    ] = None,
    entry: Annotated[
        str | None, typer.Option("--entry", metavar="NAME", help="Kernel to use if the file contains several.")
    ] = None,
    include: Annotated[
        list[Path], typer.Option("--include", "-I", metavar="DIR", help="Add an include folder; may be repeated.")
    ] = [],  # noqa: B006 (typer makes a new list for every call)
    define: Annotated[
        list[str],
        typer.Option(
            "--define",
            "-D",
            metavar="NAME=VALUE",
            help="CUDA files only: a macro that the build defines; may be repeated.",
        ),
    ] = [],  # noqa: B006
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Name of the new kernel and study. Default: from the file."),
    ] = None,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust",
            help="Allow the Kernel Tuner script (up to its call to tune_kernel) or the KernelBench task to run in a "
            "subprocess.",
        ),
    ] = False,
) -> int:
    """Draft a kernel folder and a study from an existing file.

    The command writes kernels/NAME/ and studies/NAME.toml. Guesses are marked in the files, and the command lists what
    you must confirm or add.

    In a CUDA file, macros, constants, template parameters and block extents become genes. The command runs the kernel
    on the simulator to guess its inputs, outputs, shapes and grid, and to confirm the values of genes. It drops host
    code and other kernels. A Kernel Tuner script
    or T1 file provides parameters, restrictions, grid, arguments and constant memory. A KernelBench task provides
    everything except the kernel.

    If a CUDA file does not compile, the first point of the list is the compiler's error, and the exit code is 1.
    """
    from evokern.scaffold import scaffold

    made = scaffold(file, Path.cwd(), name, entry, include, define, trust=trust, arguments=arguments or ())
    if output.json:
        output.print_json({"kernel": made.name, "files": [str(path) for path in made.files], "confirm": made.confirm})
        return 0 if made.compiles else 1
    here = Path.cwd()
    for path in made.files:
        output.print_line(f"wrote {path.relative_to(here)}")
    output.print_line("To do:")
    for note in made.confirm:
        output.print_line(f"  - {note}")
    output.print_line(f"Then run: {command_line('check', made.name)}")
    return 0 if made.compiles else 1
