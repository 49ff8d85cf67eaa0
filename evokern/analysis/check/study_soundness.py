"""Can a study be searched? As far as can be told quickly, and without running a kernel's code: `kernel.py` is code.

A search finds the same mistakes, in this order and these words, and those beyond them: whether a candidate is feasible,
compiles and is right.
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
    """Refuse a study that cannot be searched: kernel, device, problems, limits, genes or the sampler's options.

    Raises:
        StudyError: it cannot be searched; the message says why in one line.
    """
    with study.blamed("device"):
        _check_device(study.device)
    if not study.device.startswith("replay:"):  # its genes and its problem are the recording's
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
    elif kind.lower() not in ("auto", "cuda", "replay"):  # whether those are there is no matter of the study's
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
    """Refuse limits above those of the study's chip; where it is not named, of every chip."""
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
    """Refuse options that the study's sampler does not take; one without options need not be imported."""
    if study.sampler.options:
        from evokern.samplers import make_sampler

        stand_in = Space((Gene("GENE", (0, 1), 0),))
        make_sampler(study.sampler.name, stand_in, study.sampler.options, study.seed, study.window or 1)
