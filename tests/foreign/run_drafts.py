"""Draft, fill in, check, sanitize and search the kernels of `drafts.toml`.

    python tests/foreign/run_drafts.py --folder DIR

It is started in the repository's root. DIR holds the texts as OWNER/NAME/PATH; what is missing is fetched into it. Each
draft that passes is searched once more with one wrong index in its kernel. Exit code 1 when fewer than 25 pass or a
wrong one is not refuted, 2 when a text cannot be had.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from drafted_kernels import judged, make, read_drafts, with_wrong_index
from foreign_files import Unavailable

ENOUGH = 25
"""Drafts that must pass."""


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="folder with the texts")
    parser.add_argument("--work", type=Path, help="folder for drafts and databases; a temporary one if left out")
    parser.add_argument("--only", default="", help="part of the names of the drafts to do")
    parser.add_argument("--no-wrong", action="store_true", help="leave out the searches with a wrong index")
    options = parser.parse_args()
    drafts, headers = read_drafts()
    try:
        for file in headers:
            file.provide(options.folder)
        for draft in drafts:
            draft.file.provide(options.folder)
    except Unavailable as error:
        print(error, file=sys.stderr)
        return 2
    work = options.work or Path(tempfile.mkdtemp(prefix="evokern-drafts-"))
    work.mkdir(parents=True, exist_ok=True)
    passed = refuted = wanted = 0
    for draft in (draft for draft in drafts if options.only in draft.name):
        came = make(draft, options.folder.resolve(), work) or judged(draft, work)
        passed += came.passed
        line = f"{draft.name:24} {'passes' if came.passed else came.step + ' fails':16} {came.detail[:150]}"
        line += f" | no draft can pass: {draft.fails}" if draft.fails else ""
        if came.passed and not options.no_wrong:
            wrong = with_wrong_index(draft, work)
            wanted += 1
            refuted += wrong.refuted
            line += f" | wrong index {'refuted' if wrong.refuted else 'NOT REFUTED'}: {wrong.detail[:90]}"
        print(line, flush=True)
    print(f"{passed} of {len(drafts)} drafts pass; {refuted} of {wanted} wrong ones are refuted")
    return 0 if passed >= min(ENOUGH, len(drafts)) and refuted == wanted else 1


if __name__ == "__main__":
    sys.exit(main())
