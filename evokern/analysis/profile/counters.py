"""Profiler that reads the GPU's hardware counters with Nsight Compute."""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evokern.analysis.profile.bound import Bottleneck, bottleneck_from_counters, with_suggestions
from evokern.analysis.profile.nsight import METRICS, ProfilerSettings, find_ncu, profile_command
from evokern.analysis.profile.subject import ProfileSubject
from evokern.declaration.as_data.declared import is_declared
from evokern.declaration.kernel import Launch
from evokern.device.gpu.jobs import ProfiledCall
from evokern.device.gpu.lock import GpuLock
from evokern.device.gpu.profile import LiveGpu
from evokern.errors import DeviceError, UsageError
from evokern.escaping import shell_line
from evokern.hardware.profiles import CHIPS
from evokern.simt.time_model import latencies_of

Values = Mapping[str, float | None]
"""Key of `METRICS` → value, or None if the GPU or Nsight Compute lacks the counter."""


@dataclass(frozen=True)
class CountedLaunch:
    """One launch of a candidate."""

    entry: str
    """Name of the launched kernel function."""
    grid: tuple[int, int, int]
    """Number of blocks along x, y and z."""
    block: tuple[int, int, int]
    """Number of threads per block along x, y and z."""
    counters: Values
    """Values of the launch's counters."""


