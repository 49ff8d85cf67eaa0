"""Searches shapes that nobody chose, and compares each champion with every installed peer in interleaved rounds.

    python tests/scripts/drawn_shapes.py FOLDER attention|matmul [--seconds 450] [--each 60s]
        [--peers SITE] [--named] [--seed 56]

Each call works for about `--seconds` and continues in the next call; repeat the command until it prints `done`. The
first step is a search of `--each` for each shape, without the packages in `--peers`. The second step compiles these
packages, and the third measures the three best candidates of each search, then the best of them with the peers. The
results are in FOLDER. `--device sim:l4 --small` shows on a machine without a GPU that each step works.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import site
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import helpers_path  # noqa: F401 (finds the helpers)
from paths import ROOT

from evokern.analysis.candidates import TrialUnderTest, device_for, evaluate, running_device, trial_under_test
from evokern.api import FACTORIES
from evokern.device.contract import MeasuresRounds
from evokern.errors import DeviceError
from evokern.measurement.playoff import effects
from evokern.search._session import search_study
from evokern.search.request import SessionPart, SessionRequest
from evokern.store import open_readonly
from evokern.study.discovery import find_kernel_folder, load_kernel
from evokern.study.file import study_from_table
from evokern.sweep.plan import PlannedStudy
from evokern.sweep.study_state import state_of
from evokern.workers.fork_server import keeping_servers

SHAPES = 12
NAMED = {
    "attention": (
        "B=2 H=24 S=1500 D=128 causal=1", "B=1 H=40 S=6000 D=128", "B=4 H=16 S=4096 D=128",
        "B=4 H=16 S=4096 D=128 causal=1", "B=3 H=8 S=777 D=64", "B=2 H=16 S=2048 D=128", "B=16 H=16 S=512 D=128",
    ),
    "matmul": (
        "M=3072 N=768 K=3072", "M=200 N=5120 K=13824", "M=4096 N=4096 K=256", "M=4096 N=4096 K=4096",
        "M=1024 N=1024 K=1024",
    ),
}  # fmt: skip
FINALISTS = 3
"""Best candidates of a search that are measured again, because the smallest of many medians is too optimistic."""
NEAR = 1.3
"""Peers slower than this multiple of the fastest take no part in the rounds."""
CACHES = {
    "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "1", "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR": "flash",
    "QUACK_CACHE_DIR": "quack",
}  # fmt: skip
"""Settings with which FlashAttention 4 and quack store compiled kernels."""
PEER_PACKAGES = ("torch", "flash-attn-4", "flash-attn", "quack-kernels", "flashinfer-python", "nvidia-cutlass-dsl")
CALL = "import sys; sys.path.insert(0, sys.argv[1]); import drawn_shapes; drawn_shapes.call_peers(*sys.argv[2:])"


def drawn(kernel: str, seed: int, *, small: bool = False) -> list[str]:
    """Return the problems that the seed draws for `attention` or `matmul`."""
    rng = random.Random(seed)
    least, most = (32, 160) if small else (128, 8192)

    def log_uniform(low: float, high: float) -> int:
        return round(math.exp(rng.uniform(math.log(low), math.log(high))))

    def attention() -> str:
        heads = log_uniform(1, 3) if small else log_uniform(8, 128)
        batch = next(one for one in (4, 2, 1) if heads % one == 0)
        length, width, causal = log_uniform(least, most), rng.choice((64, 128)), rng.choice((0, 1))
        return f"B={batch} H={heads // batch} S={length} D={width} causal={causal}"

    def matmul() -> str:
        m, n, k = (8 * log_uniform(least / 8, most / 8) for _ in range(3))
        return f"M={m} N={n} K={k} layout={rng.choice(('nn', 'nt'))} dtype={rng.choice(('f16', 'bf16'))}"

    return [{"attention": attention, "matmul": matmul}[kernel]() for _ in range(3 if small else SHAPES)]


def call_peers(folder: str, problem: str) -> None:
    """Call each installed peer with a package of its own once, so that it stores its compiled kernels."""
    import torch

    kernel = load_kernel(Path(folder))
    p = kernel.problem(problem)
    tensors = kernel.workload.tensors(p, kernel.space.default())
    types = {"f16": torch.float16, "bf16": torch.bfloat16}
    inputs = {
        name: torch.randn(one.shape, device="cuda").to(types[one.dtype])
        for name, one in tensors.items()
        if one.role == "input"
    }
    for peer in kernel.workload.baselines:
        if peer.requires and peer.installed:
            began = time.monotonic()
            try:
                with torch.no_grad():
                    peer.run(p, inputs)
                torch.cuda.synchronize()
                said = "compiled"
            except Exception as error:  # the packages raise exceptions of any class
                said = f"{type(error).__name__}: {error}"
            print(f"{peer.name} at {problem}: {said} in {time.monotonic() - began:.0f} s", flush=True)


class Comparison:
    """The steps for one kernel and one list of problems, with their state on disk."""

    def __init__(self, folder: Path, given: argparse.Namespace) -> None:
        self._given, self._kernel = given, given.kernel
        self._deadline: float = time.monotonic() + given.seconds
        list_name = given.kernel + ("-named" if given.named else "-small" if given.small else "")
        problems = NAMED[given.kernel] if given.named else drawn(given.kernel, given.seed, small=given.small)
        limit = {"trials": 3} if given.small else {"budget": given.each}
        self._folder, self._results = folder / list_name, folder / f"{list_name}.json"
        self._planned = [
            PlannedStudy(study_from_table(f"{list_name}-{at:02d}", self._table(one) | limit), one)
            for at, one in enumerate(problems)
        ]
        self._peers: list[str] = []
        self._found: dict[str, Any] = json.loads(self._results.read_text()) if self._results.exists() else {}

    def _table(self, problem: str) -> dict[str, Any]:
        return {"kernel": self._kernel, "device": self._given.device, "problems": [problem]}

    def run(self) -> bool:
        """Do the steps that are left; return whether all are done."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._found |= {"seed": self._given.seed, "each": self._given.each}
        if not self._search():
            return False
        self._use_peers()
        rows = self._found.setdefault("rows", {})
        with keeping_servers():
            for planned in self._planned:
                if planned.problem in rows:
                    continue
                if self._left() <= 0:
                    return self._stop("measurements")
                rows[planned.problem] = self._row(planned)
                self._store()
                print(_line(planned.problem, rows[planned.problem]), flush=True)
        return self._summarise([rows[one.problem] for one in self._planned])

    def _left(self) -> float:
        return self._deadline - time.monotonic()

    def _store(self) -> None:
        self._results.write_text(json.dumps(self._found, indent=1))

    def _stop(self, step: str) -> bool:
        print(f"not done: {step}; repeat the command")
        self._store()
        return False

    def _search(self) -> bool:
        with keeping_servers():
            for planned in self._planned:
                state = state_of(planned, self._folder)
                if state.searched:
                    continue
                if self._left() <= 0:
                    return self._stop("searches")
                session = search_study(
                    planned.study, SessionRequest(warm_start="none", verify=False, trust=True),
                    db=planned.database(self._folder), on_progress=None, factories=FACTORIES,
                    part=SessionPart(elapsed_s=state.elapsed_s + self._left()),
                )  # fmt: skip
                best = session.best and session.best.evaluation.time_us
                print(f"{planned.problem}: {best or math.nan:.2f} us, {session.end}", flush=True)
                if session.interrupted:
                    return self._stop("searches")
        return True

    def _use_peers(self) -> None:
        """Let later workers import the peers, which compile each class of shapes once, at the same time."""
        peers = self._given.peers
        if peers is None or self._given.device.startswith("sim:"):
            return
        before = set(sys.path)
        site.addsitedir(str(peers))  # also reads its .pth files
        added = [one for one in sys.path if one not in before]
        os.environ["PYTHONPATH"] = os.pathsep.join([*added, os.environ.get("PYTHONPATH", "")])
        for key, value in CACHES.items():
            os.environ[key] = str(self._folder / value) if key.endswith("DIR") else value
        if "compiled" not in self._found:
            classes = {re.split("D=|layout=", one.problem)[-1]: one.problem for one in self._planned}
            words = [sys.executable, "-c", CALL, str(ROOT / "tests/scripts"), str(find_kernel_folder(self._kernel))]
            calls = [
                subprocess.Popen([*words, one], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                for one in classes.values()
            ]
            self._found["compiled"] = [line for one in calls for line in one.communicate()[0].splitlines()[-4:]]
            print("\n".join(self._found["compiled"]), flush=True)
        os.environ["QUACK_CACHE_AUTOTUNING"] = "1"
        versions = {one.metadata["Name"]: one.version for one in metadata.distributions()}
        self._found["versions"] = {name: versions[name] for name in PEER_PACKAGES if name in versions}

    def _row(self, planned: PlannedStudy) -> dict[str, Any]:
        """Measure the champion of a search with the peers; a peer that fails in the rounds is left out."""
        left_out: dict[str, str] = {}
        while True:
            try:
                with open_readonly(planned.database(self._folder)) as reader:
                    if reader.best(reader.study(planned.name)) is None:
                        return {"error": "the search found no correct candidate"}
                    with trial_under_test(reader, planned.name, None, elites=FINALISTS, trust=True) as subject:
                        return self._compared(subject, left_out)
            except DeviceError as error:
                named = [one for one in self._peers if one in str(error) and one not in left_out]
                if not named:
                    return {"error": str(error)}
                left_out[named[0]] = str(error)

    def _compared(self, subject: TrialUnderTest, left_out: dict[str, str]) -> dict[str, Any]:
        simulated = self._given.device.startswith("sim:")
        device, task = device_for(subject.record, None if simulated else self._given.device), subject.task(strict=True)
        finalists = [one.config for one in subject.elites]
        with running_device(device, task) as report:
            right = [one for one in zip(finalists, evaluate(device, finalists), strict=True) if one[1].passed_gate]
            if not right:
                return {"error": "no finalist passed the strict gate"}
            times = {one.name: one.timings[0].median_us for one in report.baselines if one.timings}
            left_out = {one.name: one.error for one in report.baselines if one.error} | left_out
            row = {"us": right[0][1].time_us, "genes": dict(right[0][0]), "at_start": times, "left_out": left_out}
            if not isinstance(device, MeasuresRounds):
                return row
            able = {name: us for name, us in times.items() if name not in left_out}
            self._peers = near = [name for name, us in able.items() if us <= NEAR * min(able.values())]
            measure = device.rounds(task, [*(config for config, _ in right), *near])
            finals = effects(measure, len(right), rounds=3)
            best = min(range(len(right)), key=lambda at: finals[at].time_us)
            order = [best, *range(len(right), len(right) + len(near))]
            own, *others = effects(lambda alive, samples: measure([order[at] for at in alive], samples), len(order))
            peers = {
                name: {"us": one.time_us, "ratio": one.ratio, "ratio_ci95": list(one.ratio_ci95)}
                for name, one in zip(near, others, strict=True)
            }
            return row | {"us": own.time_us, "genes": dict(right[best][0]), "peers": peers}

    def _summarise(self, rows: Sequence[dict[str, Any]]) -> bool:
        ratios = [one["ratio"] for one in map(fastest_peer, rows) if one is not None]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None
        self._found["summary"] = {"geometric_mean": mean, "least": min(ratios, default=None), "shapes": len(ratios)}
        self._store()
        for planned in self._planned:
            print(_line(planned.problem, self._found["rows"][planned.problem]))
        print(f"done: {json.dumps(self._found['summary'])}")
        return True


def fastest_peer(row: dict[str, Any]) -> dict[str, Any] | None:
    """Return the fastest peer of a row with its name, or None if no peer was measured."""
    peers = [{"name": name, **one} for name, one in row.get("peers", {}).items()]
    return min(peers, key=lambda one: float(one["us"]), default=None)


def _line(problem: str, row: dict[str, Any]) -> str:
    peer = fastest_peer(row)
    if "error" in row:
        return f"{problem:48} {row['error']}"
    if peer is None:
        return f"{problem:48} ours {row['us']:9.2f} us, no peer"
    low, high = peer["ratio_ci95"]
    left_out = "".join(f"; not {name}: {why[:60]}" for name, why in row["left_out"].items())
    return (
        f"{problem:48} {peer['name']:16} {peer['us']:9.2f} us, ours {row['us']:9.2f} us, "
        f"ratio {peer['ratio']:.3f} ({low:.3f} to {high:.3f}){left_out}"
    )


def main() -> int:
    """Continue with the steps; return 0 if all are done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("kernel", choices=[*NAMED])
    parser.add_argument("--seconds", type=float, default=450.0)
    parser.add_argument("--each", default="60s", help="budget of each search; default: 60s")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--peers", type=Path, help="folder of packages (pip install --target) to compare with")
    parser.add_argument("--named", action="store_true", help="named shapes instead of drawn ones")
    parser.add_argument("--seed", type=int, default=56, help="of the drawn shapes; default: 56")
    parser.add_argument("--small", action="store_true", help="few small shapes, for a simulated chip")
    given = parser.parse_args()
    return int(not Comparison(given.folder.resolve(), given).run())


if __name__ == "__main__":
    sys.exit(main())
