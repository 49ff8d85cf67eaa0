"""Operator of this package: registration with torch, checks, baselines, counters and explanations."""

from __future__ import annotations

import ctypes
import math
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

TYPES = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
    "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "i64": torch.int64, "i32": torch.int32,
    "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "u32": torch.uint32, "u64": torch.uint64,
}  # fmt: skip
MOST_ELEMENTS = 2**31 - 1
"""Largest number of elements of an input; kernels may count with 32 bits."""
ALIGNMENT = 16
"""Alignment in bytes of the inputs of a baseline; inputs with another address are copied."""
ELSEWHERE = -1
"""Mode of a call with other shapes than those for which an operator without fields was tuned."""


class ProblemFields(dict[str, Any]):
    """Fields of a problem, which are also attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


@dataclass(frozen=True)
class Explanation:
    """The code that serves a call, with the reason."""

    variant: int | None
    """Number of the variant; None for a baseline."""
    serves: str
    """Title of the variant, or name of the baseline."""
    reason: str
    """Why it serves the call."""

    def __str__(self) -> str:
        return f"{self.serves}: {self.reason}"


class Operator:
    """An operator with its variants and baselines."""

    def __init__(
        self,
        namespace: str,
        rules: Any,
        baselines: Sequence[tuple[str, Callable[..., Mapping[str, torch.Tensor]]]],
        folder: Path,
        launcher: Any,
    ) -> None:
        """Register the operator.

        Args:
            namespace: namespace of the operator, which is the name of the package.
            rules: the module `rules`.
            baselines: name and function of each baseline; the function takes the problem and the inputs by name.
            folder: folder with the machine code and the library.
            launcher: class that launches from Python, if the library cannot be used.
        """
        self.namespace, self.rules, self.baselines = namespace, rules, baselines
        self.title = f"{namespace}::{rules.NAME}"
        self.fixed = not rules.FIELDS
        self.codes = [(folder / f"variant_{i}.cubin").read_bytes() for i in range(len(rules.VARIANTS))]
        self._counts: Counter[str] = Counter()
        self._own_calls = [0] * len(self.codes)
        self._warned: set[int] = set()
        self._lock, self._running = threading.Lock(), threading.local()
        self._no_message = torch.empty(0, dtype=torch.uint8)
        library: Any = torch.library.Library
        self._torch = library(namespace, "DEF")
        self._torch.define(rules.SCHEMA, tags=_tags())
        self._torch.define(rules.ELSEWHERE)
        torch.library.register_fake(self.title, self._fake, lib=self._torch)
        if not rules.CHANGED:  # torch has no gradients for operators that change an input
            torch.library.register_autograd(self.title, self.refuse_gradient, lib=self._torch)
        elsewhere = f"{rules.NAME}_elsewhere"
        self._torch.impl(elsewhere, self._elsewhere, "CompositeExplicitAutograd")
        self._torch.impl(rules.NAME, self._run_baseline, "CPU")
        self.library, self.launch = self._loaded(folder / "operator.so")
        if self.library is None:
            self._launcher = launcher(rules.VARIANTS, self.codes)
            self._torch.impl(rules.NAME, self._launch, "CUDA")
        self.call = getattr(getattr(torch.ops, namespace), rules.NAME).default

    def _loaded(self, path: Path) -> tuple[ctypes.CDLL | None, str]:
        """Return the library that launches the kernels, and a sentence about it."""
        if not path.exists():
            return None, "kernels are launched from Python, because the package was built without a C++ compiler"
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:
            reason = f"kernels are launched from Python, because torch {torch.__version__} cannot load {path}: {error}"
            warnings.warn(f"{self.title}: {reason}", stacklevel=2)
            return None, reason
        library.evokern_calls.restype = ctypes.c_uint64
        library.evokern_set_code.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t]
        for index, code in enumerate(self.codes):
            library.evokern_set_code(index, code, len(code))
        return library, "kernels are launched by a C++ library"

    # ---- the shape of a call

    def shape_of(self, inputs: Sequence[torch.Tensor], arguments: Sequence[int]) -> Any:
        """Return the shape of a call, after checking data types, devices, sizes and layout.

        Raises:
            RuntimeError: the operator does not take the inputs.
        """
        names, device = self.rules.INPUTS, inputs[0].device
        mode = self._mode_of(inputs)
        for name, one, (_, rank, *_) in zip(names, inputs, self.rules.MODES[mode]["inputs"], strict=True):
            if one.device != device:
                raise RuntimeError(f"{self.title}: {name} is on {one.device}, but {names[0]} is on {device}")
            if one.dim() != rank and not self.fixed:
                raise RuntimeError(f"{self.title}: {name} has {one.dim()} dimensions; the operator takes {rank}")
            if one.numel() < 1:
                raise RuntimeError(f"{self.title}: {name} has no elements: its shape is {list(one.shape)}")
            if one.numel() > MOST_ELEMENTS:
                raise RuntimeError(
                    f"{self.title}: {name} has {one.numel()} elements; the operator takes fewer than 2^31"
                )
            if not one.is_contiguous():
                remedy = f"pass {name}.contiguous(), or copy=True to this package's function"
                if names.index(name) in self.rules.CHANGED:
                    remedy = "the call changes it, so pass a contiguous tensor, and copy its values back"
                raise RuntimeError(
                    f"{self.title}: {name} is not contiguous: it has the shape {list(one.shape)} and the strides "
                    f"{list(one.stride())}; {remedy}"
                )
        sizes = [tuple(one.shape) for one in inputs]
        shape = self.rules.READ[mode](sizes, arguments, _capability(device))
        for name, size, wanted in zip(names, sizes, self.rules.INPUT_SIZES[mode](shape), strict=True):
            if size != wanted and self.fixed:
                return shape._replace(evokern_mode=ELSEWHERE)
            if size != wanted:
                raise RuntimeError(
                    f"{self.title}: {name} has the shape {list(size)}, but with the other inputs it must have "
                    f"{list(wanted)}"
                )
        for name, size in zip(self.rules.OUTPUTS, self.rules.RESULTS[mode](shape), strict=True):
            if (count := math.prod(size)) > MOST_ELEMENTS:
                raise RuntimeError(
                    f"{self.title}: the result {name} has {count} elements; the operator takes fewer than 2^31"
                )
        return shape

    def check_types(self, inputs: Sequence[Any]) -> None:
        """Raise a TypeError if an input is not a tensor."""
        for name, one in zip(self.rules.INPUTS, inputs, strict=True):
            if not isinstance(one, torch.Tensor):
                raise TypeError(f"{self.title}: {name} is of type {type(one).__name__}; pass a tensor") from None

    def _mode_of(self, inputs: Sequence[torch.Tensor]) -> int:
        known = [[TYPES[dtype] for dtype, *_ in mode["inputs"]] for mode in self.rules.MODES]
        given = [one.dtype for one in inputs]
        if given in known:
            return known.index(given)
        place = next(
            i for i, dtype in enumerate(given) if all(types[i] != dtype for types in known) or i + 1 == len(given)
        )
        taken = " or ".join(dict.fromkeys(str(types[place]) for types in known))
        raise RuntimeError(
            f"{self.title}: {self.rules.INPUTS[place]} has the data type {given[place]}; the operator takes {taken}"
            + ("" if len(inputs) == 1 or len(known) == 1 else ", and all inputs of the same call must match")
        )

    def problem_of(self, shape: Any) -> ProblemFields:
        """Return the problem of a shape, as the kernel declares it."""
        return ProblemFields(
            {**dict(zip(self.rules.FIELDS, shape[2:], strict=True)), **self.rules.MODES[shape[1]]["names"]}
        )

    def _given(self, values: Sequence[Any], named: Mapping[str, Any]) -> tuple[Sequence[torch.Tensor], list[int]]:
        """Return the inputs and the numeric arguments of a call; torch omits arguments at their default."""
        count = len(self.rules.INPUTS)
        rest = [named.get(name, default) for name, default in self.rules.ARGUMENTS[len(values) - count :]]
        return values[:count], [*values[count:], *rest]

    # ---- what torch calls

    def _fake(self, *values: Any, **named: Any) -> Any:
        inputs, arguments = self._given(values, named)
        shape = self.shape_of(inputs, arguments)
        types = self.rules.MODES[shape[1]]["outputs"]
        if shape[1] == ELSEWHERE:
            made = self._run(0, inputs, shape)
            sizes = [made[name].shape for name in self.rules.OUTPUTS]
        else:
            sizes = self.rules.RESULTS[shape[1]](shape)
        return _joined([inputs[0].new_empty(s, dtype=TYPES[t]) for s, t in zip(sizes, types, strict=True)])

    def refuse_gradient(self, *_: Any) -> Any:
        """Raise an error, because the operator has no gradient."""
        raise RuntimeError(
            f"{self.title} has no gradient; call it under torch.no_grad(), or use the torch function that it replaces"
        )

    def _run_baseline(self, *values: Any, **named: Any) -> Any:
        inputs, arguments = self._given(values, named)
        shape = self.shape_of(inputs, arguments)
        return _joined(self._baseline(inputs, shape, *self._choice(inputs, shape)[1:]))

    def _elsewhere(self, *values: Any, **named: Any) -> Any:
        """Run a baseline. The last result is the text of an error, because exceptions do not pass the stable ABI."""
        inputs, arguments = self._given(values, named)
        try:
            shape = self.shape_of(inputs, arguments)
            results = self._baseline(inputs, shape, *self._choice(inputs, shape)[1:])
        except Exception as error:
            text = str(error) or type(error).__name__
            message = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
            empty = [inputs[0].new_empty(0) for _ in self.rules.OUTPUTS]
            return _joined([*empty, message])
        return _joined([*results, self._no_message])

    def _launch(self, *values: Any, **named: Any) -> Any:
        """Launch a variant from Python, or run a baseline."""
        inputs, arguments = self._given(values, named)
        shape = self.shape_of(inputs, arguments)
        variant, baseline, reason = self._choice(inputs, shape)
        if variant is None:
            return _joined(self._baseline(inputs, shape, baseline, reason))
        types, sizes = self.rules.MODES[shape[1]]["outputs"], self.rules.RESULTS[shape[1]](shape)
        results = [inputs[0].new_empty(s, dtype=TYPES[t]) for s, t in zip(sizes, types, strict=True)]
        self._launcher.run(variant, self.rules.NUMBERS[variant](shape), [*inputs, *results])
        with self._lock:
            self._own_calls[variant] += 1
        return _joined(results)

    # ---- dispatch

    def _choice(self, inputs: Sequence[torch.Tensor], shape: Any) -> tuple[int | None, int, str]:
        """Return the variant or None, the baseline, and the reason for the baseline."""
        rules = self.rules
        chosen = rules.choose(shape)
        if inputs[0].device.type != "cuda":
            return None, 0, f"the inputs are on {inputs[0].device.type}"
        if shape[1] == ELSEWHERE:
            sizes = ", ".join(
                f"{name} {list(size)}" for name, size in zip(rules.INPUTS, rules.INPUT_SIZES[0](shape), strict=True)
            )
            return None, 0, f"the kernel was tuned for {sizes}"
        known = {variant["capability"] for variant in rules.VARIANTS}
        if shape[0] not in known:
            self._warn(inputs[0].device, shape[0], known)
            return None, 0, f"no variant for sm_{shape[0]}"
        if chosen < 0:
            tried = rules.preferred(shape)
            if not tried:
                return None, -1 - chosen, "the baseline was measured to be faster"
            return None, -1 - chosen, next(filter(None, (rules.REFUSAL[one](shape) for one in tried)))
        alignment = rules.VARIANTS[chosen]["alignment"]
        for name, one in zip(rules.INPUTS, inputs, strict=True):
            if one.data_ptr() % alignment:
                return None, 0, f"{name} is not aligned to {alignment} bytes"
        return chosen, 0, ""

    def _warn(self, device: torch.device, capability: int, known: set[int]) -> None:
        if capability not in self._warned:
            self._warned.add(capability)
            built = ", ".join(f"sm_{one}" for one in sorted(known))
            warnings.warn(
                f"{self.title} has variants for {built}, but {torch.cuda.get_device_name(device)} is sm_{capability}; "
                "its calls run the baseline",
                stacklevel=2,
            )

    def _baseline(self, inputs: Sequence[torch.Tensor], shape: Any, number: int, reason: str) -> list[torch.Tensor]:
        """Run a baseline and count the call."""
        # torch 2.11 returns wrong attention, without an error, for addresses that its backend does not expect.
        aligned = [one.clone() if one.data_ptr() % ALIGNMENT else one for one in inputs]
        try:
            made = self._run(number, aligned, shape)
        except RuntimeError:
            if number == 0:
                raise
            reason, number = f"{self.baselines[number][0]} does not take the shape", 0
            made = self._run(0, aligned, shape)
        with self._lock:
            self._counts[f"{self.baselines[number][0]}: {reason}"] += 1
        for index in self.rules.CHANGED:
            inputs[index].copy_(made[self.rules.DECLARED[index]])
        types = self.rules.MODES[shape[1]]["outputs"]
        results = [made[one].to(TYPES[t]).contiguous() for one, t in zip(self.rules.OUTPUTS, types, strict=True)]
        return self.without_views(results, aligned)

    @staticmethod
    def without_views(results: Iterable[torch.Tensor], inputs: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Return results with those copied that share memory with an input."""
        owned = {one.untyped_storage().data_ptr() for one in inputs}
        return [one.clone() if one.untyped_storage().data_ptr() in owned else one for one in results]

    def _run(self, number: int, inputs: Sequence[torch.Tensor], shape: Any) -> Mapping[str, torch.Tensor]:
        named = dict(zip(self.rules.DECLARED, inputs, strict=True))
        self._running.baseline = True
        try:
            return self.baselines[number][1](self.problem_of(shape), named)
        finally:
            self._running.baseline = False

    @property
    def in_baseline(self) -> bool:
        """Whether this thread runs a baseline, whose call of a replaced function must reach torch."""
        return getattr(self._running, "baseline", False)

    # ---- for functions and modules that call the operator instead of torch

    def run_instead(
        self,
        function: Callable[..., Any],
        inputs: Sequence[torch.Tensor],
        arguments: Mapping[str, int],
        otherwise: Callable[[], Any],
        reason: str = "",
        *,
        copy: bool = False,
    ) -> Any:
        """Call the operator, or the code that it replaces if the operator does not take the call; count the latter.

        Args:
            function: function of the package.
            inputs: its inputs.
            arguments: its numeric arguments.
            otherwise: the replaced code.
            reason: why the replaced code must run; empty if the operator decides.
            copy: whether to copy inputs that are not contiguous.
        """
        compiling = torch.compiler.is_compiling()
        if not reason and torch.is_grad_enabled() and any(one.requires_grad for one in inputs):
            reason = "an input needs a gradient"
        if not reason and compiling:  # errors of the operator would end the compilation
            reason = self._refusal([one.contiguous() for one in inputs] if copy else inputs, arguments)
        if not reason:
            try:
                return function(*inputs, **arguments, copy=copy)
            except RuntimeError as error:
                if not str(error).startswith(f"{self.title}: "):
                    raise
                reason = str(error).removeprefix(f"{self.title}: ")
        if not compiling:
            with self._lock:
                self._counts[f"replaced code: {reason}"] += 1
        return otherwise()

    def _refusal(self, inputs: Sequence[torch.Tensor], arguments: Mapping[str, int]) -> str:
        """Return why the operator refuses inputs; empty if it takes them."""
        try:
            self.shape_of(inputs, [arguments.get(name, default) for name, default in self.rules.ARGUMENTS])
        except RuntimeError as error:
            return str(error)
        return ""

    # ---- for the user

    def explain(self, inputs: Sequence[torch.Tensor], arguments: Sequence[int]) -> Explanation:
        """Return the variant or baseline that would serve a call, and the reason; the call does not run."""
        shape = self.shape_of(inputs, arguments)
        variant, baseline, reason = self._choice(inputs, shape)
        if variant is None:
            return Explanation(None, f"baseline {self.baselines[baseline][0]}", reason)
        problem = " ".join(f"{name}={value}" for name, value in self.problem_of(shape).items())
        return Explanation(variant, f"variant {variant}", f"{self.rules.VARIANTS[variant]['title']}, for {problem}")

    def stats(self) -> dict[str, Any]:
        """Return the number of calls that each variant and each baseline served, with reasons, in this process."""
        calls = list(self._own_calls)
        if self.library is not None:
            calls = [int(self.library.evokern_calls(index)) for index in range(len(calls))]
        with self._lock:
            baselines = dict(self._counts)
        return {
            "variants": {
                f"{i}: {v['title']}": n for i, (v, n) in enumerate(zip(self.rules.VARIANTS, calls, strict=True))
            },
            "baselines": baselines,
            "launch": self.launch,
        }


def _capability(device: torch.device) -> int:
    """Return ten times the major plus the minor number of the compute capability; 0 for a CPU."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return 0
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def _tags() -> tuple[Any, ...]:
    """Return the tags of the operator: compilers must pass inputs with the strides that the program gave them."""
    names = ("pt2_compliant_tag", "needs_exact_strides")
    return tuple(getattr(torch.Tag, name) for name in names if hasattr(torch.Tag, name))


def _joined(results: Sequence[torch.Tensor]) -> Any:
    return None if not results else results[0] if len(results) == 1 else tuple(results)
