"""Profiler that runs a command under Nsight Compute: options, output parser and error messages.

Metric names follow Nsight Compute's profiling guide, for compute capability 8.0 to 9.0. If the chip or the version
does not support a metric, its alternative names are tried.
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from evokern.errors import DeviceError
from evokern.escaping import shell_line

DEFAULT_CUDA_BIN = "/usr/local/cuda/bin"
"""Folder of the CUDA tools when they are not on PATH."""
ERROR_PREFIX = "evokern: "
"""Prefix of the line in which the profiled program reports an error."""
_ATTEMPTS = 6
_WORDS = re.compile(r"[a-z0-9]+__[a-z0-9_]+")


@dataclass(frozen=True)
class Metric:
    """One counter of a launch."""

    key: str
    """Name of the counter in results."""
    label: str
    """Name of the counter in reports."""
    unit: Literal["ns", "%", "cycles", ""]
    """Unit of the counter, or empty for a count."""
    names: tuple[str, ...]
    """Nsight Compute's names in order of preference."""


def _stall(reason: str) -> tuple[str, ...]:
    return (f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio",)


METRICS: tuple[Metric, ...] = (
    Metric("duration_ns", "duration", "ns", ("gpu__time_duration.sum",)),
    Metric("sm_percent", "SM throughput", "%", ("sm__throughput.avg.pct_of_peak_sustained_elapsed",)),
    Metric(
        "tensor_percent", "tensor pipe", "%",
        (
            "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
            "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_elapsed",
            "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed",
        ),
    ),
    Metric(
        "dram_percent", "DRAM throughput", "%",
        (
            "dram__throughput.avg.pct_of_peak_sustained_elapsed",
            "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        ),
    ),
    Metric(
        "l2_percent", "L2 throughput", "%",
        ("lts__throughput.avg.pct_of_peak_sustained_elapsed", "lts__t_sectors.avg.pct_of_peak_sustained_elapsed"),
    ),
    Metric("l2_hit_percent", "L2 hit rate", "%", ("lts__t_sector_hit_rate.pct",)),
    Metric(
        "shared_percent", "shared-memory pipe", "%",
        ("l1tex__data_pipe_lsu_wavefronts_mem_shared.avg.pct_of_peak_sustained_elapsed",),
    ),
    Metric("shared_wavefronts", "shared-memory wavefronts", "", ("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",)),
    Metric(
        "load_conflicts", "bank conflicts of loads", "", ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",)
    ),
    Metric(
        "store_conflicts", "bank conflicts of stores", "", ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",)
    ),
    Metric("warps_percent", "active warps", "%", ("sm__warps_active.avg.pct_of_peak_sustained_active",)),
    Metric("issue_percent", "issue slots busy", "%", ("smsp__issue_active.avg.pct_of_peak_sustained_active",)),
    Metric("warp_cycles", "cycles between a warp's instructions", "cycles",
           ("smsp__average_warp_latency_per_inst_issued.ratio",)),
    Metric("long_scoreboard", "stall: long scoreboard", "cycles", _stall("long_scoreboard")),
    Metric("short_scoreboard", "stall: short scoreboard", "cycles", _stall("short_scoreboard")),
    Metric("mio_throttle", "stall: MIO queue", "cycles", _stall("mio_throttle")),
    Metric("barrier", "stall: barrier", "cycles", _stall("barrier")),
)  # fmt: skip
"""Metrics that `profile` reads. The long scoreboard covers global and local memory, the short scoreboard shared memory
and special functions. A stall is the mean number of cycles that a warp waits between two instructions."""


@dataclass(frozen=True)
class LaunchCounters:
    """Counters of one launch, as printed by Nsight Compute."""

    kernel: str
    """The kernel's name as printed by Nsight Compute."""
    values: Mapping[str, float | None]
    """Metric name → value in base units, or None if missing."""


@dataclass(frozen=True)
class ProfilerSettings:
    """Settings for profiling a command."""

    metrics: tuple[Metric, ...] = METRICS
    """Metrics that are read."""
    flush: bool = False
    """Whether to empty the caches before every pass."""
    symbols: tuple[str, ...] = ()
    """Mangled names of the kernels to profile; empty for every launch."""
    profiler_range_only: bool = False
    """Whether to profile only between `cuProfilerStart` and `cuProfilerStop`."""
    keep: Path | None = None
    """Path where the report (`.ncu-rep`) is saved, or None to discard it."""
    limit_s: float = 300.0
    """Time limit in seconds."""


@dataclass(frozen=True)
class CountedRun:
    """Result of profiling a command."""

    launches: tuple[Mapping[str, float | None], ...]
    """Metric key → value, for each launch, in order."""
    command: tuple[str, ...]
    """Command line that produced the values."""
    unknown: tuple[str, ...]
    """Keys of metrics that the chip or version lacks."""


def find_ncu() -> str | None:
    """Return the path of `ncu`, or None if it is not installed."""
    return shutil.which("ncu") or shutil.which("ncu", path=DEFAULT_CUDA_BIN)


def profile_command(
    ncu: str,
    program: Sequence[str],
    how: ProfilerSettings,
    environment: Mapping[str, str] | None = None,
    on_command: Callable[[str], None] = lambda text: None,
) -> CountedRun:
    """Run a command under Nsight Compute and read its counters.

    Args:
        ncu: path of `ncu`.
        program: the command to profile.
        how: profiler settings.
        environment: additional environment variables of the command.
        on_command: called with each command line before it runs.

    Raises:
        DeviceError: reading counters is not permitted, the command failed, or it launched no kernel.
    """
    places = dict.fromkeys((metric.key for metric in how.metrics), 0)
    by_key = {metric.key: metric for metric in how.metrics}
    found: list[dict[str, float | None]] = []
    first: tuple[str, ...] = ()
    for _ in range(_ATTEMPTS):
        names = {key: by_key[key].names[place] for key, place in places.items() if place < len(by_key[key].names)}
        missing = {key: name for key, name in names.items() if not found or found[0].get(key) is None}
        if not missing:
            break
        command = (ncu, *options(tuple(missing.values()), how), *program)
        on_command(shell_line(command))
        text = _run(command, how.limit_s, environment)
        if how.keep is not None and how.keep.is_file():
            printing = (ncu, "--import", str(how.keep), *_PRINT)
            on_command(shell_line(printing))
            text += _run(printing, how.limit_s, environment)
        rows = read(text, tuple(missing.values()))
        if not rows:
            refused = {key for key, name in missing.items() if name.partition(".")[0] in _named_in_errors(text)}
            if not refused:
                raise DeviceError(_why(text))
            for key in refused:
                places[key] += 1
            continue
        first = first or command
        how = replace(how, keep=None)  # later attempts would overwrite the report
        found = found or [{} for _ in rows]
        for launch, row in zip(found, rows, strict=False):
            launch |= {key: row.values[name] for key, name in missing.items() if row.values[name] is not None}
        for key in missing:
            places[key] += found[0].get(key) is None
    if not found:
        raise DeviceError("this version of Nsight Compute has no counters for this GPU; install a newer version")
    unknown = tuple(key for key in places if found[0].get(key) is None)
    launches = tuple({key: launch.get(key) for key in places} for launch in found)
    return CountedRun(launches, first, unknown)


_PRINT = ("--csv", "--page", "raw", "--print-units", "base")


def options(names: Sequence[str], how: ProfilerSettings) -> tuple[str, ...]:
    """Return Nsight Compute's options, which precede the profiled command."""
    # Keep the clocks as in the timing of candidates.
    given = ["--clock-control", "none", "--cache-control", "all" if how.flush else "none", "--metrics", ",".join(names)]
    if how.profiler_range_only:
        given += ["--profile-from-start", "off"]
    if how.symbols:
        chosen = "|".join(map(re.escape, dict.fromkeys(how.symbols)))
        given += ["--kernel-name-base", "mangled", "--kernel-name", f"regex:^({chosen})$"]
    if how.keep is not None:
        return (*given, "--force-overwrite", "--export", str(how.keep))
    return (*given, *_PRINT)


def read(text: str, names: Sequence[str]) -> list[LaunchCounters]:
    """Parse Nsight Compute's table (`--csv --page raw`) and return its launches in order.

    Args:
        text: complete output.
        names: requested metrics; missing values are None.
    """
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return []
    table = csv.DictReader(io.StringIO("\n".join(line for line in lines[start:] if line.startswith('"'))))
    # The row below the header has units and no ID.
    rows = [row for row in table if row["ID"]]
    return [
        LaunchCounters(row.get("Kernel Name") or "", {name: _number(row.get(name)) for name in names}) for row in rows
    ]


def _number(text: str | None) -> float | None:
    try:
        value = float((text or "").replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _run(command: Sequence[str], limit_s: float, environment: Mapping[str, str] | None) -> str:
    # C locale for the numbers; a new session, so that killing the group also ends the profiled program.
    settings = {**os.environ, "LC_ALL": "C", **(environment or {})}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=settings, start_new_session=True
    ) as process:
        try:
            return process.communicate(timeout=limit_s)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise DeviceError(f"Nsight Compute ({' '.join(command[:1])}) did not finish within {limit_s:g} s") from None
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise


def _named_in_errors(text: str) -> set[str]:
    """Return the metrics named in Nsight Compute's errors and warnings, without their suffixes."""
    complaints = [line for line in text.splitlines() if line.startswith(("==ERROR==", "==WARNING=="))]
    return {word for line in complaints for word in _WORDS.findall(line)}


def _why(text: str) -> str:
    """Return why there are no counters, with the remedy."""
    if "ERR_NVGPUCTRPERM" in text:
        return (
            "Nsight Compute has no permission to read the GPU's counters (ERR_NVGPUCTRPERM): the driver restricts "
            "them to administrators. Run this command as root (in a container with --cap-add=SYS_ADMIN), or allow "
            "all users: write `options nvidia NVreg_RestrictProfilingToAdminUsers=0` to "
            "/etc/modprobe.d/nvidia-profiling.conf and reboot"
        )
    reported = [line[len(ERROR_PREFIX) :] for line in text.splitlines() if line.startswith(ERROR_PREFIX)]
    if reported:
        return f"the candidate failed under Nsight Compute: {reported[-1]}"
    if "driver resource was unavailable" in text:
        return (
            "another program is using the GPU's counters (==ERROR== driver resource unavailable): end it, or pause "
            "DCGM monitoring with `dcgmi profiling --pause`"
        )
    if "No kernels were profiled" in text:
        return "Nsight Compute profiled no launch of the candidate; install a version that supports this GPU"
    last = [line for line in text.strip().splitlines() if line.strip()][-4:]
    return f"Nsight Compute returned no counters: {' | '.join(last) or 'it printed nothing'}"
