"""Nsight Compute around a command: what it is asked, how its words are read, why it may refuse.

Names of metrics are those of Nsight Compute's profiling guide, for compute capability 8.0 to 9.0. A metric that this
chip or this version does not know is left out and asked for by its other name, if it has one.
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

USUAL_PLACE = "/usr/local/cuda/bin"
"""Where a CUDA toolkit that is not on PATH has its tools."""
MARK = "evokern: "
"""What a line of the profiled program begins with that says why it failed."""
_ATTEMPTS = 6
_WORDS = re.compile(r"[a-z0-9]+__[a-z0-9_]+")


@dataclass(frozen=True)
class Metric:
    """One counter of a launch."""

    key: str
    """Its name in results."""
    label: str
    """Its name for people."""
    unit: Literal["ns", "%", "cycles", ""]
    """Unit; none for a count."""
    names: tuple[str, ...]
    """Nsight Compute's names: the first that the chip knows counts."""


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
"""What `profile` reads. A scoreboard is long for global and local memory, short for shared memory and special
functions; a stall is the mean number of cycles for which a warp waited between two of its instructions."""


@dataclass(frozen=True)
class Counted:
    """One launch under Nsight Compute."""

    kernel: str
    """The kernel's name as Nsight Compute prints it."""
    values: Mapping[str, float | None]
    """Nsight Compute's metric → value in base units; None where it gave none."""


@dataclass(frozen=True)
class ProfilerSettings:
    """How a command is profiled."""

    metrics: tuple[Metric, ...] = METRICS
    """What is asked for."""
    flush: bool = False
    """Empty the caches before every pass; otherwise they stay as the launches before left them."""
    symbols: tuple[str, ...] = ()
    """Names of the kernels in the machine code; empty profiles every launch."""
    profiler_range_only: bool = False
    """Profile only between `cuProfilerStart` and `cuProfilerStop`."""
    keep: Path | None = None
    """Where the report stays, `.ncu-rep`."""
    limit_s: float = 300.0
    """Seconds after which it is given up."""


@dataclass(frozen=True)
class CountedRun:
    """What became of a profiled command."""

    launches: tuple[Mapping[str, float | None], ...]
    """Key of each metric → value, for each launch in order."""
    command: tuple[str, ...]
    """The command line that gave them."""
    unknown: tuple[str, ...]
    """Keys of metrics that this chip or version does not have."""


def find_ncu() -> str | None:
    """Return the path of Nsight Compute's command line, None where it is not installed."""
    return shutil.which("ncu") or shutil.which("ncu", path=USUAL_PLACE)


def profile_command(
    ncu: str,
    program: Sequence[str],
    how: ProfilerSettings,
    environment: Mapping[str, str] | None = None,
    on_command: Callable[[str], None] = lambda text: None,
) -> CountedRun:
    """Run a command under Nsight Compute and read its counters.

    Args:
        ncu: path of Nsight Compute's command line.
        program: the command.
        how: what to read.
        environment: variables of the command beside this process's own.
        on_command: called with each command line before it runs.

    Raises:
        DeviceError: it may not read the counters, the command failed, or nothing was launched.
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
        how = replace(how, keep=None)  # what other names are asked for would overwrite the report
        found = found or [{} for _ in rows]
        for launch, row in zip(found, rows, strict=False):
            launch |= {key: row.values[name] for key, name in missing.items() if row.values[name] is not None}
        for key in missing:
            places[key] += found[0].get(key) is None
    if not found:
        raise DeviceError("Nsight Compute knows none of the counters of this GPU; a newer one may")
    unknown = tuple(key for key in places if found[0].get(key) is None)
    launches = tuple({key: launch.get(key) for key in places} for launch in found)
    return CountedRun(launches, first, unknown)


_PRINT = ("--csv", "--page", "raw", "--print-units", "base")


def options(names: Sequence[str], how: ProfilerSettings) -> tuple[str, ...]:
    """Return Nsight Compute's options, before the command that it profiles."""
    # Clocks stay as they are when candidates are timed.
    given = ["--clock-control", "none", "--cache-control", "all" if how.flush else "none", "--metrics", ",".join(names)]
    if how.profiler_range_only:
        given += ["--profile-from-start", "off"]
    if how.symbols:
        chosen = "|".join(map(re.escape, dict.fromkeys(how.symbols)))
        given += ["--kernel-name-base", "mangled", "--kernel-name", f"regex:^({chosen})$"]
    if how.keep is not None:
        return (*given, "--force-overwrite", "--export", str(how.keep))
    return (*given, *_PRINT)


def read(text: str, names: Sequence[str]) -> list[Counted]:
    """Return the launches in the table that Nsight Compute printed (`--csv --page raw`), in order.

    Args:
        text: everything that was printed.
        names: the metrics that were asked for; a missing one reads as None.
    """
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return []
    table = csv.DictReader(io.StringIO("\n".join(line for line in lines[start:] if line.startswith('"'))))
    # The row below the header holds units; only launches have a number.
    rows = [row for row in table if row["ID"]]
    return [Counted(row.get("Kernel Name") or "", {name: _number(row.get(name)) for name in names}) for row in rows]


def _number(text: str | None) -> float | None:
    try:
        value = float((text or "").replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _run(command: Sequence[str], limit_s: float, environment: Mapping[str, str] | None) -> str:
    # Numbers in the C locale; a session of its own, so that the profiled program ends with its watcher.
    settings = {**os.environ, "LC_ALL": "C", **(environment or {})}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=settings, start_new_session=True
    ) as process:
        try:
            return process.communicate(timeout=limit_s)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise DeviceError(f"Nsight Compute did not end within {limit_s:g} s: {' '.join(command[:1])}") from None
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise


def _named_in_errors(text: str) -> set[str]:
    """Return the metrics that Nsight Compute complains about, without their suffixes."""
    complaints = [line for line in text.splitlines() if line.startswith(("==ERROR==", "==WARNING=="))]
    return {word for line in complaints for word in _WORDS.findall(line)}


def _why(text: str) -> str:
    """Return why there is no table of counters, and what to do."""
    if "ERR_NVGPUCTRPERM" in text:
        return (
            "Nsight Compute may not read the GPU's counters (ERR_NVGPUCTRPERM): the driver keeps them for "
            "administrators. Run this command as root (in a container with --cap-add=SYS_ADMIN), or let every user: "
            "write `options nvidia NVreg_RestrictProfilingToAdminUsers=0` to /etc/modprobe.d/nvidia-profiling.conf "
            "and reboot"
        )
    reported = [line[len(MARK) :] for line in text.splitlines() if line.startswith(MARK)]
    if reported:
        return f"the candidate does not run under Nsight Compute: {reported[-1]}"
    if "driver resource was unavailable" in text:
        return (
            "another program reads the GPU's counters (==ERROR== driver resource unavailable): end it, or pause a "
            "monitor with `dcgmi profiling --pause`"
        )
    if "No kernels were profiled" in text:
        return "Nsight Compute saw no launch of the candidate; its version may not know this GPU"
    last = [line for line in text.strip().splitlines() if line.strip()][-4:]
    return f"Nsight Compute gave no counters: {' | '.join(last) or 'it printed nothing'}"
