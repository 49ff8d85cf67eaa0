"""Quick validation of a study, without running the kernel's code (`kernel.py`).

A search reports the same errors in the same order and words. In addition, it finds infeasible, uncompilable and wrong
candidates.
"""

from __future__ import annotations

from evokern.analysis.check.declaration import DeclaredKernel, read_declaration
from evokern.declaration.feasibility import narrowed
from evokern.declaration.genes import Gene
from evokern.declaration.problem import parse_problems
from evokern.declaration.space import Space
from evokern.device.opening import TARGET, open_device
from evokern.errors import DeviceError, KernelError, SpaceError, StudyError
from evokern.hardware.profiles import CHIPS, chip, limits_for
from evokern.study.discovery import find_kernel_folder
from evokern.study.settings import Study


def require_sound(study: Study) -> None:
    """Validate a study's kernel, device, problems, limits, genes and sampler options.

    Raises:
        StudyError: the study cannot be searched; the message gives the reason in one line.
    """
    with study.blamed("device"):
        _check_device(study.device)
    if not study.device.startswith("replay:"):  # genes and problem come from the recording
        try:
            folder = find_kernel_folder(study.kernel, study.path.parent if study.path else None)
        except KernelError as error:
            raise StudyError(f"{study.path or study.name}: {error}") from error
        _check_against(study, read_declaration(folder / "kernel.py"))
    with study.blamed("sampler"):
        _check_options(study)


def _check_device(name: str) -> None:
    kind, _, rest = name.strip().partition(":")
    if kind.lower() == "sim":
        chip(rest or TARGET)
    elif kind.lower() not in ("auto", "cuda", "replay"):  # whether these exist depends on the machine
        open_device(name)


def _check_against(study: Study, kernel: DeclaredKernel) -> None:
    if kernel.fields is not None:
        with study.blamed("problems"):
            parse_problems(kernel.name, kernel.fields, study.problems, study.dtype)
    with study.blamed("[limits]"):
        _check_limits(study)
    if kernel.genes is not None:
        declared = kernel.genes
        with study.blamed("[genes]", SpaceError):
            genes = {declared.space.gene(name).name: values for name, values in study.genes.items()}
            narrowed(declared.space, {name: v for name, v in genes.items() if name not in declared.computed})


def _check_limits(study: Study) -> None:
    """Reject limits that exceed those of the study's chip, or those of every chip if the study names none."""
    kind, _, name = study.device.strip().partition(":")
    bases = [chip(name or TARGET)] if kind.lower() == "sim" else [*CHIPS.values()]
    refused = None
    for base in bases:
        try:
            limits_for(base, study.limits)
            return
        except DeviceError as error:
            refused = error
    if refused is not None:
        raise refused


def _check_options(study: Study) -> None:
    """Reject options that the study's sampler does not accept."""
    if study.sampler.options:
        from evokern.samplers import make_sampler

        stand_in = Space((Gene("GENE", (0, 1), 0),))
        make_sampler(study.sampler.name, stand_in, study.sampler.options, study.seed, study.window or 1)
