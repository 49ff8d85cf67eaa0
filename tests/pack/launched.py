"""Call operators with the fake CUDA driver: `python launched.py FAKE TORCH_FAKE PACKAGE COUNT SM …`, JSON on stdout.

The packages were built for tensors on the CPU (`test_launch.py`).
"""

from __future__ import annotations

import ctypes
import importlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

cuda, stand_in = (ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL) for path in sys.argv[1:3])
cuda.fake_events.restype = ctypes.c_char_p
stand_in.fake_stream.argtypes = [ctypes.c_uint64]


def events() -> list[str]:
    """Return what the driver was asked since the last call."""
    found: bytes = cuda.fake_events()
    return found.decode().splitlines()


def outcome(call: Callable[[], Any]) -> dict[str, Any]:
    """Return addresses of the results or the error of a call, and what the driver was asked."""
    try:
        made = call()
    except RuntimeError as error:
        return {"error": str(error), "events": events()}
    made = made if isinstance(made, tuple) else (made,)
    return {"results": [one.data_ptr() for one in made], "events": events()}


def scenario(name: str, count: int, capability: int) -> dict[str, Any]:
    """Call one package in several situations."""
    import torch

    cuda.fake_capability(capability)
    package = importlib.import_module(name)
    test = importlib.import_module(f"{name}.selftest").SelfTest(package)
    inputs, arguments = test.inputs(test.shape(0))

    def call() -> Any:
        return test.function(*inputs, **arguments)

    cuda.fake_arguments(count)
    stand_in.fake_stream(7)
    found: dict[str, Any] = {"inputs": [one.data_ptr() for one in inputs]}
    for what in ("load", "launch"):
        cuda.fake_failure(what.encode())
        found[f"failed {what}"] = outcome(call)
    cuda.fake_failure(b"")
    found["again"] = outcome(call)
    stand_in.fake_stream(9)
    found["stream"] = outcome(call)
    cuda.fake_graph(5)
    found["graph"] = outcome(call)
    found["graph again"] = outcome(call)
    cuda.fake_graph(0)
    wide = torch.empty(inputs[0].numel() + 1, dtype=inputs[0].dtype)
    moved = wide[1:].view(inputs[0].shape).copy_(inputs[0])
    found["misaligned"] = outcome(lambda: test.function(moved, *inputs[1:], **arguments))
    found["shape"] = outcome(lambda: test.function(inputs[0][:, :1].contiguous(), *inputs[1:], **arguments))
    found["type"] = outcome(lambda: test.function(inputs[0].double(), *inputs[1:], **arguments))
    found["stats"] = package.stats()
    best = 1e9
    for _ in range(20):
        began = time.perf_counter()
        for _ in range(100):
            call()
        best = min(best, (time.perf_counter() - began) / 100)
        events()
    found["host_us"] = 1e6 * best
    return found


rows = zip(sys.argv[3::3], sys.argv[4::3], sys.argv[5::3], strict=True)
print(json.dumps({name: scenario(name, int(count), int(capability)) for name, count, capability in rows}))
