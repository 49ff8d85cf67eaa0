"""Kernel Tuner's arguments of `tune_kernel`, translated to the arguments of `evokern.tune`, and results in its form."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from types import SimpleNamespace
from typing import Any

from evokern.declaration.as_data.expressions import value_of
from evokern.errors import SourceError, UsageError
from evokern.export.t4 import objective_ms
from evokern.scaffold.probe import Prober
from evokern.scaffold.reading import DRAFTED_FOR, KernelReading
from evokern.scaffold.tuner.arithmetic import value_over
from evokern.scaffold.tuner.draft import reading_of
from evokern.scaffold.tuner.fake_kernel_tuner import described_call
from evokern.scaffold.tuner.request import TunerRequest, from_call
from evokern.scaffold.tuner.stated import OBSERVED, RTOL
from evokern.study.trial import Trial
from evokern.tuning.arrays import framework_of, number_of
from evokern.tuning.marks import inout, out_like

_UNSUPPORTED: Mapping[str, tuple[Any, str]] = {
    "texmem_args": (None, "pass a tensor instead of a texture"),
    "cmem_args": (None, "run `evokern init` on the script, which declares constant memory"),
    "verify": (None, "pass atol, or a reference function as reference="),
    "platform": (0, "omit it: evokern uses CUDA only"),
    "compiler": (None, "omit it: evokern compiles with NVRTC"),
    "defines": (None, "omit it: each parameter is a macro"),
    "log": (None, "use Python's logging of 'evokern'"),
    "cache": (None, "pass db=, the database, in which evokern keeps every result"),
    "simulation_mode": (None, "use evokern.replay on the command line"),
    "parallel": (None, "pass device='cuda:all' for several GPUs"),
    "observers": (None, "omit them: evokern measures the time only"),
    "objective": ("time", "omit it: evokern always optimises the time"),
    "objective_higher_is_better": (False, "omit it: evokern always optimises the time"),
    "objectives": (None, "omit it: evokern always optimises the time"),
}
"""Argument → the only supported value in addition to None, and the remedy."""
STRATEGIES: Mapping[str | None, str | None] = {None: None, "brute_force": "grid", "random_sample": "random"}
"""Kernel Tuner's strategy → evokern's sampler."""


@dataclass(frozen=True)
class KernelTunerCall:
    """Arguments of `tune_kernel` in evokern's form."""

    options: Mapping[str, Any]
    """Arguments of `evokern.tune`."""
    sampler: str | None
    """Sampler; None for the default."""
    note: str = ""
    """Note for the user if the reference is the default candidate."""


def check_supported(call: Any) -> None:
    """Reject arguments that evokern does not support.

    Raises:
        UsageError: the message names the argument and what to do instead.
    """
    for name, (supported, remedy) in _UNSUPPORTED.items():
        value = getattr(call, name)
        if value is not None and value != supported and value not in ({}, [], ()):
            raise UsageError(f"tune_kernel does not support {name}={reprlib.repr(value)}; {remedy}")
    if call.strategy not in STRATEGIES:
        known = ", ".join(repr(name) for name in STRATEGIES if name)
        raise UsageError(
            f"tune_kernel does not support strategy={reprlib.repr(call.strategy)}; use {known}, or omit it for "
            "evokern's own sampler"
        )
    for name in call.strategy_options or {}:
        if name not in ("max_fevals", "time_limit"):
            raise UsageError(
                f"tune_kernel does not support the strategy option {name!r}; use max_fevals and time_limit"
            )
    if call.answer is not None and call.reference is not None:
        raise UsageError("tune_kernel got both answer and reference; pass one of them")


def translated(call: Any) -> KernelTunerCall:
    """Return the arguments of `evokern.tune` for a call of `tune_kernel`.

    Args:
        call: record with Kernel Tuner's arguments.

    Raises:
        UsageError: an argument is not supported, or cannot be used.
    """
    check_supported(call)
    given = {name: getattr(call, name) for name in call.__dataclass_fields__}
    try:
        request = from_call(described_call(given))
        reading = reading_of(request)
    except SourceError as error:
        raise UsageError(f"tune_kernel: {error}") from error
    unread = [note for note in request.notes if "is not plain arithmetic" in note]
    if unread:
        raise UsageError(f"tune_kernel: {unread[0].removeprefix('kernel.py: ')}")
    return _Translation(call, request, reading).result()


