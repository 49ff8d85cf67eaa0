"""`evokern init FILE`: draft a kernel folder and a study from an existing file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evokern.cli._command import command
from evokern.cli._output import Output
from evokern.wording import command as command_line

if TYPE_CHECKING:
    from evokern.scaffold.draft import Draft


@command(
    "init",
    examples="""
    evokern init my_kernel.cu
    evokern init my_kernel.cu --entry 'reduce<256>' --name reduce
    evokern init softmax.cu --reference 'torch.nn.functional:softmax(dim=-1)' --example 'ROWS=4096 COLS=1024'
    evokern init bias_gelu.cu --reference 'lambda x, bias: F.gelu(x + bias)'
    evokern init my_kernel.cu --force --reference mine.py:relu
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
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference",
            metavar="FUNCTION",
            help="Function of torch tensors that computes the outputs from the kernel's inputs, in the order of the "
            "kernel's arguments: module:function, FILE.py:function, module:function(NAME=VALUE), or a lambda. It also "
            "becomes the first baseline.",
        ),
    ] = None,
    example: Annotated[
        str | None,
        typer.Option(
            "--example",
            metavar="SIZES",
            help="Sizes of the study's problem, such as 'M=1024 N=64': one for each field of the draft. Other numbers "
            "that the kernel takes may follow: 'epsilon=1e-6'.",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace kernels/NAME/ and studies/NAME.toml if they exist.")
    ] = False,
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

    The command writes kernels/NAME/ and studies/NAME.toml. In these files, a TODO states what you must write, and a
    guess what you must confirm. The command lists both with file and line.

    In a CUDA file, macros, constants, template parameters and block extents become genes. The command runs the kernel
    on the simulator to guess its inputs, outputs, shapes and grid, and to confirm the values of genes. It drops host
    code and other kernels. A Kernel Tuner script
    or T1 file provides parameters, restrictions, grid, arguments and constant memory. A KernelBench task provides
    everything except the kernel.

    With --reference, the draft needs no reference.h. The default candidate runs on the simulator, and its values are
    compared with those of the reference; a difference is marked in the draft. The values also decide what the file
    leaves open: outputs or workspaces, the order of axes, and unknown numbers. In a lambda, F is torch.nn.functional.

    If a CUDA file does not compile, the first point of the list is the compiler's error, and the exit code is 1.
    """
    from evokern.scaffold import Wanted, scaffold

    stated = None
    if reference is not None:
        from evokern.tuning.stated_reference import stated_reference

        stated = stated_reference(reference)

    def complete(made: Draft) -> Draft:
        if example is not None:
            from evokern.scaffold.example import with_example

            made = with_example(made, example)
        if stated is not None:
            from evokern.tuning.draft_reference import with_reference

            made = with_reference(made, stated, example=example is not None)
        return made

    made = scaffold(
        file,
        Path.cwd(),
        Wanted(
            name,
            entry,
            include,
            define,
            arguments or (),
            trust,
            force,
            complete if example is not None or stated is not None else None,
        ),
    )
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