@dataclass(frozen=True)
class CountedCandidate:
    """Hardware profile of a candidate on a problem."""

    title: str
    """Description of the candidate."""
    kernel: str
    """The kernel's name."""
    config: Mapping[str, Any]
    """Gene → value."""
    problem: str
    """The problem's key."""
    in_words: str
    """The problem in readable form."""
    device: str
    """The GPU's model."""
    time_us: float | None
    """Time of a call measured by the search, µs, or None if the candidate is not a trial on this problem."""
    duration_us: float | None
    """Time of a call under Nsight Compute in µs, the total of all launches."""
    counters: Values
    """Counters of the call: sums of durations and counts, other values averaged by duration."""
    launches: tuple[CountedLaunch, ...]
    """Profiles of the launches, in order."""
    verdict: Bottleneck
    """The bottleneck with suggestions."""
    command: str
    """Command line that produced the counters."""
    report: str | None = None
    """Path of Nsight Compute's report if it was kept, otherwise None."""

    def as_dict(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        values = asdict(self)
        del values["in_words"]
        return {**values, "source": "ncu", "predicted": False, "verdict": self.verdict.as_dict()}


def why_no_profiler() -> str | None:
    """Return why hardware counters are unavailable, or None if Nsight Compute is installed."""
    if find_ncu():
        return None
    return (
        "Nsight Compute (ncu) is not installed, so this profile is simulated; to use the GPU's counters, install ncu "
        "from "
        "the CUDA toolkit or the package nsight-compute from NVIDIA's repository"
    )


def profile_counted(
    subject: ProfileSubject, keep: Path | None = None, on_command: Callable[[str], None] = lambda text: None
) -> CountedCandidate:
    """Profile one call of a candidate with hardware counters.

    Args:
        subject: the candidate; runs on `subject.gpu`.
        keep: path for Nsight Compute's report, or None to discard it.
        on_command: called with each command line before it runs.

    Raises:
        UsageError: the candidate cannot run or the counters cannot be read; the message gives the remedy.
    """
    gpu, ncu = subject.gpu, find_ncu()
    if gpu is None or ncu is None:
        raise DeviceError("hardware counters need a GPU and Nsight Compute; profile with --device sim:CHIP instead")
    built = subject.built()
    launches = built.build(subject.problem).launches
    symbols = tuple(built.programs[0].lowered[launch.entry] for launch in launches)
    how = ProfilerSettings(
        symbols=symbols, profiler_range_only=True, flush=subject.study.timing.cache == "flush", keep=_report(keep)
    )
    # Take the lock that searches use, because profiling would disturb their measurements.
    lock = GpuLock(gpu.uuid, f"cuda:{gpu.index} ({gpu.model})")
    try:
        with tempfile.TemporaryDirectory(prefix="evokern-") as scratch:
            job = Path(scratch) / "job.pickle"
            content = subject.kernel.content if is_declared(subject.kernel.content) else None
            call = ProfiledCall(
                subject.kernel.folder, subject.problem, subject.config, built, gpu.index, content=content
            )
            job.write_bytes(pickle.dumps(call))
            program = (sys.executable, "-P", "-m", "evokern.analysis.profile.profiled_call", str(job))
            found = profile_command(
                ncu, program, how, {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}, on_command
            )
    except DeviceError as error:
        raise _with_remedy(error, gpu) from error
    finally:
        lock.release()
    if len(found.launches) != len(launches):
        raise DeviceError(f"Nsight Compute profiled {len(found.launches)} of {len(launches)} launches")
    counted = tuple(_launch(launch, values) for launch, values in zip(launches, found.launches, strict=True))
    return _candidate(subject, gpu, counted, shell_line(found.command), how.keep)


def _report(keep: Path | None) -> Path | None:
    """Return the report's path, with the suffix that Nsight Compute adds.

    Raises:
        UsageError: the folder does not exist.
    """
    if keep is None:
        return None
    if not keep.resolve().parent.is_dir():
        raise UsageError(f"--keep {keep}: the folder {keep.resolve().parent} does not exist; create it")
    path = keep if keep.suffix == ".ncu-rep" else keep.with_name(f"{keep.name}.ncu-rep")
    return path.resolve()


def _with_remedy(error: DeviceError, gpu: LiveGpu) -> DeviceError:
    chip = gpu.profile.name if gpu.profile.name in CHIPS else "CHIP"
    return DeviceError(f"{error}; or use --device sim:{chip} to profile on a simulated chip")


def _launch(launch: Launch, values: Values) -> CountedLaunch:
    return CountedLaunch(launch.entry, launch.grid, launch.block, dict(values))


def _candidate(
    subject: ProfileSubject, gpu: LiveGpu, launches: Sequence[CountedLaunch], command: str, report: Path | None
) -> CountedCandidate:
    total = combined([launch.counters for launch in launches])
    duration = total.get("duration_ns")
    duration_us = None if duration is None else duration / 1000
    time_us = _search_time_us(subject, gpu)
    launch_us = latencies_of(subject.chip).launch_us * len(launches)
    bottleneck = bottleneck_from_counters(total, launch_us, time_us or duration_us)
    return CountedCandidate(
        subject.title, subject.kernel.name, dict(subject.config), subject.problem.key, str(subject.problem), gpu.model,
        time_us, duration_us,
        total, tuple(launches), with_suggestions(bottleneck, subject, total), command, str(report) if report else None,
    )  # fmt: skip


def _search_time_us(subject: ProfileSubject, gpu: LiveGpu) -> float | None:
    """Return the candidate's time in µs from a search for this problem and GPU model, or None."""
    record, trial = subject.record, subject.trial
    if record is None or trial is None or record.device != gpu.model or subject.problem.key not in record.problems:
        return None
    timings = trial.evaluation.timings
    place = record.problems.index(subject.problem.key)
    return timings[place].median_us if place < len(timings) else None


def combined(launches: Sequence[Values]) -> dict[str, float | None]:
    """Return the combined counters of consecutive launches."""
    if len(launches) == 1:
        return dict(launches[0])
    weights = [values.get("duration_ns") or 1.0 for values in launches]
    found: dict[str, float | None] = {}
    for metric in METRICS:
        column = [values.get(metric.key) for values in launches]
        known = [(value, weight) for value, weight in zip(column, weights, strict=True) if value is not None]
        if len(known) < len(launches) or not known:
            found[metric.key] = None
        elif metric.unit in ("ns", ""):
            found[metric.key] = sum(value for value, _ in known)
        else:
            found[metric.key] = sum(value * weight for value, weight in known) / sum(weight for _, weight in known)
    return found
