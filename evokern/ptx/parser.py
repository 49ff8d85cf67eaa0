"""Parser that converts PTX text to module records.

Reads the output of NVRTC 12 and 13, with and without line information. The parser rejects only text that is not PTX.
`evokern.ptx.lowering` decides for each entry which instructions the machine can run.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace

from evokern.compile.launch_attributes import read_directives
from evokern.errors import SourceError
from evokern.ptx.lines import LineTable
from evokern.ptx.literals import read_integer, split_top
from evokern.ptx.syntax import (
    TYPE_BYTES,
    Address,
    Function,
    Immediate,
    Instruction,
    Operand,
    Pair,
    Register,
    Sink,
    Symbol,
    Variable,
    Vector,
)

_COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_PIECE = re.compile(r"[;{}\n]|[^;{}\n]+")
_LABEL = re.compile(r"\s*([A-Za-z_$%][\w$]*)\s*:(?!:)\s*")
_LOC = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)\s+(\d+)(?:.*?inlined_at\s+(\d+)\s+(\d+)\s+(\d+))?")
_FILE = re.compile(r'\s*\.file\s+(\d+)\s+"((?:[^"\\]|\\.)*)"')
_DECLARATION = re.compile(r"\.(global|const|shared|local|param)\b")
WARP_LANES = 32
"""Threads of a warp, `WARP_SZ` in PTX."""
_VARIABLE = re.compile(r"([A-Za-z_$%][\w$.]*)\s*((?:\[[^\]]*\]\s*)*)(?:=\s*(.*))?$", re.DOTALL)


class Parser:
    """Parser for one PTX text; the parser's attributes contain the results."""

    def __init__(self, text: str, source_name: str, headers: Mapping[str, str] | None = None) -> None:
        self.lines = LineTable(source_name, headers or {})
        self.functions: dict[str, Function] = {}
        self.variables: dict[str, Variable] = {}
        self.target = ""
        self.version = ""
        self._scopes: list[dict[str, str]] = []
        self._labels: list[tuple[int, dict[str, str]]] = []
        """For each scope, its first instruction, and its labels with their names in the function."""
        self._scope_count = 0
        self._function: Function | None = None
        self._location = -1
        self._operands: dict[str, Operand] = {}
        self._line = 0
        self._run(_COMMENT.sub(lambda match: match[0] if match[0][0] == '"' else "\n" * match[0].count("\n"), text))

    def _run(self, text: str) -> None:
        statement: list[str] = []
        depth = 0
        skip = 0
        self._line = 1
        for piece in _PIECE.findall(text):
            if piece == "\n":
                self._line += 1
                if statement:
                    statement.append(" ")
                continue
            if skip:
                skip += (piece == "{") - (piece == "}")
                statement = []
                continue
            if piece == ";" and depth == 0:
                self._statement("".join(statement).strip())
                statement = []
                continue
            if piece == "{":
                head = "".join(statement).strip()
                if depth == 0 and not head:
                    self._open_scope()
                    continue
                if depth == 0 and self._function is None and re.search(r"\.(entry|func)\b", head):
                    self._begin_function(head, body=True)
                    statement = []
                    continue
                if depth == 0 and head.startswith(".section"):
                    skip = 1
                    statement = []
                    continue
                depth += 1
                statement.append(piece)
                continue
            if piece == "}":
                if depth:
                    depth -= 1
                    statement.append(piece)
                else:
                    self._close_scope()
                continue
            if not statement:
                rest = self._lead(piece)
                if rest.strip():
                    statement.append(rest)
            else:
                statement.append(piece)
        if self._function is not None:
            raise SourceError(f"PTX line {self._line}: unexpected end of the text inside {self._function.name}")
        if "".join(statement).strip():
            raise SourceError(
                f"PTX line {self._line}: unexpected end of the text inside {''.join(statement).strip()[:60]!r}"
            )

    def _lead(self, piece: str) -> str:
        """Consume labels and line directives at the start of a statement."""
        stripped = piece.lstrip()
        if stripped.startswith("."):
            word = stripped.split(None, 1)[0]
            if word == ".loc":
                match = _LOC.match(piece)
                if match is None:
                    raise SourceError(f"PTX line {self._line}: cannot parse .loc directive: {stripped[:80]!r}")
                outer = (int(match[4]), int(match[5]), int(match[6])) if match[4] else None
                self._location = self.lines.add(int(match[1]), int(match[2]), int(match[3]), outer)
                return ""
            if word == ".file":
                match = _FILE.match(piece)
                if match is not None:
                    self.lines.files[int(match[1])] = match[2]
                return ""
            if word in (".version", ".target", ".address_size"):
                value = stripped.split(None, 1)[1].strip()
                if word == ".version":
                    self.version = value
                elif word == ".target":
                    self.target = value.split(",")[0].strip()
                return ""
            return piece
        match = _LABEL.match(piece)
        while match is not None and self._function is not None:
            label, rest = match[1], piece[match.end() :]
            if rest.startswith((".branchtargets", ".calltargets", ".callprototype")):
                return f"{label}: {rest}"
            name = f"{label}@{self._line}.{len(self._function.instructions)}" if self._labels else label
            if self._labels:
                self._labels[-1][1][label] = name
            self._function.labels[name] = len(self._function.instructions)
            self.lines.begin_block()
            piece = rest
            match = _LABEL.match(piece)
        return piece

    def _open_scope(self) -> None:
        self._scope_count += 1
        self._scopes.append({})
        self._labels.append((len(self._function.instructions) if self._function is not None else 0, {}))

    def _close_scope(self) -> None:
        if self._scopes:
            self._scopes.pop()
            self._operands.clear()
            self._rename_labels(*self._labels.pop())
        elif self._function is not None:
            self._function = None
        else:
            raise SourceError(f"PTX line {self._line}: closing brace without an opening brace")

    def _rename_labels(self, first: int, names: dict[str, str]) -> None:
        """Let the branches of a scope that ends lead to its own labels, which hide those outside it."""
        if self._function is None or not names:
            return
        instructions = self._function.instructions
        for at in range(first, len(instructions)):
            operands = instructions[at].operands
            if any(isinstance(item, Symbol) and item.name in names for item in operands):
                renamed = (
                    Symbol(names.get(item.name, item.name), item.offset) if isinstance(item, Symbol) else item
                    for item in operands
                )
                instructions[at] = replace(instructions[at], operands=tuple(renamed))

    def _statement(self, text: str) -> None:
        if not text:
            return
        if text[0] == ".":
            if self._function is None:
                self._module_statement(text)
            else:
                self._function_statement(text)
            return
        if self._function is None:
            raise SourceError(f"PTX line {self._line}: instruction outside a function: {text[:60]!r}")
        label = re.match(r"([\w$]+):\s*\.(branchtargets|calltargets|callprototype)\b(.*)", text, re.DOTALL)
        if label is not None:
            targets = split_top(label[3]) if label[2] != "callprototype" else []
            self._function.branch_targets[label[1]] = tuple(targets)
            return
        self._function.instructions.append(self._instruction(text))

    def _module_statement(self, text: str) -> None:
        if re.search(r"\.(entry|func)\b", text):
            self._begin_function(text, body=False)
        elif _DECLARATION.search(text):
            for variable in self._variable(text):
                self.variables.setdefault(variable.name, variable)
        elif re.match(r"\.(pragma|alias|weak|visible|extern)\b", text):
            return
        elif re.search(r"\.(texref|samplerref|surfref)\b", text):
            raise SourceError(f"PTX line {self._line}: texture and surface references are not supported: {text[:60]!r}")
        else:
            raise SourceError(f"PTX line {self._line}: cannot parse directive: {text[:60]!r}")

    def _function_statement(self, text: str) -> None:
        assert self._function is not None
        function = self._function
        if text.startswith(".reg"):
            self._declare_registers(text)
        elif text.startswith((".pragma", ".maxntid", ".noreturn")):
            return
        elif _DECLARATION.match(text) or text.startswith((".extern", ".volatile")):
            for variable in self._variable(text):
                name = variable.name
                if self._scopes:
                    name = f"{name}@{self._scope_count}"
                    self._scopes[-1][variable.name] = name
                    self._operands.clear()
                    variable = Variable(
                        name,
                        variable.space,
                        variable.type,
                        variable.align,
                        variable.size,
                        variable.data,
                        variable.pointers,
                        variable.extern,
                    )
                if variable.space in ("global", "const"):
                    self.variables[name] = variable
                else:
                    function.locals[name] = variable
        else:
            raise SourceError(f"PTX line {self._line}: cannot parse directive: {text[:60]!r}")

    def _declare_registers(self, text: str) -> None:
        assert self._function is not None
        match = re.match(r"\.reg((?:\s*\.\w+)+)\s+(.*)$", text, re.DOTALL)
        if match is None:
            raise SourceError(f"PTX line {self._line}: cannot parse register declaration: {text[:60]!r}")
        kind = re.findall(r"\w+", match[1])[-1]
        words = match[2].strip()
        for name in split_top(words):
            if "<" in name:
                self._function.ranges[name[: name.index("<")]] = kind
            elif self._scopes:
                unique = f"{name}@{self._scope_count}"
                self._scopes[-1][name] = unique
                self._operands.clear()
                self._function.registers[unique] = kind
            else:
                self._function.registers[name] = kind

    def _begin_function(self, head: str, *, body: bool) -> None:
        match = re.search(r"\.(entry|func)\b(?:\s+\.\w+)*\s*(\(.*?\))?\s*([\w$.]+)\s*(\(.*?\))?(.*)$", head, re.DOTALL)
        if match is None:
            raise SourceError(f"PTX line {self._line}: cannot parse function header: {head[:80]!r}")
        name = match[3]
        params = self._formal(match[4])
        returns = self._formal(match[2])
        function = Function(name, match[1] == "entry", params, returns, has_body=body)
        function.directives = read_directives(match[5])
        if body or name not in self.functions:
            self.functions[name] = function
        if body:
            self._function = function
            self._location = -1
            self._operands.clear()

    def _formal(self, text: str | None) -> list[Variable]:
        if not text:
            return []
        found: list[Variable] = []
        for item in split_top(text.strip()[1:-1]):
            if item.startswith(".reg"):
                raise SourceError(f"PTX line {self._line}: parameters in registers are not supported: {item!r}")
            found.extend(self._variable(item))
        return found

    def _variable(self, text: str) -> Iterator[Variable]:
        words = text
        extern = False
        space = type_name = ""
        align = 0
        vector = 1
        while words.startswith("."):
            head = re.match(r"\.(\w+)(?:\s*::\w+)?\s*", words)
            assert head is not None
            word, words = head[1], words[head.end() :]
            if word == "extern":
                extern = True
            elif word in ("global", "const", "shared", "local", "param"):
                space = word
            elif word == "align":
                number = re.match(r"(\d+)\s*", words)
                assert number is not None
                align, words = int(number[1]), words[number.end() :]
            elif word in ("v2", "v4"):
                vector = int(word[1])
            elif word == "ptr":
                words = re.sub(r"^(\.(global|shared|const|local)\s*)?", "", words)
            elif word in TYPE_BYTES:
                type_name = word
            elif word in ("visible", "weak", "common", "attribute", "unified", "managed"):
                words = re.sub(r"^\([^)]*\)\s*", "", words)
            else:
                raise SourceError(f"PTX line {self._line}: unknown keyword .{word} in {text[:60]!r}")
        if not type_name:
            raise SourceError(f"PTX line {self._line}: variable has no type: {text[:60]!r}")
        element = TYPE_BYTES[type_name] * vector
        for item in split_top(words):
            match = _VARIABLE.match(item)
            if match is None:
                raise SourceError(f"PTX line {self._line}: cannot parse variable: {item[:60]!r}")
            count = 1
            unbounded = False
            for bound in re.findall(r"\[([^\]]*)\]", match[2]):
                if bound.strip():
                    count *= int(bound)
                else:
                    unbounded = True
            data, pointers = self._initialiser(match[3], type_name) if match[3] else (b"", ())
            size = max(len(data), 0 if unbounded and extern else element * count)
            if unbounded and not extern:
                size = len(data)
            if data:
                data = data.ljust(size, b"\0")
            yield Variable(match[1], space, type_name, align or element, size, data, pointers, extern and unbounded)

    def _initialiser(self, text: str, type_name: str) -> tuple[bytes, tuple[tuple[int, str, int, bool], ...]]:
        size = TYPE_BYTES[type_name]
        data = bytearray()
        pointers = []
        for item in split_top(text.replace("{", "").replace("}", "")):
            number = read_integer(item)
            if number is not None:
                if type_name[0] == "f":
                    data += struct.pack({2: "<e", 4: "<f", 8: "<d"}[size], float(number))
                else:
                    data += (number & (1 << 8 * size) - 1).to_bytes(size, "little")
            elif item[:2] in ("0f", "0F"):
                data += int(item[2:], 16).to_bytes(4, "little")
            elif item[:2] in ("0d", "0D"):
                data += int(item[2:], 16).to_bytes(8, "little")
            elif re.match(r"[+-]?[\d.]", item):
                data += struct.pack({4: "<f", 8: "<d"}[size], float(item))
            else:
                mask = re.match(r"0xFF\((.*)\)$", item)
                if mask is not None:
                    raise SourceError(
                        f"PTX line {self._line}: byte-wise address initialisers are not supported: {item!r}"
                    )
                generic = re.match(r"generic\((.*)\)\s*(?:\+\s*(\d+))?$", item)
                inner = generic[1] if generic is not None else item
                symbol = re.match(r"([\w$.]+)\s*(?:\+\s*(\d+))?$", inner.strip())
                if symbol is None:
                    raise SourceError(f"PTX line {self._line}: cannot parse initialiser: {item!r}")
                addend = int(symbol[2] or 0) + int(generic[2] or 0 if generic is not None else 0)
                pointers.append((len(data), symbol[1], addend, generic is not None))
                data += bytes(size)
        return bytes(data), tuple(pointers)

    def _instruction(self, text: str) -> Instruction:
        guard: Register | None = None
        body = text
        if body[0] == "@":
            head, body = body.split(None, 1)
            guard = Register(self._resolve(head.lstrip("@!")), head[1] == "!")
        parts = body.split(None, 1)
        words = parts[0].split(".")
        operands = tuple([self._operand(item) for item in split_top(parts[1])]) if len(parts) > 1 else ()
        return Instruction(
            words[0], tuple(words[1:]), operands, guard, self._location, " ".join(text.split()), self._line
        )

    def _resolve(self, name: str) -> str:
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        return name

    def _operand(self, text: str) -> Operand:
        known = self._operands.get(text)
        if known is None:
            known = self._operands[text] = self._read_operand(text)
        return known

    def _read_operand(self, text: str) -> Operand:
        first = text[0] if text else ""
        if first == "[":
            return self._address(text[1:-1].strip())
        if first in "{(":
            return Vector(tuple(self._operand(item) for item in split_top(text[1:-1])))
        if text == "_":
            return Sink()
        if text == "WARP_SZ":  # The ISA predefines this constant (section 4.5.4).
            return Immediate(WARP_LANES, "int")
        if "|" in text:
            left, right = text.split("|", 1)
            return Pair(self._operand(left.strip()), self._operand(right.strip()))
        if first == "!":
            return Register(self._resolve(text[1:].strip()), True)
        if text[:2] in ("0f", "0F") and len(text) == 10:
            return Immediate(int(text[2:], 16), "f32")
        if text[:2] in ("0d", "0D") and len(text) == 18:
            return Immediate(int(text[2:], 16), "f64")
        number = read_integer(text)
        if number is not None:
            return Immediate(number, "int")
        if re.match(r"[+-]?\d*\.\d*([eE][+-]?\d+)?$", text) and any(character.isdigit() for character in text):
            return Immediate(float(text), "real")
        match = re.match(r"([A-Za-z_$%][\w$.]*)\s*(?:\+\s*(-?\w+))?$", text)
        if match is None:
            raise SourceError(f"PTX line {self._line}: cannot parse operand: {text!r}")
        name = self._resolve(match[1])
        assert self._function is not None
        if match[2] is None and (name[0] == "%" or self._function.register_type(name) is not None):
            return Register(name)
        return Symbol(name, read_integer(match[2]) or 0 if match[2] else 0)

    def _address(self, text: str) -> Operand:
        if "," in text:
            base, _, inside = (part.strip() for part in text.partition(","))
            if inside[:1] != "{" or inside.find("}") < len(inside) - 1:
                return Symbol(f"[{text}]", 0)  # Coordinates of a texture; an entry that uses them is rejected later.
            address, coordinates = self._address(base), self._operand(inside)
            assert isinstance(address, Address) and isinstance(coordinates, Vector)
            return Address(address.base, address.offset, coordinates)
        match = re.match(r"([%A-Za-z_$][\w$.]*)\s*(?:([+-])\s*(-?\w+))?$", text)
        if match is None:
            number = read_integer(text)
            if number is None:
                raise SourceError(f"PTX line {self._line}: cannot parse address: [{text}]")
            return Address(None, number)
        name = self._resolve(match[1])
        offset = read_integer(match[3]) if match[3] else 0
        if offset is None:
            raise SourceError(f"PTX line {self._line}: cannot parse address: [{text}]")
        if match[2] == "-":
            offset = -offset
        assert self._function is not None
        if self._function.register_type(name) is not None:
            return Address(Register(name), offset)
        return Address(Symbol(name), offset)
