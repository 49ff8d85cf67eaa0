"""Run the CUDA files of `sources.toml` and print what came of each: `python tests/foreign/run.py --folder DIR`.

It is started in the repository's root. DIR holds the texts as OWNER/NAME/PATH; what is missing is fetched into it. Exit
code 1 when something came out other than expected, 2 when a text cannot be had.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from foreign_files import Result, Unavailable, provide


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="folder with the texts")
    parser.add_argument("--sources", type=Path, default=Path("tests/foreign/sources.toml"), help="what to run")
    parser.add_argument("--only", default="", help="part of the names of the runs to do")
    parser.add_argument("--problems", action="store_true", help="print only what came out otherwise than expected")
    options = parser.parse_args()
    try:
        runs = provide(options.sources, options.folder)
    except Unavailable as error:
        print(error, file=sys.stderr)
        return 2
    results = []
    for run in runs:
        if options.only in run.name:
            result = run.result(options.folder)
            results.append(result)
            if not (options.problems and result.as_expected):
                _print(result)
    for line in summary(results):
        print(line)
    return 0 if all(result.as_expected for result in results) else 1


def _print(result: Result) -> None:
    mark = "      " if result.as_expected else "OTHER "
    detail = f"  {result.detail[:300]}" if result.detail else ""
    print(f"{mark}{result.outcome:8} {result.run.name}{detail}", flush=True)


def summary(results: list[Result]) -> list[str]:
    """Return what the runs come to."""
    files = {(result.run.text.repository, result.run.text.path): result.run.later for result in results}
    outcomes = Counter(result.outcome for result in results)
    good = sum(result.as_expected for result in results)
    listed = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    return [
        f"{len(results)} kernels of {len(files)} files ({sum(files.values())} chosen later) "
        f"from {len({repository for repository, _ in files})} repositories: {listed}",
        f"as expected: {good} of {len(results)} ({good / max(len(results), 1):.1%}); "
        f"findings on what is right: {sum(result.false_finding for result in results)}",
    ]


if __name__ == "__main__":
    raise SystemExit(main())
