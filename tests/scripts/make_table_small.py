"""Writes tests/data/table_small.json.gz: a made-up recorded space with the structure of a real kernel's.

Code choices that interact with numbers, a conditional gene, infeasible regions with graded amounts, crashes in a
pattern (about one runnable configuration in ten), a few candidates that hang, are wrong or do not compile, and equal
machine code where a gene does not matter. No randomness but a hash of the configuration, so that it is the same
everywhere. Run it from the repository: `python tests/scripts/make_table_small.py`.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
from typing import Any

import helpers_path  # noqa: F401 (finds the helpers)
from paths import DATA

from evokern.declaration.genes import Config, Gene, Mutation, Parameter
from evokern.declaration.space import Space
from evokern.device.recorded.table import FORMAT

GENES: tuple[Gene, ...] = (
    Mutation("LOADS", ("scalar", "vector16", "async")),
    Mutation("LAYOUT", ("plain", "padded", "swizzled")),
    Mutation("SPLIT_KEYS", (0, 1)),
    Parameter("TILE_M", (16, 32, 64, 128), default=32),
    Parameter("TILE_N", (16, 32, 64, 128), default=32),
    Parameter("WARPS", (2, 4, 8), default=4),
    Parameter("STAGES", (1, 2, 3), default=1, when={"LOADS": ("async",)}),
    Parameter("UNROLL", (1, 2, 4), default=1),
)
SHARED_LIMIT = 101_376
REASONS = {
    "shared_memory_per_block": "a block of NVIDIA L4 can have 101376 bytes of shared memory",
    "rows_per_warp": "each warp owns at least eight rows of the tile",
}


def noise(config: Config) -> float:
    """Return a number in [0, 1) that depends on the configuration alone."""
    return int.from_bytes(hashlib.sha256(config.key.encode()).digest()[:4], "little") / 2**32


def shared_bytes(c: Config) -> int:
    row = 128 * 2 + (16 if c["LAYOUT"] == "padded" else 0)
    return row * (c.TILE_M + 2 * c.TILE_N * c.STAGES) + (c.TILE_M * 520 if c.SPLIT_KEYS else 0)


def time_us(c: Config) -> float:
    """Return a made-up time: sums of logs with interactions, and 2 % that no gene explains."""
    cost = {"scalar": 0.9, "vector16": 0.25, "async": 0.0}[str(c["LOADS"])]
    conflicts = {"plain": 0.8, "padded": 0.2, "swizzled": 0.0}[str(c["LAYOUT"])]
    cost += conflicts * (1.0 if c["LOADS"] != "scalar" else 0.3)
    cost += 0.12 * abs(math.log2(c.TILE_M / 64)) ** 1.5
    cost += 0.10 * abs(math.log2(c.TILE_N / (64 if c["LOADS"] == "async" else 32)))
    cost += 0.15 * abs(math.log2(c.WARPS / (8 if c.SPLIT_KEYS else 4)))
    cost -= 0.18 if c.SPLIT_KEYS and c.TILE_M <= 64 else -0.05 * c.SPLIT_KEYS
    cost += {1: 0.30, 2: 0.0, 3: 0.04}[c.STAGES] if c["LOADS"] == "async" else 0.0
    cost += {1: 0.06, 2: 0.0, 4: 0.03}[c.UNROLL] * (1 if c.TILE_N > 16 else 0)
    return round(5.4 * math.exp(cost + 0.02 * noise(c)), 4)


def answer(c: Config) -> list[Any]:
    """Return outcome and evidence of one configuration."""
    if c.TILE_M < 8 * c.WARPS:
        return ["infeasible", "rows_per_warp", 8 * c.WARPS, c.TILE_M]
    if shared_bytes(c) > SHARED_LIMIT:
        return ["infeasible", "shared_memory_per_block", shared_bytes(c), SHARED_LIMIT]
    if c["LOADS"] == "vector16" and c["LAYOUT"] == "padded" and c.TILE_N >= 32:
        return ["crashed", "CUDA_ERROR_MISALIGNED_ADDRESS"]
    if c["LOADS"] == "async" and c.STAGES == 3 and c.TILE_N == 16:
        return ["wrong", "output"]
    if c.UNROLL == 4 and c.TILE_M == 128 and c.WARPS == 2:
        return ["over_resources", "registers_per_thread", 312, 255]
    if noise(c) < 0.004:
        return ["hung", 3.0]
    if 0.004 <= noise(c) < 0.010:
        return ["compile_error", "kernel.cu(42): error: expression must have a constant value"]
    # Without columns to unroll over, the compiler makes the same code of every unroll factor.
    same = c.replace(UNROLL=1) if c.TILE_N == 16 else c
    return ["measured", time_us(same), hashlib.sha256(same.key.encode()).hexdigest()[:16]]


def table() -> dict[str, Any]:
    rows = []
    for config in Space(GENES).grid():
        rows.append([gene.values.index(config[gene.name]) for gene in GENES] + answer(config))
    genes = [
        {"name": g.name, "values": g.values, "default": g.default, "layer": g.layer, "when": dict(g.when)}
        for g in GENES
    ]
    reasons = REASONS | {"registers_per_thread": "a thread can have 255 registers"}
    head = {"format": FORMAT, "name": "table_small", "chip": "l4", "baseline_us": 8.1}
    return head | {"genes": genes, "constraints": reasons, "rows": rows}


def main() -> None:
    path = DATA / "table_small.json.gz"
    text = json.dumps(table(), separators=(",", ":")).encode()
    path.write_bytes(gzip.compress(text, mtime=0))
    print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
