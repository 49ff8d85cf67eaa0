"""A made-up file of recorded results as Kernel Tuner keeps them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any


def kernel_tuner_cache() -> dict[str, Any]:
    """A made-up Kernel Tuner cache: 4 × 2 × 2 values, of which one is never feasible, two fail."""
    params = {"block_size_x": [32, 64, 128, 256], "use_padding": [False, True], "layout": ["row", "column"]}
    cache = {}
    for x in params["block_size_x"]:
        for padding in params["use_padding"]:
            for layout in params["layout"]:
                time: float | str = x / 64 + (0.1 if padding else 0.2) + (0.5 if layout == "row" else 0.0)
                if x == 256 and padding:
                    time = "RuntimeFailedConfig" if layout == "row" else "CompilationFailedConfig"
                if x == 256 and not padding:
                    time = "InvalidConfig"
                record = {"block_size_x": x, "use_padding": padding, "layout": layout, "time": time}
                record |= {"compile_time": 500.0, "benchmark_time": 100.0, "verification_time": 0, "times": [time]}
                cache[f"{x},{padding},{layout}"] = record
    return {
        "device_name": "NVIDIA A100-PCIE-40GB",
        "kernel_name": "toy",
        "problem_size": 1024,
        "tune_params_keys": list(params),
        "tune_params": params,
        "cache": cache,
    }


def write_json(path: Path, content: object) -> Path:
    """Write JSON, compressed where the name ends so; returns the path."""
    text = json.dumps(content).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path
