"""Find the study, device, kernel and search space of a session.

The device opens first, so that its workers import torch in the meantime. This module does not import Optuna: the
session's own slow imports run while the workers import torch.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from evokern.cluster import RayRequest
from evokern.declaration.bounds.strict import judged_in
from evokern.declaration.feasibility import feasible_space
from evokern.declaration.kernel import Kernel
from evokern.device import Device
from evokern.device.opening import open_device
from evokern.device.recorded.table import Table, TableDevice
from evokern.errors import DeviceError, KernelError, SpaceError, StudyError
from evokern.hardware.profiles import limits_for
from evokern.search.identity import SearchTarget, problems_of
from evokern.search.request import SessionRequest
from evokern.store import database_of, open_recording
from evokern.study.discovery import find_kernel_folder, find_study, kernel_of
from evokern.study.settings import Study


def find(study: str | Path | Study, request: SessionRequest, *, resumed: bool = False) -> SearchTarget:
    """Find the study, device, kernel and search space.

    Args:
        study: name of a study, path to its TOML file, or a `Study`.
        request: device and kernel if the study does not name them, and whether to trust the kernel's code.
        resumed: whether the study is from a database; if so, its kernel folder is not compared with a recording.

    Raises:
        UsageError: the study, device, kernel or space is unknown or invalid.
    """
    found = study if isinstance(study, Study) else find_study(str(study))
    if request.inputs == "normal":
        found = replace(found, gate=replace(found.gate, inputs="normal"))
    if request.kernel is not None and not isinstance(request.kernel, Kernel):
        raise StudyError(f"kernel = {request.kernel!r}; use an evokern.Kernel")
    chosen = found.device if request.device is None else request.device
    if isinstance(chosen, str):
        found = replace(found, device=chosen)
        opened = _open(chosen, request.cluster)
    elif not all(callable(getattr(chosen, method, None)) for method in ("start", "submit", "poll", "close")):
        raise DeviceError(f"device = {chosen!r}; use a name such as cuda:0, or an object with the methods of a device")
    else:
        opened = chosen
    try:
        if isinstance(opened, TableDevice):
            table = opened.table
            if found.genes or found.limits:
                raise StudyError(
                    f"study {found.name} restricts genes or limits, which {opened.identity} does not support; remove "
                    "[genes] and [limits] from the study"
                )
            if not resumed:
                _same_kernel(found, table, trust=request.trust)
            played = table.kernel()
            return SearchTarget(found, played, (played.problem({}),), table.space(), opened, table)
        if resumed and request.kernel is None:  # do not run code from the folder that the database names
            raise DeviceError(
                f"study {found.name} was searched on a recording, but the current device is {opened.identity}; their "
                "times are not comparable. Choose the recording with --device replay:FILE"
            )
        loaded = request.kernel or kernel_of(found, trust=request.trust)
        with found.blamed("[gate]"):
            loaded = judged_in(loaded, found.gate.precision)
        with found.blamed("problems"):
            problems = problems_of(found, loaded)
        with found.blamed("[limits]"):
            chip = limits_for(opened.profile, found.limits)
        with found.blamed("[genes]", SpaceError):
            space = feasible_space(loaded, problems, chip, found.genes)
        if not space.genes:
            raise StudyError(
                f"kernel {loaded.name} declares no gene, so there is nothing to search; replace a number in its source"
                " with a macro and declare the macro in kernel.py: Parameter(NAME, (16, 32, 64))"
            )
        return SearchTarget(found, loaded, problems, space, opened)
    except BaseException:
        opened.close()
        raise


def _same_kernel(study: Study, table: Table, *, trust: bool) -> None:
    """Reject a recording of another kernel than the study's, because its times would be those of another kernel.

    If the study's kernel cannot be found, only the names are compared.

    Raises:
        DeviceError: the kernel names or the genes differ.
    """
    remedy = "choose a recording of that kernel with --device replay:FILE, or write a study for this recording"
    try:
        find_kernel_folder(study.kernel, study.path.parent if study.path else None)
    except KernelError:
        loaded, kernel_name = None, study.kernel
    else:
        loaded = kernel_of(study, trust=trust)
        kernel_name = loaded.name
    if table.recorded_kernel and table.recorded_kernel != kernel_name:
        raise DeviceError(
            f"recording {table.name} is of kernel {table.recorded_kernel}, but study {study.name} is of {kernel_name}; "
            + remedy
        )
    if loaded is None:
        return
    declared, recorded = ({gene.name: gene.values for gene in genes} for genes in (loaded.genes, table.genes))
    different = [f"it lacks {name}" for name in declared if name not in recorded]
    different += [f"{name} is not a gene of {kernel_name}" for name in recorded if name not in declared]
    different += [
        f"{name}={value} is not a value of {kernel_name}"
        for name in recorded
        for value in recorded[name]
        if value not in declared.get(name, recorded[name])
    ]
    if different:
        raise DeviceError(
            f"recording {table.name} does not fit kernel {kernel_name} of study {study.name} "
            f"({'; '.join(different[:6])}); {remedy}"
        )


def _open(name: str, cluster: RayRequest | None) -> Device:
    """Return the device with a name; `replay:runs.db:study` replays a study from a database."""
    kind, _, source = name.strip().partition(":")
    recorded = kind.lower() == "replay" and database_of(source) is not None
    return TableDevice(open_recording(source)) if recorded and not cluster else open_device(name, cluster)
