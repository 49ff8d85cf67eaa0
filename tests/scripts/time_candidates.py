"""Times hand-picked candidates (`tests/data/candidates.json`) on a GPU, beside the baselines, as a search does.

    python tests/scripts/time_candidates.py [--study NAME ...] [--problem TEXT] [--file FILE] [--device auto]

Prints for each study and problem a line for each baseline and each candidate, fastest first, with the ratio to the
fastest baseline that was right. `tests/kernels/test_hand_picked_candidates.py` holds that each of
them stays expressible and feasible.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import helpers_path  # noqa: F401 (finds the helpers)
from paths import DATA

from evokern.device.contract import Request, Task
from evokern.device.opening import open_device
from evokern.search.identity import problems_of
from evokern.study.discovery import find_study, kernel_of

FILE = DATA / "candidates.json"


def time_group(group: Mapping[str, Any], device_name: str) -> None:
    """Time one study's candidates and print the table."""
    study = find_study(group["study"])
    problem = group.get("problem", study.problems[0])
    study = replace(study, problems=(problem,), genes={})
    kernel = kernel_of(study)
    task = Task(kernel, problems_of(study, kernel), study)
    configs = [kernel.space.with_changes(kernel.space.default(), changes) for changes in group["candidates"]]
    device = open_device(device_name)
    rows: list[tuple[float, str]] = []
    failures: list[str] = []
    try:
        baselines = device.start(task).baselines
        for baseline in baselines:
            if baseline.error:
                failures.append(f"{baseline.name}: {baseline.error}")
            else:
                rows.append((baseline.timings[0].median_us, baseline.name))
        best = min((time for time, _ in rows), default=math.nan)
        for number, config in enumerate(configs):
            device.submit(Request(number, config))
        left = len(configs)
        while left:
            for answer in device.poll(1.0):
                left -= 1
                changes = json.dumps(group["candidates"][answer.number])
                evaluation = answer.evaluation
                if evaluation.time_us is None:
                    failures.append(f"{evaluation.outcome.value}: {evaluation.reason}  {changes}")
                else:
                    use = evaluation.resources[0]
                    what = f"{use.registers} registers, {use.spill_bytes} spilled  {changes}"
                    rows.append((evaluation.time_us, what))
    finally:
        device.close()
    print(f"== {group['study']} at {problem} on {device.identity}")
    for time, what in sorted(rows):
        print(f"{time:10.3f} us {best / time:6.3f}x  {what}")
    for failure in failures:
        print(f"{'-':>10}             {failure}")


def main() -> None:
    """Time the groups that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", nargs="*", help="only groups of these studies")
    parser.add_argument("--problem", help="only groups at this problem")
    parser.add_argument("--file", type=Path, default=FILE)
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    for group in json.loads(arguments.file.read_text(encoding="utf-8")):
        if arguments.study and group["study"] not in arguments.study:
            continue
        if arguments.problem and group.get("problem") != arguments.problem:
            continue
        time_group(group, arguments.device)


if __name__ == "__main__":
    main()
