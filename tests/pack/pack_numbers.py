"""Measures packages on one GPU: how fast, how general and how near to a search of its own at held-out shapes.

    python tests/pack/pack_numbers.py FOLDER [attention-f16 attention-bf16 matmul rmsnorm] --seconds 450

Each call works for about `--seconds`, at most a minute longer, and continues in the next call; repeat the command until
it prints `done` for each package. The first steps are a sweep with a budget (`--budget`) and `evokern pack`. A search
of 20 s for each of 12 held-out shapes follows (attention only). Interleaved rounds compare the package's variant with
the search's champion at each of them. The last step is the self-test with times. The results are in FOLDER/NAME.json.
`--unverified` ends before the self-test, with a package in FOLDER/unverified: copy FOLDER to a machine without a GPU,
where the command verifies the variants. `--only own` runs the searches at held-out shapes, for example at the same time
on another GPU. `--device sim:l4 --small` shows on a machine without a GPU that each step works.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evokern.analysis.candidates import device_for, evaluate, running_device, trial_under_test
from evokern.device.contract import MeasuresRounds
from evokern.measurement.playoff import effects
from evokern.store import open_readonly
from evokern.sweep import read_sweep

# words: files
ATTENTION = """kernel = "attention"
dtype = "DTYPE"
trials = 48
[genes]
LENGTH = ["steps", "runtime"]
[shapes]
count = 180
held_out = 60
seed = 54
[shapes.fields]
B = { least = 1, most = 16, scale = "log" }
H = [8, 16]
S = { least = 64, most = 2048, scale = "log" }
D = 64
causal = [0, 1]
"""
WEIGHTS = ("1024 4096", "4096 4096", "6144 4096", "14336 4096", "28672 4096", "4096 14336")
"""Output and input features of the layers of an 8-billion model."""
MATMUL = f"""kernel = "matmul"
trials = 48
problems = {json.dumps([f"N={one.split()[0]} K={one.split()[1]} layout=nt" for one in WEIGHTS])}
[genes]
SHAPE = ["runtime"]
EXTENT = ["padded"]
[shapes]
count = 72
held_out = 24
seed = 54
[shapes.fields]
M = {{ least = 1, most = 4096, scale = "log" }}
"""
# words: files
RMSNORM = """kernel = "rmsnorm"
dtype = "bf16"
trials = 48
[shapes]
count = 60
held_out = 20
seed = 54
[shapes.fields]
ROWS = { least = 1, most = 16384, scale = "log" }
COLS = [2048, 4096, 5120, 8192]
residual = "add"
"""
SWEEPS = {
    "attention-f16": ATTENTION.replace("DTYPE", "f16"), "attention-bf16": ATTENTION.replace("DTYPE", "bf16"),
    "matmul": MATMUL, "rmsnorm": RMSNORM,
}  # fmt: skip
SMALL = {
    "trials = 48": "trials = 3", "count = 180": "count = 4", "count = 72": "count = 4", "count = 60": "count = 4",
    "held_out = 60": "held_out = 1", "held_out = 24": "held_out = 1", "held_out = 20": "held_out = 1",
    "most = 16,": "most = 2,", "most = 2048": "most = 128", "most = 4096": "most = 16", "most = 16384": "most = 64",
    "[8, 16]": "2", "4096, 5120, 8192": "1024", "4096": "256", "14336": "512", "28672": "512", "6144": "384",
}  # fmt: skip
"""Replacements for a run on a simulated chip."""
OWN, OWN_SHAPES = "20s", 12


class Package:
    """The steps of one package, with their state on disk."""

    def __init__(self, folder: Path, name: str, given: argparse.Namespace, deadline: float) -> None:
        self._folder, self._name, self._deadline = folder, name, deadline
        self._device, self._small, self._budget = given.device, given.small, given.budget
        self._later, self._only = given.unverified, given.only
        self._results = folder / f"{name}.json"
        self._found: dict[str, Any] = json.loads(self._results.read_text()) if self._results.exists() else {}
        self._package = f"packed_{name.replace('-', '_')}"

    def run(self) -> bool:
        """Do the steps that are left; return whether all are done."""
        text = f'device = "{self._device}"\n{SWEEPS[self._name]}'
        for old, new in SMALL.items() if self._small else ():
            text = text.replace(old, new)
        (self._folder / f"{self._name}.toml").write_text(text)
        steps = ["sweep", "unverified", "own"] if self._later else ["sweep", "pack", "own", "compared", "selftest"]
        if self._only:
            return getattr(self, f"_{self._only}")() is not None
        if not self._name.startswith("attention"):
            steps = [one for one in steps if one not in ("own", "compared")]
        for step in steps:
            if step not in self._found:
                if self._left() <= 0 or (result := getattr(self, f"_{step}")()) is None:
                    print(f"{self._name}: not done: {step}; repeat the command")
                    return False
                self._found[step] = result
                self._results.write_text(json.dumps(self._found, indent=1))
        print(f"{self._name}: done: {'unverified' if self._later else json.dumps(self._summary())}")
        return True

    def _left(self) -> float:
        return self._deadline - time.monotonic()

    def _command(self, *words: str, module: str = "evokern") -> tuple[int | None, str]:
        """Run a command until the deadline; return its exit code, None if it was interrupted, and its output."""
        done = subprocess.Popen(
            [sys.executable, "-m", module, *words], cwd=self._folder, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([self._package, *sys.path])},
        )  # fmt: skip
        try:
            return done.wait(max(1.0, self._left())), (done.communicate()[0])
        except subprocess.TimeoutExpired:
            done.send_signal(signal.SIGINT)
            return None, done.communicate()[0]

    def _sweep(self) -> Any:
        code, _ = self._command(
            "sweep", "run", f"{self._name}.toml", "--budget", self._budget, "--no-verify", "--trust"
        )
        return {"code": code} if code is not None else None

    def _pack(self) -> Any:
        return self._packed(self._package)

    def _unverified(self) -> Any:
        return self._packed(f"unverified/{self._package}", "--force")

    def _packed(self, folder: str, *more: str) -> Any:
        budget = f"{max(1, round(self._left() - 30))}s"
        words = ["-o", folder, "--budget", budget, "--trust", "--json", "--quiet", *more]
        code, text = self._command("pack", f"{self._name}.toml", *words)
        if code not in (0, 1, None):
            raise SystemExit(f"{self._name}: evokern pack ended with exit code {code}")
        return json.loads(text) if code == 0 else None

    def _selftest(self) -> Any:
        code, text = self._command("--times", module=f"{self._package}.selftest")
        return None if code is None else {"code": code, "lines": text.splitlines()}

    def _held_out(self) -> list[dict[str, Any]]:
        """Return the rows of the package about the held-out shapes that have a search of their own."""
        facts = json.loads((self._folder / self._package / self._package / "provenance.json").read_text())
        self._variants = facts["variants"]
        return _spread([one for one in facts["shapes"] if one["held_out"]])

    def _own(self) -> Any:
        held = _spread(read_sweep(self._folder / f"{self._name}.toml").held_out)
        lines = [one for one in SWEEPS[self._name].splitlines() if one.startswith(("kernel", "dtype"))]
        limit = "trials = 2" if self._small else f'budget = "{OWN}"'
        (self._folder / f"{self._name}-own.toml").write_text(
            "\n".join(
                [*lines, f'device = "{self._device}"', limit, f"problems = {json.dumps([s.problem for s in held])}"]
            )
        )
        code, _ = self._command(
            "sweep", "run", f"{self._name}-own.toml", "--warm-start", "none", "--no-verify", "--trust"
        )
        return {"code": code} if code in (0, 1) else None

    def _compared(self) -> Any:
        """Measure the package's variant and the champion of the own search in interleaved rounds."""
        rows, known = self._held_out(), self._found.setdefault("losses", {})
        sweep = read_sweep(self._folder / f"{self._name}-own.toml")
        for row, planned in zip(rows, sweep.studies, strict=True):
            if row["problem"] in known or row["variant"] is None:
                continue
            if self._left() <= 0:
                self._results.write_text(json.dumps(self._found, indent=1))
                return None
            known[row["problem"]] = self._loss(row, planned.database(self._folder / f"{self._name}-own"), planned.name)
        losses = [one["ratio"] for one in known.values() if one is not None]
        mean = math.exp(sum(map(math.log, losses)) / len(losses)) if losses else None
        return {"geometric_mean": mean, "worst": max(losses, default=None), "shapes": len(losses)}

    def _loss(self, row: dict[str, Any], db: Path, name: str) -> dict[str, Any] | None:
        with open_readonly(db) as reader:
            if reader.best(reader.study(name)) is None:
                return None
            with trial_under_test(reader, name, None, elites=0, trust=True) as subject:
                space = subject.kernel.space
                genes = self._variants[row["variant"]]["genes"]
                configs = [space.canonical(subject.trial.config), space.canonical(genes)]
                device, task = device_for(subject.record, None), subject.task(strict=True)
                with running_device(device, task):
                    own, packed = evaluate(device, configs)
                    if not (own.passed_gate and packed.passed_gate):
                        raise SystemExit(f"{name}: {own.outcome}, {packed.outcome}")
                    if not isinstance(device, MeasuresRounds):
                        return {"ratio": (packed.time_us or 0.0) / (own.time_us or 1.0)}
                    found = effects(device.rounds(task, configs), 2)[1]
        return {"ratio": found.ratio, "ratio_ci95": list(found.ratio_ci95)}

    def _summary(self) -> dict[str, Any]:
        packed, held = self._found["pack"], self._found["pack"]["held_out"]
        return {
            "variants": len(packed["variants"]), "held_out": held, "gains": packed["gains"],
            "loss_against_own_search": self._found.get("compared"), "selftest": self._found["selftest"]["code"],
        }  # fmt: skip


def _spread(held: Sequence[Any]) -> list[Any]:
    """Return a part of the held-out shapes."""
    return list(held[:: max(1, len(held) // OWN_SHAPES)][:OWN_SHAPES])


def main() -> int:
    """Continue with each package; return 0 if all are done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help=", ".join(SWEEPS))
    parser.add_argument("--seconds", type=float, default=450.0)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--budget", default="10m", help="of the sweep; default: 10m")
    parser.add_argument("--small", action="store_true", help="few small shapes, for a simulated chip")
    parser.add_argument("--only", choices=["own"], help="run this step only, and store no result")
    parser.add_argument("--unverified", action="store_true", help="leave the verification to a later command")
    given = parser.parse_args()
    folder, deadline = given.folder.resolve(), time.monotonic() + given.seconds
    folder.mkdir(parents=True, exist_ok=True)
    names = given.names or [*SWEEPS]
    if unknown := [name for name in names if name not in SWEEPS]:
        parser.error(f"{unknown[0]} is unknown; use {', '.join(SWEEPS)}")
    return int(not all(Package(folder, name, given, deadline).run() for name in names))


if __name__ == "__main__":
    sys.exit(main())
