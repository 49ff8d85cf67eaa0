"""Self-test of this package: `python -m PACKAGE.selftest`.

Without a GPU, the test covers dispatch, schema, fake implementation and baselines.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import importlib
import json
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

SHAPES = 10_000
"""Number of shapes on which C++ and Python must agree."""
MOST_ELEMENTS = 2**22
"""Largest number of elements of a tensor in tests at other shapes than the study's."""
ROUNDOFF = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24, torch.float64: 2.0**-53}


class CheckFailedError(Exception):
    """A check failed; the message gives the reason."""


class SelfTest:
    """Checks of one package."""

    def __init__(self, package: Any, seed: int = 0) -> None:
        """Create the checks.

        Args:
            package: the package.
            seed: seed of shapes and inputs.
        """
        self.package, self.operator, self.rules = package, package._operator, package._operator.rules
        self.baselines = importlib.import_module(f"{package.__name__}._baselines")
        self.folder = Path(package.__file__).parent
        self.function = getattr(package, self.rules.NAME)
        self.random = random.Random(seed)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.manual_seed(seed)

    def checks(self) -> Iterator[tuple[str, Callable[[], str]]]:
        """Yield the name and the function of each check; the function returns a detail or raises `CheckFailedError`."""
        yield "files are as packed", self.files
        yield "C++ and Python dispatch agree", self.dispatch
        yield "opcheck", self.opcheck
        yield "torch.compile(fullgraph=True)", self.compiled
        yield "clear errors", self.errors
        yield "gradient is refused", self.gradient
        if self.device.type == "cuda":
            for number in self.here():
                yield f"variant {number} is right", partial(self.right, number)
            yield "misaligned input", self.misaligned
            yield "another stream, another thread", self.streams
            yield "CUDA graph", self.graph
            yield "several devices", self.devices

    # ---- shapes and inputs

    def here(self) -> list[int]:
        """Return the variants for this machine's GPU."""
        major, minor = torch.cuda.get_device_capability()
        return [i for i, one in enumerate(self.rules.VARIANTS) if one["capability"] == 10 * major + minor]

    def shape(self, number: int, **changes: int) -> Any:
        """Return the shape of a variant's study, with some fields changed."""
        table = self.rules.VARIANTS[number]
        fields = {**table["problem"], **changes}
        return self.rules.Shape(table["capability"], table["mode"], *(fields[name] for name in self.rules.FIELDS))

    def inputs(self, shape: Any, device: torch.device | None = None) -> tuple[list[torch.Tensor], dict[str, int]]:
        """Return random inputs and the numeric arguments of a call with a shape."""
        made = []
        types = self.rules.MODES[shape[1]]["inputs"]
        for (dtype, *_, scale, low, high), size in zip(types, self.rules.INPUT_SIZES[shape[1]](shape), strict=True):
            target = self.operator_types()[dtype]
            if not target.is_floating_point:
                one = torch.randint(low, high + 1, size, dtype=torch.int64).to(target)
            elif low < 0 < high or low == high:
                one = torch.randn(size) * scale
                one = (one if low == high else one.clamp(low, high)).to(target)
            else:
                one = (torch.rand(size) * (high - low) + low).to(target)
            made.append(one.to(device or self.device))
        fields = dict(zip(self.rules.FIELDS, shape[2:], strict=True))
        return made, {name: fields[field] for name, field in self.rules.ARGUMENT_FIELDS}

    def operator_types(self) -> dict[str, torch.dtype]:
        """Return the data types by name."""
        types: dict[str, torch.dtype] = importlib.import_module(f"{self.package.__name__}._operator").TYPES
        return types

    def random_shape(self, number: int) -> Any:
        """Return a random shape near or far from a variant's study; the variant may not take it."""
        draw, fields = self.random, {}
        for name, own in self.rules.VARIANTS[number]["problem"].items():
            near = (own, own, own + 1, own - 1, 2 * own, own // 2, draw.randint(0, 2 * own + 2))
            far = round(2 ** draw.uniform(0, 24))
            fields[name] = own if draw.random() < 0.5 else max(0, draw.choice([*near, far]))
        shape = self.shape(number, **fields)
        return shape._replace(evokern_sm=draw.choice([one["capability"] for one in self.rules.VARIANTS] * 9 + [75]))

    # ---- checks

    def files(self) -> str:
        """Compare the files with the digests of the package."""
        facts = json.loads((self.folder / "provenance.json").read_text(encoding="utf-8"))
        for name, digest in facts["digests"].items():
            if hashlib.sha256((self.folder / name).read_bytes()).hexdigest() != digest:
                raise CheckFailedError(f"{name} was changed after packing")
        return f"{len(facts['digests'])} files"

    def dispatch(self) -> str:
        """Compare the dispatch and the launches of C++ and Python."""
        library, taken = self.operator.library, 0
        if library is None:
            return f"omitted: {self.operator.launch}"
        for _ in range(SHAPES):
            number = self.random.randrange(len(self.rules.VARIANTS))
            shape = self.random_shape(number)
            values = (ctypes.c_int64 * len(shape))(*shape)
            chosen = self.rules.choose(shape)
            if library.evokern_choose(values) != chosen:
                raise CheckFailedError(f"at {shape}: C++ chooses {library.evokern_choose(values)}, Python {chosen}")
            if chosen >= 0:
                taken += 1
                wanted = self.rules.NUMBERS[chosen](shape)
                numbers = (ctypes.c_int64 * len(wanted))()
                library.evokern_numbers(chosen, values, numbers)
                if tuple(numbers) != tuple(wanted):
                    raise CheckFailedError(f"at {shape}: C++ launches {tuple(numbers)}, Python {wanted}")
        return f"{SHAPES} shapes, {taken} of them for variants"

    def small(self) -> tuple[list[torch.Tensor], dict[str, int]]:
        """Return inputs of a small problem: the smallest study's, as small as its variant allows on this device."""
        return self.inputs(self.shape((self.here() or [0])[0] if self.device.type == "cuda" else 0))

    def opcheck(self) -> str:
        """Run torch's checks of custom operators."""
        inputs, arguments = self.small()
        result = torch.library.opcheck(self.operator.call, tuple(inputs), arguments)
        return ", ".join(result)

    def compiled(self) -> str:
        """Compare the compiled function with the function."""
        inputs, arguments = self.small()
        backend = "inductor" if self.device.type == "cuda" else "aot_eager"
        torch.compiler.reset()
        function = torch.compile(lambda *given: self.function(*given, **arguments), fullgraph=True, backend=backend)
        self.same(function(*inputs), self.function(*inputs, **arguments), "compiled function")
        return backend

    def errors(self) -> str:
        """Pass inputs that the operator must refuse."""
        inputs, arguments = self.small()
        first, rest = inputs[0], inputs[1:]
        bad = {"data type": [first.to(torch.complex64), *rest], "no elements": [first[:0], *rest]}
        if not self.operator.fixed:  # other shapes run the baseline
            bad["dimensions"] = [first[None], *rest]
        if first.dim() >= 2 and first.shape[-1] > 1:
            bad["not contiguous"] = [torch.stack([first, first], -1)[..., 0], *rest]
        if self.device.type == "cuda" and rest:
            bad["devices"] = [first, *(one.cpu() for one in rest)]
        for name, given in bad.items():
            try:
                self.operator.call(*given, **arguments)
            except (RuntimeError, TypeError) as error:
                if "API call failed" in str(error) or not str(error):
                    raise CheckFailedError(f"{name}: the message is {error}") from error
            else:
                raise CheckFailedError(f"{name}: the call did not fail")
        return ", ".join(bad)

    def gradient(self) -> str:
        """Ask for a gradient."""
        inputs, arguments = self.small()
        if not inputs[0].is_floating_point():
            return "omitted: the operator takes integers"
        inputs[0].requires_grad_()
        try:
            result = self.function(*inputs, **arguments)
            first = result[0] if isinstance(result, tuple) else result
            first.sum().backward()
        except RuntimeError as error:
            if "has no gradient" in str(error):
                return ""
            raise
        raise CheckFailedError("neither the call nor backward raised an error")

    def right(self, number: int) -> str:
        """Compare a variant with the float64 reference at the study's shape and at others."""
        if self.baselines.REFERENCE is None:
            return "omitted: the package contains no reference"
        if any(drawn for _, _, drawn, *_ in self.rules.MODES[self.rules.VARIANTS[number]["mode"]]["inputs"]):
            return "omitted: the kernel's declaration generates its inputs"
        shapes = [self.shape(number)]
        for _ in range(0 if self.operator.fixed else 3000):
            shape = self.random_shape(number)
            sizes = [*self.rules.INPUT_SIZES[shape[1]](shape), *self.rules.RESULTS[shape[1]](shape)]
            if (
                shape not in shapes
                and self.rules.choose(shape) == number
                and max(_count(size) for size in sizes) <= MOST_ELEMENTS
            ):
                shapes.append(shape)
            if len(shapes) == 12:
                break
        worst, omitted = 0.0, 0
        for shape in shapes:
            try:
                worst = max(worst, self._error(number, shape))
            except torch.OutOfMemoryError:  # the float64 reference of some shapes is large
                omitted += 1
        if omitted == len(shapes):
            raise CheckFailedError("the float64 reference needs more memory than the GPU has, at every shape")
        return f"{len(shapes) - omitted} shapes, error at most {worst:.2f} of the allowed"

    def _error(self, number: int, shape: Any) -> float:
        """Return the largest error of a variant as a share of the allowed one."""
        inputs, arguments = self.inputs(shape)
        before = self.operator.stats()["variants"]
        results = self._results(self.operator.call(*[one.clone() for one in inputs], **arguments))
        served = [a - b for a, b in zip(self.operator.stats()["variants"].values(), before.values(), strict=True)]
        if self.operator.rules.choose(shape) == number and served[number] != 1:
            raise CheckFailedError(
                f"at {shape}: the call was served by {self.operator.explain(inputs, list(arguments.values()))}"
            )
        named = dict(zip(self.rules.DECLARED, inputs, strict=True))
        problem = self.operator.problem_of(shape)
        exact = {name: one.double() if one.is_floating_point() else one for name, one in named.items()}
        wanted = self.baselines.REFERENCE(problem, exact)
        plain = self.baselines.BASELINES[0][1](problem, named)
        worst = 0.0
        for name, result in zip(self.rules.OUTPUTS, results, strict=True):
            reference = wanted[name].double()
            if not result.is_floating_point():
                if not torch.equal(result.double(), reference):
                    raise CheckFailedError(f"at {shape}: {name} differs from the reference")
                continue
            unit = ROUNDOFF.get(result.dtype, 2.0**-3) * reference.abs().max().item()
            allowed = 4 * max((plain[name].double() - reference).abs().max().item(), unit)
            error = (result.double() - reference).abs().max().item()
            if not error <= allowed:
                raise CheckFailedError(f"at {shape}: {name} has the error {error:.3g}; {allowed:.3g} is allowed")
            worst = max(worst, error / allowed)
        return worst

    def _results(self, made: Any) -> list[torch.Tensor]:
        return [] if made is None else [made] if isinstance(made, torch.Tensor) else list(made)

    def same(self, first: Any, second: Any, what: str) -> None:
        """Compare two results bit by bit.

        Raises:
            CheckFailedError: they differ.
        """
        for one, two in zip(self._results(first), self._results(second), strict=True):
            if one.shape != two.shape or one.dtype != two.dtype or not torch.equal(_bits(one), _bits(two)):
                raise CheckFailedError(f"the result of the {what} differs")

    def misaligned(self) -> str:
        """Pass an input that does not start at a multiple of 16 bytes."""
        inputs, arguments = self.small()
        wide = torch.empty(inputs[0].numel() + 1, dtype=inputs[0].dtype, device=self.device)
        moved = wide[1:].view(inputs[0].shape).copy_(inputs[0])
        result = self._results(self.operator.call(moved, *inputs[1:], **arguments))
        straight = self._results(self.operator.call(*inputs, **arguments))
        for one, two in zip(result, straight, strict=True):
            difference = (one.double() - two.double()).abs().max().item()
            if not difference <= 0.05 * (1 + two.double().abs().max().item()):
                raise CheckFailedError(f"the result differs by {difference:.3g}")
        return str(self.operator.explain([moved, *inputs[1:]], list(arguments.values())))

    def streams(self) -> str:
        """Call the operator on other streams and in a new thread, at the same time."""
        inputs, arguments = self.small()
        wanted = self.operator.call(*inputs, **arguments)
        torch.cuda.synchronize()
        found: list[Any] = []

        def work() -> None:
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            with torch.cuda.stream(stream):
                found.extend(self.operator.call(*inputs, **arguments) for _ in range(20))
            stream.synchronize()

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if len(found) != 40:
            raise CheckFailedError(f"{40 - len(found)} calls failed in a thread")
        for one in found:
            self.same(one, wanted, "call on another stream")
        return "2 streams"

    def graph(self) -> str:
        """Capture a call in a CUDA graph, and replay it with other inputs."""
        inputs, arguments = self.small()
        others, _ = self.inputs(self.operator.shape_of(inputs, list(arguments.values())))
        wanted = self.operator.call(*others, **arguments)
        torch.cuda.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            result = self.operator.call(*inputs, **arguments)
        for one, other in zip(inputs, others, strict=True):
            one.copy_(other)
        captured.replay()
        torch.cuda.synchronize()
        self.same(result, wanted, "replayed graph")
        return "captured and replayed"

    def devices(self) -> str:
        """Call the operator on each GPU, while another is current."""
        inputs, arguments = self.small()
        wanted = self.operator.call(*inputs, **arguments)
        count = torch.cuda.device_count()
        for index in range(count):
            moved = [one.to(f"cuda:{index}") for one in inputs]
            result = self._results(self.operator.call(*moved, **arguments))
            self.same(
                tuple(one.to(self.device) for one in result), tuple(self._results(wanted)), f"call on cuda:{index}"
            )
        return f"{count}"


def _count(size: Sequence[int]) -> int:
    total = 1
    for extent in size:
        total *= max(extent, 0)
    return total


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8) if tensor.dim() else tensor.reshape(1).view(torch.uint8)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all checks, print a line for each, and return 1 if one fails."""
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}.selftest", description=__doc__)
    parser.add_argument("--times", action="store_true", help="also print the table of `python -m PACKAGE.benchmark`")
    parser.add_argument("--only", default="", metavar="TEXT", help="run only the checks whose names contain this text")
    parser.add_argument("--seed", type=int, default=0, help="seed of shapes and inputs")
    given = parser.parse_args(arguments)
    test = SelfTest(sys.modules[str(__package__)], given.seed)
    failed = 0
    print(f"{test.operator.title} on {torch.cuda.get_device_name() if test.device.type == 'cuda' else 'the CPU'}, "
          f"torch {torch.__version__}: {test.operator.launch}")  # fmt: skip
    for name, check in test.checks():
        if given.only not in name:
            continue
        try:
            detail = check()
            print(f"ok      {name}{f': {detail}' if detail else ''}", flush=True)
        except Exception as error:
            failed += 1
            print(f"FAILED  {name}: {type(error).__name__}: {error}", flush=True)
    if given.times and test.device.type == "cuda":
        for row in importlib.import_module(f"{__package__}.benchmark").rows(test):
            print(row, flush=True)
    print("all checks passed" if not failed else f"{failed} checks failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
