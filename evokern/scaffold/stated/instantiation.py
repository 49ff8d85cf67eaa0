"""Template arguments of a drafted kernel: types, genes, and fields with the values that host code instantiates."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from evokern.cuda_source import CudaSource, KernelFunction, TemplateParameter
from evokern.cuda_source.host import Arithmetic, Expr, HostLaunch, Name, TypeName, number, template_arguments, text_of
from evokern.scaffold.genes.tunables import comments_on, values_of
from evokern.scaffold.plan import DraftField, DraftGene
from evokern.scaffold.stated.found_launch import StatedLaunch

_LINES_OF_HEAD = 6
"""Maximum number of lines of a template's parameters above the name of its kernel."""
_TYPES = ("typename", "class")
_GUESS = 64
"""Value of a template argument that is a macro without a definition in the file."""
_DEVICE_TYPES = {"at::Half": "__half", "at::BFloat16": "__nv_bfloat16", "c10::Half": "__half",
                 "c10::BFloat16": "__nv_bfloat16"}  # fmt: skip
"""Type of torch → type that needs no header of torch."""


class Instantiation:
    """Template arguments of one kernel: in its name for `Launch`, and as genes, fields and types of the draft.

    Args:
        source: the file.
        function: the kernel.
        wanted: name given by the user, perhaps with template arguments.
        launch: the file's launch; None if there is none.
        names: C name → Python text, for the genes of device code.
    """

    def __init__(
        self, source: CudaSource, function: KernelFunction, wanted: str | None, launch: StatedLaunch | None,
        names: Mapping[str, str] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self._source = source
        self._function = function
        self._launch = launch
        given = (wanted or "").partition("<")[2].rpartition(">")[0]
        stated = list(launch.view.template) if launch else []
        values: list[Expr | TypeName] = list(template_arguments(given)) if given else stated
        same = {text_of(one): one for one in stated}
        values = [same.get(text_of(one), one) for one in values]
        for parameter in function.template[len(values) :]:
            values += template_arguments(_default_argument(parameter))
        self.genes: dict[str, DraftGene] = {}
        self.fields: dict[str, DraftField] = {}
        self.hosts: dict[str, tuple[Name, ...]] = {}
        """Field → names in the host code that have its value."""
        self.names: dict[str, str] = {}
        """C name → Python text, for template parameters."""
        self.types: dict[str, str] = {}
        """Template parameter that is a type → the type."""
        self._literals: dict[int, tuple[str, str]] = {}
        pieces, concrete = [], []
        for at, value in enumerate(values if function.template else ()):
            parameter = function.template[min(at, len(function.template) - 1)]
            piece, plain = self._piece(value, parameter, names, stated[at] if at < len(stated) else None)
            pieces.append(piece)
            concrete.append(plain)
            if parameter.type in _TYPES:
                self.types[parameter.name] = plain
        self.entry, self.concrete = (
            f"{function.qualified}<{', '.join(parts)}>" if function.template else function.qualified
            for parts in (pieces, concrete)
        )
        """Kernel name for `Launch`, a format string over `c` and `p`, and the name with the file's arguments."""

    def literals(self, genes: Sequence[DraftGene]) -> dict[int, tuple[str, str]]:
        """Return the numbers that the launch gives for genes of the kernel, without those that several genes have.

        Args:
            genes: the genes of device code.

        Returns:
            Number → Python text of the gene, and the name of the template parameter.
        """
        counts = [gene.default for gene in genes]
        return {number: text for number, text in self._literals.items() if counts.count(number) < 2}

    def _piece(
        self, value: Expr | TypeName, parameter: TemplateParameter, names: Mapping[str, str], host: object
    ) -> tuple[str, str]:
        """Return the text of a template argument for `Launch`, and with the file's values."""
        if isinstance(value, TypeName) and parameter.type not in _TYPES and not value.arguments:
            value = Name(value.name, "unknown")
        if isinstance(value, TypeName):
            return self._type(value, parameter, names)
        known = names.get(value.text) if isinstance(value, Name) else None
        plain = self._number(value, parameter)
        if known is not None and known.startswith("c."):
            self.names.setdefault(parameter.name, known)
            return f"{{{known}}}", plain
        unknown = isinstance(value, Name) and value.kind == "unknown" and re.fullmatch(r"\w+", plain) is not None
        if unknown and re.search(rf"\b{plain}\s*\(", self._source.text):
            return plain, plain  # a function
        if unknown and not plain.isdigit() and plain not in ("true", "false"):
            plain = str(_GUESS)
        if not plain.lstrip("-").isdigit() and plain not in ("true", "false"):
            return plain, plain
        if self._field(value, parameter) or self._same_name(value, parameter):
            return f"{{p.{parameter.name.upper()}}}", plain
        text = self._gene(value, parameter, plain, "the file contains no value" if unknown else "")
        for one in (value, host):
            if isinstance(one, Name):
                self.names.setdefault(one.text, text)
        self.names.setdefault(parameter.name, text)
        if isinstance(value, int) and value > 1:
            self._literals.setdefault(value, (text, parameter.name))
        return f"{{{text}}}", plain

    def _type(self, value: TypeName, parameter: TemplateParameter, names: Mapping[str, str]) -> tuple[str, str]:
        if value.arguments:
            both = []
            for one in value.arguments:
                name = one.text if isinstance(one, Name) else parameter.name
                inner = TemplateParameter("typename" if isinstance(one, TypeName) else "int", name.rstrip("_"), None)
                both.append(self._piece(one, inner, names, None))
            return tuple(f"{value.name}<{', '.join(parts)}>" for parts in zip(*both, strict=True))  # type: ignore[return-value]
        text = self._actual(value.name)
        return text, text

    def _actual(self, name: str) -> str:
        """Return the type that callers or a dispatch macro give a template parameter of the host code."""
        if self._launch is None:
            return name
        view = self._launch.view
        if name in view.types or (view.bindings.get(name) == TypeName(name)):
            for other in self._launch.views:
                bound = other.bindings.get(name)
                if isinstance(bound, TypeName) and bound != TypeName(name) and bound.name not in other.types:
                    return str(bound)
            dispatched = [t for one in (view, *self._launch.views) for t in one.types.get(name, ())]
            name = dispatched[0] if dispatched else "float"
        return _DEVICE_TYPES.get(name, name)

    def _number(self, value: Expr, parameter: TemplateParameter) -> str:
        """Return the number of a template argument in the file, or its text."""
        found = next(iter(self._bound(value)), None)
        if found is None:
            found = number(value)
        if found is None:
            return (
                _default_argument(parameter) if isinstance(value, Name) and value.kind == "template" else text_of(value)
            )
        flag = parameter.type.replace("const", "").strip() == "bool"
        return str(bool(found)).lower() if flag else str(found)

    def _bound(self, value: Expr) -> Iterator[int]:
        """Yield the numbers that the file's instantiations give a template parameter of the host code."""
        if isinstance(value, Name) and self._launch is not None:
            for view in self._launch.views:
                bound = view.bindings.get(value.text)
                if isinstance(bound, int | Name | Arithmetic) and (known := number(bound)) is not None:
                    yield known

    def _gene(self, value: Expr, parameter: TemplateParameter, plain: str, unknown: str) -> str:
        name = parameter.name or f"T_{len(self.genes)}"
        flag = plain in ("true", "false")
        default = int(plain == "true") if flag else int(plain)
        listed = sorted({*self._bound(value), *self._siblings(parameter)})
        values: tuple[int, ...]
        if flag:
            values, why = (0, 1), ""
        elif len(listed) > 1 and default in listed:
            values, why = tuple(listed), ""
        else:
            values, why = values_of(default, self._comments(value, parameter))
            why = unknown or why
        self.genes.setdefault(name, DraftGene(name, values, default, why, "", "template"))
        return f"c.{name}"

    def _comments(self, value: Expr, parameter: TemplateParameter) -> Iterator[str]:
        """Yield the comments on a template parameter, and on the host's constant that is its argument."""
        last, file = self._function.line, self._function.file
        for line in range(max(1, last - _LINES_OF_HEAD), last + 1):
            yield from comments_on(self._source, parameter.name, line, file)
        if isinstance(value, Name) and value.kind == "constant":
            for at, text in enumerate(self._source.text.split("\n"), 1):
                if re.search(rf"\b{re.escape(value.text)}\s*=", text):
                    yield from comments_on(self._source, value.text, at, "")

    def _siblings(self, parameter: TemplateParameter) -> Iterator[int]:
        """Yield the numbers that all launches of the kernel give for a template parameter."""
        at = next((at for at, one in enumerate(self._function.template) if one is parameter), None)
        for one in self._launches() if at is not None else ():
            if at is not None and at < len(one.template) and (known := _whole(one.template[at])) is not None:
                yield known

    def _launches(self) -> Sequence[HostLaunch]:
        return (self._launch.view, *self._launch.siblings) if self._launch is not None else ()

    def _field(self, value: Expr, parameter: TemplateParameter) -> bool:
        """Note a field if the host code compares one of its numbers with the template argument of each launch."""
        at = next((at for at, one in enumerate(self._function.template) if one is parameter), None)
        if self._launch is None:
            return False
        found: dict[Name, list[int]] = {}
        if isinstance(value, int) and at is not None:
            for one in self._launches():
                known = _whole(one.template[at]) if at < len(one.template) else None
                for host in _compared(one.conditions, known):
                    found.setdefault(host, []).append(known or 0)
        elif isinstance(value, Name):
            for one in self._launch.views:
                bound = one.bindings.get(value.text)
                for host in _compared(one.conditions, bound if isinstance(bound, int) else None):
                    found.setdefault(host, []).append(bound if isinstance(bound, int) else 0)
        if not found:
            return False
        host, numbers = max(found.items(), key=lambda item: len(item[1]))
        self._add_field(
            parameter.name, tuple(dict.fromkeys(numbers)), (host, value) if isinstance(value, Name) else (host,)
        )
        return True

    def _same_name(self, value: Expr, parameter: TemplateParameter) -> bool:
        """Note a field if the host function has a number of the template parameter's name, which the launch fixes."""
        if not isinstance(value, int) or self._launch is None:
            return False
        passed = self._launch.view.arguments
        for name, host in self._launch.view.given.items():
            if (
                name.strip("_").lower() == parameter.name.strip("_").lower()
                and isinstance(host, Name)
                and host not in passed
            ):
                self._add_field(parameter.name, (value,), (host,))
                return True
        return False

    def _add_field(self, name: str, choices: tuple[int, ...], hosts: tuple[Name, ...]) -> None:
        text = name.upper()
        self.fields[text] = DraftField(text, choices=choices, default=choices[0])
        self.hosts[text] = hosts
        self.names[name] = f"p.{text}"


def _whole(value: object) -> int | None:
    return number(value) if isinstance(value, int | Name | Arithmetic) else None


def _compared(conditions: Sequence[Expr], value: int | None) -> Iterator[Name]:
    """Yield the host's numbers that conditions compare with a value."""
    for one in conditions:
        match one:
            case Arithmetic("==", (Name(kind="parameter" | "extent" | "local") as name, int() as other)) if (
                other == value
            ):
                yield name


def _default_argument(parameter: TemplateParameter) -> str:
    if parameter.default is not None:
        return parameter.default
    return "float" if parameter.type in _TYPES else "true" if parameter.type == "bool" else "32"