class _Translation:
    """Translation of one call."""

    def __init__(self, call: Any, request: TunerRequest, reading: KernelReading) -> None:
        self.call, self.request, self.plan = call, request, reading.plan
        self.source, self.function = reading.source, reading.function
        self.problem = {name: int(value) for name, value in reading.literals.items()}
        self.arrays = [one if framework_of(one) else None for one in call.arguments]

    def result(self) -> KernelTunerCall:
        call, plan = self.call, self.plan
        args = self._args()
        options: dict[str, Any] = {
            "source": self._text(),
            "entry": plan.entry.replace("{c.", "{"),
            "args": args,
            "params": {name: list(values) for name, values in self.request.parameters.items()},
            "where": [self._rule((text,)) for _, text, _ in plan.constraints],
            "grid": self._rule(plan.grid),
            "block": self._rule(plan.block),
            "shared": self._rule((plan.shared,)),
            "options": plan.options,
        }
        if call.reference is not None:
            return KernelTunerCall({**options, "reference": call.reference}, STRATEGIES[call.strategy])
        options |= {"tolerance": (float(call.atol), RTOL), "draw": self._kept()}
        if call.answer is not None:
            return KernelTunerCall({**options, "reference": self._answer(args)}, STRATEGIES[call.strategy])
        from evokern.device.default_outputs import SameAsDefault

        note = (
            "tune_kernel got neither answer nor reference: candidates are compared with the default candidate, not "
            "with a known result"
        )
        return KernelTunerCall({**options, "reference": SameAsDefault()}, STRATEGIES[call.strategy], note)

    def _text(self) -> str:
        """Return the source, in which macros that depend on the problem have their values."""
        changing = [name for name, text in self.plan.macros.items() if "c." in text]
        if changing:
            raise UsageError(
                f"tune_kernel: {', '.join(changing)} in the kernel depends on the parameters; use gridDim instead"
            )
        plan, fixed = self.plan, {name: text for name, text in self.plan.macros.items() if "c." not in text}
        lines = [f"#define {name} {plan.value(text, plan.defaults, self.problem)}\n" for name, text in fixed.items()]
        return "".join(lines) + self.source

    def _rule(self, texts: Sequence[str]) -> Callable[[Any], Any]:
        problem = SimpleNamespace(**self.problem)

        def rule(config: Any) -> Any:
            made = tuple(value_of(text, config, problem) for text in texts)
            return made if len(made) > 1 else made[0]

        return rule

    def _args(self) -> list[Any]:
        """Return the arguments with the marks of outputs: those with an answer, or that some blocks write."""
        roles = self._roles
        answer = self.call.answer or ()
        made: list[Any] = []
        for at, (parameter, one) in enumerate(zip(self.function.parameters, self.call.arguments, strict=True)):
            role = roles.get(parameter.name or f"argument{at}", "")
            expected = at < len(answer) and answer[at] is not None
            if self.call.answer is not None and role in ("output", "inout") and not expected:
                raise UsageError(
                    f"tune_kernel: the kernel writes arguments[{at}] ({parameter.name}), but answer has no array "
                    "for it; add it to answer"
                )
            if self.arrays[at] is None:
                number = number_of(one)
                made.append(one if number is None else number)
            elif role == "inout":
                made.append(inout(one))
            elif expected or role == "output":
                made.append(out_like(one))
            else:
                made.append(one)
        return made

    @cached_property
    def _roles(self) -> dict[str, str]:
        """Return the roles of arrays, from some blocks of the default configuration at the given problem."""
        arrays = zip(self.plan.arguments, self.arrays, strict=True)
        sizes = {argument.name: int(prod(array.shape)) for argument, array in arrays if array is not None}
        run = Prober(self.source, DRAFTED_FOR).run(self.plan, self.problem, limit=1, exact=sizes, blocks=OBSERVED)
        if not run.ok:
            raise UsageError(f"tune_kernel: the first configuration cannot be simulated: {run.why}")
        return {
            name: "inout" if touch.in_place else "output" if touch.written else "input"
            for name, touch in run.touches.items()
        }

    def _kept(self) -> dict[str, Any]:
        """Return functions that return the given inputs, for which alone correct results are known."""
        names = [p.name or f"argument{at}" for at, p in enumerate(self.function.parameters)]
        roles = self._roles
        return {
            name: _Kept(array)
            for name, array in zip(names, self.arrays, strict=True)
            if array is not None and roles.get(name) in ("input", "inout")
        }

    def _answer(self, args: Sequence[Any]) -> _Kept:
        answer = list(self.call.answer)
        if len(answer) != len(args):
            raise UsageError(f"answer has {len(answer)} entries, but arguments has {len(args)}; use None for inputs")
        expected = []
        for at, one in enumerate(answer):
            if one is None:
                continue
            shape = getattr(self.arrays[at], "shape", None)
            if not framework_of(one) or shape is None or prod(one.shape) != prod(shape):
                raise UsageError(
                    f"answer[{at}] does not have the shape of arguments[{at}]; pass an array of that shape"
                )
            expected.append(_wide(one).reshape(tuple(shape) or (1,)))
        return _Kept(*expected)


class _Kept:
    """Function that returns fixed arrays, whatever its arguments are."""

    def __init__(self, *arrays: Any) -> None:
        self._arrays = arrays

    def __call__(self, *_: Any) -> Any:
        return list(self._arrays) if len(self._arrays) != 1 else self._arrays[0]


def _wide(array: Any) -> Any:
    """Return an array as float64, in which a reference must answer; integers stay as they are."""
    whole = str(array.dtype).removeprefix("torch.").startswith(("int", "uint", "bool"))
    if whole:
        return array
    return array.double() if framework_of(array) == "torch" else array.astype("float64")


def results_of(trials: Sequence[Trial], metrics: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return finished trials in Kernel Tuner's form: parameters, `time` in ms or the name of an error, and metrics.

    Raises:
        UsageError: a metric cannot be computed.
    """
    found = []
    for trial in trials:
        time = objective_ms(trial)
        record: dict[str, Any] = {**dict(trial.config), "time": time}
        if isinstance(time, str):
            record["__error__"] = time
        else:
            samples = trial.evaluation.timings[0].samples_us if trial.evaluation.timings else ()
            record["times"] = [sample / 1000 for sample in samples] or [time]
            for name, metric in (metrics or {}).items():
                record[name] = _metric(name, metric, record)
        found.append(record)
    return found


def _metric(name: str, metric: Any, record: Mapping[str, Any]) -> Any:
    try:
        return metric(record) if callable(metric) else value_over(str(metric), record)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise UsageError(
            f"metric {name!r} cannot be computed ({type(error).__name__}: {error}); use the parameters and 'time'"
        ) from error
