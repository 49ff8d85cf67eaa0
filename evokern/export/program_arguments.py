"""Command line of an exported program: its usage text, and the C++ code that reads the arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from evokern.escaping import c_string
from evokern.export.formula import member
from evokern.export.golden import Golden
from evokern.export.trace import Traces

_PARSE_SHAPE = r"""bool parse_shape(const char* text, Shape& shape) {
  long long* fields[] = {@FIELDS@};
  const size_t count = sizeof(fields) / sizeof(fields[0]);
  char* end = const_cast<char*>(text);
  for (size_t i = 0; i < count; i++) {
    const char* start = end;
    *fields[i] = std::strtoll(start, &end, 10);
    if (end == start || *end != (i + 1 < count ? ',' : '\0')) return false;
    end++;
  }
  return true;
}
"""
_PARSE_SEED = r"""bool parse_seed(const char* text, unsigned long long& seed) {
  char* end = nullptr;
  seed = std::strtoull(text, &end, 10);
  return *text >= '0' && *text <= '9' && *end == '\0';
}
"""
_WHOLE_OPTION = """ else if (std::strcmp(argv[i], "--whole") == 0) {
      whole = true;
    }"""
_REFUSED = "2 invalid arguments, or a shape that is not supported or too large; 3 CUDA error"


@dataclass(frozen=True)
class ProgramArguments:
    """Arguments that a program takes; one of a single shape takes none, and one with golden inputs needs no seed."""

    fields: tuple[str, ...]
    """Fields of the shape."""
    example: str
    """The study's shape, as an argument."""
    whole: bool
    """Whether a long check samples."""
    golden: str
    """Name of the golden file; empty if there is none."""
    checked: bool
    """Whether the program has a check."""

    @classmethod
    def of(
        cls, traces: Traces, problem: Mapping[str, object], golden: Golden | None, *, sampled: bool, written: bool
    ) -> ProgramArguments:
        """Return the arguments of a program.

        Args:
            traces: the traced shape.
            problem: problem of the search.
            golden: its golden file.
            sampled: whether a long check samples.
            written: whether it has a C++ reference.
        """
        example = ",".join(str(problem[name]) for name in traces.fields)
        name = golden.file_name if golden else ""
        return cls(tuple(traces.fields), example, sampled, name, written or golden is not None)

    @property
    def seeded(self) -> bool:
        """Whether a seed changes the inputs."""
        return bool(self.fields) or not self.golden

    @property
    def usage(self) -> str:
        """The arguments in the usage line."""
        optional = {"--check": True, "--whole": self.whole, "SHAPE": bool(self.fields), "SEED": self.seeded}
        return " ".join(f"[{name}]" for name, takes in optional.items() if takes)

    @property
    def verdict(self) -> str:
        """Last line that the program prints."""
        return "PASS (exit 0) or FAIL (exit 1)" if self.checked else "NOT CHECKED (exit 0)"

    @property
    def check_words(self) -> str:
        """Effect of `--check`."""
        if not self.checked:
            return "run one call, without timing"
        against = f"the values in {self.golden}" if self.golden else "the reference"
        return f"compare one call with {against}, without timing"

    def parts(self) -> dict[str, str]:
        """Return the parts of the program's template."""
        shape = [f"SHAPE    {','.join(self.fields)}, for example {self.example}"]
        inputs = "the random inputs at another shape" if self.golden else "the random inputs"
        lines = [f"--check  {self.check_words} (for compute-sanitizer)"]
        lines += [*shape * bool(self.fields), *[f"SEED     seed for {inputs}, an integer (default: 1)"] * self.seeded]
        printed = [f'  std::fprintf(file, "  %s\\n", {c_string(line)});' for line in lines]
        if self.whole:
            text = r'"  --whole  check every element, even if the reference takes over %g s\n", WHOLE_S'
            printed.insert(1, f"  std::fprintf(file, {text});")
        codes = f"exit code: {'0 PASS; 1 FAIL' if self.checked else '0 done, not checked'}; {_REFUSED}"
        printed.append(f'  std::fprintf(file, "%s\\n", {c_string(codes)});')
        words = [f"parse_shape(words[{0}], shape)"] * bool(self.fields)
        words += [f"parse_seed(words[{len(words)}], seed)"] * self.seeded
        failing = [f"(words.size() > {at} && !{call})" for at, call in enumerate(words)]
        addresses = ", ".join(f"&shape.{member(name)}" for name in self.fields)
        return {
            "usage": self.usage,
            "help": "\n".join(printed),
            "parse_shape": _PARSE_SHAPE.replace("@FIELDS@", addresses) if self.fields else "",
            "parse_seed": _PARSE_SEED if self.seeded else "",
            "bad_words": " ||\n      ".join([f"words.size() > {len(words)}", *failing]),
            "whole_option": _WHOLE_OPTION if self.whole else "",
        }
