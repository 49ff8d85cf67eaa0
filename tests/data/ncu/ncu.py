"""Stands in for Nsight Compute's command line: prints the table of a recording, or refuses, as the real one words it.

FAKE_NCU says how: `permission`, `busy`, `nothing`, `crash`, `refuse:METRIC` (an error, no table), `na:METRIC`. The
arguments of each call are appended to FAKE_NCU_LOG; the pickled job of the watched program is copied beside it.
"""

import csv
import json
import os
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
ERRORS = {
    "permission": (
        "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on "
        "the target device 0. For instructions on enabling permissions and to get more information see "
        "https://developer.nvidia.com/ERR_NVGPUCTRPERM"
    ),
    "busy": "==ERROR== Profiling failed because a driver resource was unavailable. Ensure that no other tool is "
    "concurrently collecting profiling data on all supported architectures.",
    "nothing": "==WARNING== No kernels were profiled.",
    "crash": "evokern: crashed, CUDA_ERROR_MISALIGNED_ADDRESS\n==ERROR== The application returned an error code (1).",
}


def main() -> int:
    given = sys.argv[1:]
    log = Path(os.environ["FAKE_NCU_LOG"])
    with log.open("a") as file:
        file.write(json.dumps(given) + "\n")
    how = os.environ.get("FAKE_NCU", "")
    if "--import" in given:
        names = json.loads(Path(given[given.index("--import") + 1]).read_text())
        return table(names, how)
    shutil.copy(given[-1], log.with_suffix(".pickle"))
    names = given[given.index("--metrics") + 1].split(",")
    print("==PROF== Connected to process 4242 (/usr/bin/python3.12)")
    if how in ERRORS:
        print(ERRORS[how])
        return 1
    if how.startswith("refuse:") and how[7:] in names:
        print(f"==ERROR== Failed to find metric {how[7:]}")
        print("==WARNING== No kernels were profiled.")
        return 1
    print('==PROF== Profiling "columns" - 0: 0%....50%....100% - 9 passes')
    print("==PROF== Disconnected from process 4242")
    if "--export" in given:
        Path(given[given.index("--export") + 1]).write_text(json.dumps(names))
        return 0
    return table(names, how)


def table(names: list[str], how: str) -> int:
    with (HERE / "columns.csv").open() as file:
        header, units, *launches = csv.reader(file)
    fixed = header.index("CC") + 1
    wanted = [*range(fixed), *(header.index(name) for name in sorted(names))]
    out = csv.writer(sys.stdout, quoting=csv.QUOTE_ALL, lineterminator="\n")
    for row in (header, units, *launches):
        cells = ["n/a" if row in launches and header[i] == how[3:] and how[:3] == "na:" else row[i] for i in wanted]
        out.writerow(cells)
    return 0


if __name__ == "__main__":
    sys.exit(main())
