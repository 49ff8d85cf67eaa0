"""Program that Nsight Compute profiles: one warm call of a candidate between profiler start and stop.

    python -m evokern.analysis.profile.profiled_call JOB

JOB is a file with a pickled `ProfiledCall`. The buffers, inputs and launches are the same as in a search; this program
neither checks nor times them.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import torch
from cuda.bindings import driver

from evokern.analysis.profile.nsight import ERROR_PREFIX
from evokern.compile.build import tensors_of
from evokern.device.gpu.cuda import Candidate, check, finish
from evokern.device.gpu.jobs import ProfiledCall
from evokern.errors import EvokernError
from evokern.gate import Gate
from evokern.gate.check import RunFailed, calls
from evokern.study.discovery import load_kernel
from evokern.study.settings import GateSettings

_WARM_CALLS = 2


def main() -> None:
    """Run the job named on the command line; on failure, print one line and exit with status 1."""
    job: ProfiledCall = pickle.loads(Path(sys.argv[1]).read_bytes())
    try:
        launch(job)
    except RunFailed as failed:
        sys.exit(_failure_exit(f"{failed.outcome.value}, {failed.evidence.get('error') or dict(failed.evidence)}"))
    except (EvokernError, RuntimeError) as error:
        # torch raises RuntimeError when memory is exhausted and when a launch corrupted the context.
        sys.exit(_failure_exit(str(error).splitlines()[0]))


def launch(job: ProfiledCall) -> None:
    """Warm up a candidate, then launch it once while the profiler counts.

    Raises:
        RunFailed: a launch failed.
        EvokernError: the kernel folder is invalid.
    """
    torch.cuda.set_device(job.device_index)
    device = torch.device("cuda", job.device_index)
    torch.empty(1, device=device)
    kernel = load_kernel(job.folder, job.content)
    build = job.built.build(job.problem)
    gate = Gate(kernel, job.problem, GateSettings(), device)
    bench = gate.bench(tensors_of(kernel, job.config, job.problem), ["normal"], runs=1)
    bench.refresh()
    bench.poison()
    candidate = Candidate(job.built)
    prepared = [candidate.prepare(build.program, call) for call in calls(bench, build.launches)]
    for _ in range(_WARM_CALLS):
        for call in prepared:
            call.enqueue()
    finish(job.limit_s)
    check(driver.cuProfilerStart())
    for call in prepared:
        call.enqueue()
    finish(job.limit_s)
    check(driver.cuProfilerStop())


def _failure_exit(text: str) -> int:
    print(f"{ERROR_PREFIX}{text}", flush=True)
    return 1


if __name__ == "__main__":
    main()
