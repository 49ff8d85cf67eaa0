"""`python tests/scripts/serve_cost.py`: does a report that is served while a search runs slow the search?

Pairs of the same search, one alone and one whose page is served by `evokern report --serve` and asked for news as a
page does, in alternating order. The server is started when the search has its first trials, and its processor time
counts from when it says its address until the search ends. Prints for each pair both durations and the server's share
of a core, then the mean ratio with its standard error and the median share. On an idle machine; 20 minutes.

    python tests/scripts/serve_cost.py [--pairs 10] [--study attention-s128] [--trials 100]

Exit code 1 where the search is over 3 % slower, or the median share above 2 %.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from evokern.report.live import PAGE_POLL_S

SLOWER, SHARE = 1.03, 0.02
EVOKERN = (sys.executable, "-m", "evokern")


def spent_s(pid: int) -> float:
    """Return the processor time of a process, seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def watched(db: Path, search: subprocess.Popen[bytes]) -> float:
    """Serve a study and ask for its news until its search ends; returns the server's share of a core."""
    with subprocess.Popen([*EVOKERN, "report", "--serve", "--json", "--db", str(db)], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        said = b""
        while not said.rstrip().endswith(b"}"):
            if not (line := server.stdout.readline()):
                raise SystemExit("report --serve ended before it said its address")
            said += line
        address = json.loads(said)["address"]
        began, before_s = time.monotonic(), spent_s(server.pid)
        urllib.request.urlopen(address).read()
        known: dict[str, Any] = {"since": 0, "texts": [], "version": 0}
        texts = 0
        while search.poll() is None:
            with urllib.request.urlopen(f"{address}news?since={known['since']}&texts={texts}") as answer:
                news = json.load(answer)
            texts += len(news["texts"])
            if news["version"] != known["version"]:
                urllib.request.urlopen(f"{address}parts").read()
            known = news
            with suppress(subprocess.TimeoutExpired):
                search.wait(PAGE_POLL_S)
        share = (spent_s(server.pid) - before_s) / (time.monotonic() - began)
        server.terminate()
    return share


def searched(given: argparse.Namespace, folder: Path, *, serve: bool) -> tuple[float, float]:
    """Search once; returns the seconds from the first trial to the last, and the server's share of a core."""
    db = folder / "runs.db"
    for file in folder.glob("runs.db*"):
        file.unlink()
    line = [*EVOKERN, "search", given.study, "--device", given.device, "--trials", str(given.trials), "--seed", "1"]
    line += ["--budget", "1h"]
    line += ["--warm-start", "none", "--no-verify", "--json", "--db", str(db), "--log", str(folder / "log.jsonl")]
    (folder / "log.jsonl").unlink(missing_ok=True)
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as search:
        while _trials(folder) < 2 and search.poll() is None:
            time.sleep(0.1)
        share = watched(db, search) if serve else 0.0
        if search.wait():
            raise SystemExit(f"{' '.join(line)} ended with {search.returncode}")
    times = [event["elapsed_s"] for event in _events(folder) if event["event"] == "trial"]
    return times[-1] - times[0], share


def _events(folder: Path) -> list[dict[str, Any]]:
    log = folder / "log.jsonl"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def _trials(folder: Path) -> int:
    log = folder / "log.jsonl"
    return log.read_text().count('"event": "trial"') if log.exists() else 0


def main() -> int:
    """Measure; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--study", default="attention-s128")
    parser.add_argument("--device", default="sim:l4")
    parser.add_argument("--trials", type=int, default=100)
    given = parser.parse_args()
    ratios, shares = [], []
    with tempfile.TemporaryDirectory() as scratch:
        for pair in range(given.pairs):
            found = {serve: searched(given, Path(scratch), serve=serve) for serve in (bool(pair % 2), not pair % 2)}
            ratios.append(found[True][0] / found[False][0])
            shares.append(found[True][1])
            print(
                f"pair {pair}: alone {found[False][0]:.1f} s, served {found[True][0]:.1f} s, ratio {ratios[-1]:.3f}, "
                f"server {100 * shares[-1]:.2f} % of a core",
                flush=True,
            )
    error = stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else 0.0
    mean, share = fmean(ratios), median(shares)
    print(f"served / alone {mean:.3f} ± {error:.3f}, median {median(ratios):.3f}; median share {100 * share:.2f} %")
    return int(mean > SLOWER or share > SHARE)


if __name__ == "__main__":
    sys.exit(main())
