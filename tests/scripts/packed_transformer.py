"""Does a transformer compute the same with packed operators, and how long does a step take?

    python tests/scripts/packed_transformer.py [--keep FOLDER] [--cpu] [--only STEP]

Packs attention, rmsnorm and linear layers with default candidates for this machine's GPU; nothing is searched. Each
step prints `ok`, or `FAILED` with the reason. The steps are:

- `logits`: 12 layers in bf16, next to float32
- `times`: a step of the model, next to torch eager and torch.compile
- `self-tests`, with the tables of times
- `host time`: a call of the operator, next to torch's SDPA
- `two streams`, and a CUDA `graph` that calls no cudaMalloc
- `two GPUs`, if there are two
- `memcheck`, if compute-sanitizer is on PATH

The exit code is the number of failed steps. `--cpu` tries the script without a GPU: all calls then run the baselines.

It needs torch 2.10 or later, CuPy and a C++ compiler.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (the usual name)

from evokern.hardware.profiles import CHIPS
from evokern.pack import write_package
from evokern.pack.baseline_code import baselines_of
from evokern.pack.from_study import describe
from evokern.pack.variant import variant_of
from evokern.study.discovery import find_kernel

LAYERS, HEADS, DEPTH, VOCABULARY = 12, 8, 64, 1024
WIDTH = HEADS * DEPTH
SHAPES = ((1, 64), (4, 256), (8, 512), (2, 1024))
"""Batch and length of the sequences."""
MATRICES = ((WIDTH, WIDTH), (4 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH))
PROBLEMS = {
    "packed_sdpa": ("attention", [f"B={b} H={HEADS} S={s} D={DEPTH} causal=1 dtype=bf16" for b, s in SHAPES]),
    "packed_norm": ("rmsnorm", [f"ROWS=64 COLS={WIDTH} dtype=bf16"]),
    "packed_linear": ("matmul", [f"M=64 N={n} K={k} dtype=bf16 layout=nt" for n, k in MATRICES]),
}


class Block(torch.nn.Module):
    """A layer of the transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.RMSNorm(WIDTH, eps=1e-5) for _ in range(2))
        sizes = [(WIDTH, WIDTH)] * 4 + [(WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)]
        self.q, self.k, self.v, self.o, self.up, self.down = (torch.nn.Linear(*size, bias=False) for size in sizes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the next hidden states."""
        y = self.norms[0](x)
        q, k, v = (
            part(y).unflatten(-1, (HEADS, DEPTH)).transpose(1, 2).contiguous() for part in (self.q, self.k, self.v)
        )
        made = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(made.transpose(1, 2).flatten(2))
        return x + self.down(F.silu(self.up(self.norms[1](x))))


def transformer(dtype: torch.dtype, device: str) -> torch.nn.Module:
    """Return the model with the same random weights for each data type."""
    torch.manual_seed(1)
    layers = [torch.nn.Embedding(VOCABULARY, WIDTH), *(Block() for _ in range(LAYERS))]
    model = torch.nn.Sequential(
        *layers, torch.nn.RMSNorm(WIDTH, eps=1e-5), torch.nn.Linear(WIDTH, VOCABULARY, bias=False)
    )
    return model.bfloat16().to(device, dtype).eval()


def packed(model: torch.nn.Module, packages: dict[str, Any]) -> torch.nn.Module:
    """Let the operators compute the norms and the linear layers of a model."""
    norms = packages["packed_norm"].replace_rmsnorm(model)
    layers = packages["packed_linear"].replace_linear(model)
    if (norms, layers) != (2 * LAYERS + 1, 6 * LAYERS + 1):
        raise AssertionError(f"{norms} norms and {layers} linear layers were replaced")
    return model


class Steps:
    """The steps, on one device."""

    def __init__(self, folder: Path, device: str) -> None:
        self.folder, self.device, self.gpu = folder, device, device != "cpu"
        self.packages: dict[str, Any] = {}
        self.shapes = SHAPES if self.gpu else SHAPES[:1]

    def all(self) -> list[tuple[str, Callable[[], Any]]]:
        """Return the steps in their order; the first must succeed."""
        always = [("packages", self.build), ("logits", self.logits), ("times", self.times)]
        on_gpu = [
            ("self-tests", self.selftests), ("host time", self.host), ("two streams", self.streams),
            ("graph", self.graph), ("two GPUs", self.two_gpus), ("memcheck", self.memcheck),
        ]  # fmt: skip
        return [*always, *(on_gpu if self.gpu else [])]

    def build(self) -> str:
        """Write and import the packages."""
        if self.gpu:
            from evokern.device.gpu.profile import live_gpu

            chip = live_gpu(0).profile
        else:
            chip = CHIPS["l4"]
        for name, (kernel_name, problems) in PROBLEMS.items():
            kernel = find_kernel(kernel_name)
            config = kernel.space.canonical(kernel.space.default())
            made = [variant_of(kernel, config, kernel.problem(p), chip, f"default at {p}") for p in problems]
            written = write_package(self.folder / name, describe(kernel, name, tuple(made)), baselines_of(kernel), {})
            print(f"        {name}: {len(made)} variants, {written.launch}", flush=True)
            sys.path.insert(0, str(self.folder / name))
            self.packages[name] = import_module(name)
        return chip.model

    def tokens(self, batch: int, length: int, device: str = "") -> torch.Tensor:
        """Return random tokens."""
        generator = torch.Generator().manual_seed(batch * length)
        return torch.randint(0, VOCABULARY, (batch, length), generator=generator).to(device or self.device)

    def logits(self) -> str:
        """Compare with float32: the packed model may be twice as far away as torch."""
        exact, plain = transformer(torch.float32, self.device), transformer(torch.bfloat16, self.device)
        own = packed(transformer(torch.bfloat16, self.device), self.packages)
        worst = 0.0
        for batch, length in self.shapes:
            given = self.tokens(batch, length)
            wanted, torch_made = exact(given), plain(given).float()
            with self.packages["packed_sdpa"].replace_sdpa():
                made = own(given).float()
            allowed = 2 * (torch_made - wanted).abs().max().item()
            error = (made - wanted).abs().max().item()
            print(f"        B={batch} S={length}: error {error:.4f}, torch {allowed / 2:.4f}", flush=True)
            if not error <= allowed:
                raise AssertionError(f"B={batch} S={length}: the error is {error:.4f}, {allowed:.4f} is allowed")
            worst = max(worst, error / allowed)
        for name, package in self.packages.items():
            found = package.stats()
            print(f"        {name}: {found['variants']}, {found['baselines']}", flush=True)
            if self.gpu and sum(found["variants"].values()) == 0:
                raise AssertionError(f"{name}: no call was served by a variant")
        return f"at most {worst:.2f} of the allowed error"

    def times(self) -> str:
        """Time a step of each model."""
        plain = transformer(torch.bfloat16, self.device)
        own = packed(transformer(torch.bfloat16, self.device), self.packages)
        backend = "inductor" if self.gpu else "aot_eager"
        models = {"eager": plain, "compile": torch.compile(plain, backend=backend), "packed": own,
                  "packed, compile": torch.compile(own, backend=backend)}  # fmt: skip
        for batch, length in self.shapes:
            given, shown = self.tokens(batch, length), []
            for name, model in models.items():
                torch._dynamo.reset()
                if "packed" in name:
                    with self.packages["packed_sdpa"].replace_sdpa():
                        shown.append(f"{name} {self.step_us(model, given):.0f}")
                else:
                    shown.append(f"{name} {self.step_us(model, given):.0f}")
            print(f"        B={batch} S={length}: {', '.join(shown)} µs", flush=True)
        return self.name()

    def name(self) -> str:
        """Return the name of the device."""
        return torch.cuda.get_device_name() if self.gpu else "CPU"

    def step_us(self, model: Any, given: torch.Tensor) -> float:
        """Return the median time of a step."""
        times = []
        for _ in range(13 if self.gpu else 3):
            self.wait()
            began = time.perf_counter()
            model(given)
            self.wait()
            times.append(1e6 * (time.perf_counter() - began))
        return sorted(times[3 if self.gpu else 1 :])[len(times) // 3]

    def wait(self) -> None:
        """Wait for the GPU."""
        if self.gpu:
            torch.cuda.synchronize()

    def selftests(self) -> str:
        """Run each package's self-test with its table of times."""
        failed = [name for name in self.packages if self.command(name, [], "--times")]
        if failed:
            raise AssertionError(f"the self-test of {', '.join(failed)} failed; see above")
        return f"{len(self.packages)} packages"

    def command(self, name: str, before: list[str], *options: str) -> int:
        """Run the self-test of a package in a new process."""
        command = [*before, sys.executable, "-m", f"{name}.selftest", *options]
        return subprocess.run(command, cwd=self.folder / name, timeout=500).returncode

    def attention(self) -> tuple[Callable[..., Any], list[torch.Tensor]]:
        """Return the function of the package, and inputs."""
        batch, length = self.shapes[0]
        given = [torch.randn(batch, HEADS, length, DEPTH, device=self.device).bfloat16() for _ in range(3)]
        return lambda *inputs: self.packages["packed_sdpa"].attention(*inputs, causal=1), given

    def host(self) -> str:
        """Compare the time of the host for a call with torch's SDPA, in the same run; at most the same is allowed."""
        host_us = import_module("packed_sdpa.benchmark").host_us
        function, given = self.attention()
        own = host_us([lambda: function(*given)])
        other = host_us([lambda: F.scaled_dot_product_attention(*given, is_causal=True)])
        if own > other:
            raise AssertionError(f"{own:.2f} µs, SDPA {other:.2f} µs")
        return f"{own:.2f} µs, SDPA {other:.2f} µs: ratio {own / other:.2f}"

    def streams(self) -> str:
        """Run the model in two threads with a stream each, at the same time."""
        own, given = packed(transformer(torch.bfloat16, self.device), self.packages), self.tokens(*self.shapes[1])
        found: dict[int, torch.Tensor] = {}
        with self.packages["packed_sdpa"].replace_sdpa():
            wanted = own(given)
            torch.cuda.synchronize()

            def work(number: int) -> None:
                with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
                    for _ in range(5):
                        found[number] = own(given)
                torch.cuda.synchronize()

            threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        for number in range(2):
            if number not in found or not torch.equal(found[number], wanted):
                raise AssertionError(f"stream {number}: {'other logits' if number in found else 'an error; see above'}")
        return "the same logits"

    def graph(self) -> str:
        """Capture a step in a graph twice with one memory pool: the second capture allocates nothing on the GPU."""
        own, given = packed(transformer(torch.bfloat16, self.device), self.packages), self.tokens(*self.shapes[1])
        with self.packages["packed_sdpa"].replace_sdpa():
            wanted = own(given)
            torch.cuda.synchronize()
            graphs, counts, pool = [], [], torch.cuda.graph_pool_handle()  # type: ignore[no-untyped-call]
            for _ in range(2):
                graphs.append(torch.cuda.CUDAGraph())
                before = torch.cuda.memory_stats()["num_device_alloc"]
                with torch.cuda.graph(graphs[-1], pool=pool):
                    made = own(given)
                counts.append(torch.cuda.memory_stats()["num_device_alloc"] - before)
                graphs[-1].replay()
                torch.cuda.synchronize()
                if not torch.equal(made, wanted):
                    raise AssertionError("a replay gives other logits")
                del made
        if counts[1]:
            raise AssertionError(f"cudaMalloc was called {counts[1]} times during the second capture")
        return f"the same logits; cudaMalloc during the captures: {counts}"

    def two_gpus(self) -> str:
        """Run the model on the second GPU while the first is current."""
        if torch.cuda.device_count() < 2:
            return "omitted: there is one GPU"
        own, given = packed(transformer(torch.bfloat16, self.device), self.packages), self.tokens(*self.shapes[1])
        with self.packages["packed_sdpa"].replace_sdpa():
            wanted = own(given).cpu()
            other = own.to("cuda:1")(given.to("cuda:1")).cpu()
        if not torch.equal(wanted, other):
            raise AssertionError(f"the logits differ by {(wanted - other).abs().max().item():.3g}")
        return torch.cuda.get_device_name(1)

    def memcheck(self) -> str:
        """Run the checks of variants, graphs and misaligned inputs under compute-sanitizer."""
        sanitizer = shutil.which("compute-sanitizer")
        if sanitizer is None:
            return "omitted: compute-sanitizer is not on PATH"
        before = [sanitizer, "--tool", "memcheck", "--error-exitcode", "9", "--leak-check", "no"]
        for name in self.packages:
            for only in ("is right", "misaligned", "CUDA graph"):
                if self.command(name, before, "--only", only):
                    raise AssertionError(f"{name}, checks with {only!r} in their name; see above")
        return f"{len(self.packages)} packages"


def main() -> int:
    """Run the steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="folder for the packages; default: a temporary one")
    parser.add_argument("--cpu", action="store_true", help="try the script without a GPU")
    parser.add_argument("--only", default="", help="run only the steps whose names contain this text")
    given = parser.parse_args()
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")
    folder, failed = given.keep or Path(tempfile.mkdtemp(prefix="packed-")), 0
    with torch.no_grad():
        for name, step in Steps(folder, "cpu" if given.cpu else "cuda:0").all():
            if given.only not in name and name != "packages":
                continue
            began = time.perf_counter()
            try:
                detail = step()
                print(f"ok      {name}: {detail} ({time.perf_counter() - began:.0f} s)", flush=True)
            except Exception as error:
                failed += 1
                print(f"FAILED  {name}: {type(error).__name__}: {error}", flush=True)
                traceback.print_exc(limit=-4)
                if name == "packages":
                    break
    print("all steps passed" if not failed else f"{failed} steps failed")
    return failed


if __name__ == "__main__":
    sys.exit(main())
