"""Compiling: programs and what they use, what refuses to compile, one identity of equal code, the cache, the pool."""

from __future__ import annotations

import ctypes
import hashlib
import os
import pickle
import time
from dataclasses import replace
from pathlib import Path

import pytest
from paths import DATA

from evokern import ownership
from evokern.compile.build import Target, build, compile_internal
from evokern.compile.cache import CompileCache, default_directory, program_key
from evokern.compile.elf import parameter_sizes, sections
from evokern.compile.fingerprint import code_digest, fingerprint
from evokern.compile.isolated import compile_ptx
from evokern.compile.nvrtc import compile_program, compiler_version
from evokern.compile.pool import PRELOAD, CompileSettings, compile_spec
from evokern.compile.records import Built, CompileFailure, EntryUse, ProblemBuild, Program, entry_uses, failure
from evokern.declaration.kernel import Launch, Problem, Tensor, f32, i32, i64
from evokern.device.gpu import between_calls, timed_calls
from evokern.errors import DeviceError, InternalError, KernelError, UsageError
from evokern.hardware.profiles import chip
from evokern.study.discovery import WorkerContext, load_kernel
from evokern.study.trial import Evaluation, Outcome
from evokern.workers.pool import ForkServer, WorkerPool, wait

FOLDER = DATA / "kernels" / "scale_rows"
SOURCE = """{head}
extern "C" __global__ void plain(float* x) {{ x[threadIdx.x] *= {factor}; }}
template <int N> __global__ void family(float* x) {{ x[threadIdx.x] += N % 4; }}
"""


def compiled(
    head: str = "",
    factor: str = "3.0f",
    entries: tuple[str, ...] = ("plain",),
    name: str = "kernel.cu",
    **options: object,
) -> Program:
    program = compile_program(SOURCE.format(head=head, factor=factor), name, {}, (), entries, "sm_89", **options)  # type: ignore[arg-type]
    assert isinstance(program, Program), program
    return program


def test_a_program_has_code_symbols_and_what_it_uses() -> None:
    """NVRTC without a GPU gives machine code, the symbols of templates too, and what every entry uses."""
    program = compiled(entries=("plain", "family<7>"))
    assert program.cubin[:4] == b"\x7fELF"
    assert dict(program.lowered) == {"plain": "plain", "family<7>": "_Z6familyILi7EEvPf"}
    assert all(use.registers > 0 for use in program.uses.values())
    assert ".target sm_89" in program.ptx


@pytest.mark.parametrize(
    ("source", "entry", "message", "line"),
    [
        ("\n#error NEED is missing\n", "k", "kernel.cu:2: #error directive: NEED is missing", 2),
        ("\n\n__global__ void k() { y = 3; }", "k", 'kernel.cu:3: identifier "y" is undefined', 3),
        ('#include "own.h"\n__global__ void k() {}', "k", 'own.h:2: identifier "z" is undefined', 2),
        (
            "__global__ void k() {}",
            "other",
            "no entry point 'other': identifier \"other\" is undefined",
            None,
        ),
        (
            "__global__ void k() {}",
            "k<float>",
            "no entry point 'k<float>': type name is not allowed",
            None,
        ),
        (
            "struct T { }; template <class A> __global__ void t(A* a) { a->x = 1; }",
            "t<T>",
            'kernel.cu:1: class "T" has no member "x"',
            1,
        ),
        ('__global__ void k() { asm volatile("foo.bar;"); }', "k", "Unknown modifier '.bar'", None),
    ],
)
def test_a_refusal_names_the_first_error(source: str, entry: str, message: str, line: int | None) -> None:
    """The first error comes back in one line with file and line; the whole log stays."""
    refusal = compile_program(source, "kernel.cu", {"own.h": "\nint a = z;\n"}, (), (entry,), "sm_89")
    assert isinstance(refusal, CompileFailure)
    assert message in refusal.message
    assert refusal.line == line
    assert refusal.log


def test_too_much_static_shared_memory_is_a_limit_not_a_mistake() -> None:
    """Static shared memory over 48 KB is told apart from a compile error, with needed and available."""
    source = (
        "__global__ void k(float* x) { __shared__ float s[20000]; s[threadIdx.x] = *x; __syncthreads(); *x = s[3]; }"
    )
    refusal = compile_program(source, "kernel.cu", {}, (), ("k",), "sm_89")
    assert isinstance(refusal, CompileFailure)
    assert refusal.constraint == "static_shared_memory"
    assert refusal.need is not None
    assert (refusal.need.needed, refusal.need.available) == (80_000, 49_152)


def test_ptx_alone_carries_line_information() -> None:
    """A simulated device gets PTX for its chip with the source's lines."""
    program = compile_ptx(SOURCE.format(head="", factor="2.0f"), "kernel.cu", {}, (), ("plain",), (8, 9))
    assert isinstance(program, Program)
    assert program.cubin == b""
    assert ".loc" in program.ptx


LOG = """ptxas info    : Compiling entry function 'a' for 'sm_90'
ptxas info    : Function properties for a
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 1024 bytes smem, 400 bytes cmem[0]
ptxas info    : Function properties for called
    99 bytes stack frame, 99 bytes spill stores, 99 bytes spill loads
ptxas info    : Compiling entry function 'b' for 'sm_90'
ptxas info    : Function properties for b
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, 400 bytes cmem[0]
"""


def test_the_assemblers_report_is_read_per_entry() -> None:
    """Registers, spills, stack and shared memory belong to their entry, not to a function that it calls."""
    expected = {"a": EntryUse(255, 20, 16, 1024), "b": EntryUse(8, 0, 0, 0)}
    assert entry_uses(LOG) == expected
    assert failure("", "NVRTC_ERROR_OUT_OF_MEMORY", 0.0).message == "NVRTC_ERROR_OUT_OF_MEMORY"


def test_serialised_products_are_read_per_function() -> None:
    """The function is named whose products of warpgroups wait for one another; that stands before the entries."""
    advisory = (
        "ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized due to "
        "insufficient register resources for the wgmma pipeline in the function 'b' in line 7\n"
    )
    uses = entry_uses(advisory + LOG)
    assert (uses["a"].products_wait, uses["b"].products_wait) == (False, True)


def test_equal_machine_code_has_one_identity_whatever_it_is_called() -> None:
    """File name, macros, comments, lines and a template's symbol do not count; instructions do."""
    plain = code_digest(compiled(), ["plain"])
    renamed = compiled(head="// words\n#define UNUSED 1\n", factor="(1.0f + 2.0f)", name="other.cu")
    assert code_digest(renamed, ["plain"]) == plain
    assert code_digest(compiled(factor="4.0f"), ["plain"]) != plain
    three, seven, two = (code_digest(compiled(entries=(f"family<{n}>",)), [f"family<{n}>"]) for n in (3, 7, 2))
    assert three == seven
    assert three != two


def test_an_entry_that_is_not_launched_does_not_count() -> None:
    """Only what a candidate launches is the candidate."""
    one = code_digest(compiled(entries=("plain", "family<1>")), ["plain"])
    other = code_digest(compiled(entries=("plain", "family<2>")), ["plain"])
    assert one == other


def test_every_part_of_a_launch_is_part_of_the_identity() -> None:
    """Grid, block, dynamic shared memory, arguments, attributes and a buffer's shape each tell candidates apart."""
    program = compiled()
    base = Launch("plain", (4,), (32,), ("x", i32(3)))
    buffers = {"x": Tensor("f32", (8,)), "unused": Tensor("f32", (9,))}

    def identity(launch: Launch, tensors: dict[str, Tensor] = buffers) -> str:
        return fingerprint([program], [ProblemBuild(Problem({}), (launch,), 0)], [tensors])

    variants = [
        base,
        replace(base, grid=(5,)),
        replace(base, block=(64,)),
        replace(base, shared_bytes=16),
        replace(base, args=("x", i32(4))),
        replace(base, args=("x", f32(3))),
        replace(base, cluster=(2, 1, 1)),
    ]
    identities = [identity(variant) for variant in variants] + [identity(base, {"x": Tensor("f32", (16,))})]
    assert len(set(identities)) == len(identities)
    # What only the compiler was told is in the machine code already.
    assert identity(replace(base, min_blocks=3, static_shared_bytes=8)) == identities[0]
    assert identity(base, {"x": buffers["x"]}) == identities[0]


def test_a_launch_whose_arguments_differ_from_the_source_is_the_users_mistake() -> None:
    """Too few arguments, or one of another size, are named before anything is launched."""
    kernel = load_kernel(FOLDER)
    problem = kernel.problem("64,256")
    (launch,) = kernel.launches(kernel.space.default(), problem)
    for args in (launch.args[:-1], (*launch.args[:-1], i64(3))):
        wrong = replace(kernel, launches=lambda c, p, args=args: [replace(launch, args=args)])
        with pytest.raises(KernelError, match=r"takes 5 parameters of \[8, 8, 4, 4, 4\] bytes, but its launch passes"):
            build(wrong, kernel.space.default(), [problem], Target(chip("l4"), None))


@pytest.mark.parametrize("architecture", ["sm_80", "sm_89", "sm_90"])
def test_parameter_sizes_are_read_from_the_machine_code(architecture: str) -> None:
    """Sizes of pointers, numbers and structures come back in order."""
    source = """struct Q { float a[5]; };
    extern "C" __global__ void k(float* x, int n, double d, Q q, char z) { x[n] = d + q.a[3] + z; }"""
    program = compile_program(source, "kernel.cu", {}, (), ("k",), architecture)
    assert isinstance(program, Program)
    assert parameter_sizes(program.cubin, "k") == (8, 4, 8, 20, 1)


def test_what_is_no_cubin_is_refused() -> None:
    """Damaged machine code breaks loudly."""
    with pytest.raises(InternalError):
        list(sections(b"nothing"))


def entry(number: int, size: int = 100) -> Program:
    return Program(bytes([number]) * size, {"k": "k"}, {"k": EntryUse(number)}, f"log {number}", seconds=1.0)


def test_the_cache_returns_what_was_put_without_its_compile_time(tmp_path: Path) -> None:
    """A hit is the same program, with no compile time; another key is a miss."""
    cache = CompileCache(tmp_path)
    cache.put("ab12", entry(1))
    assert CompileCache(tmp_path).get("ab12") == replace(entry(1), seconds=0.0)
    assert cache.get("ab13") is None


def test_each_part_of_the_key_counts() -> None:
    """Source, headers, options, entries, architecture and compiler version each change the address."""
    base = ("source", {"a.h": "x"}, ("-DA=1",), ("k",), "sm_89", "nvrtc 13.0")
    changed = [("other",), ({"a.h": "y"},), (("-DA=2",),), (("j",),), ("sm_90",), ("nvrtc 13.1",)]
    keys = {program_key(*base)} | {program_key(*base[:i], *part, *base[i + 1 :]) for i, part in enumerate(changed)}  # type: ignore[arg-type]
    assert len(keys) == 7


def test_a_damaged_file_is_a_miss_and_goes(tmp_path: Path) -> None:
    """A torn or changed file never becomes a program."""
    cache = CompileCache(tmp_path)
    cache.put("ab12", entry(1))
    path = tmp_path / "programs" / "ab" / "12"
    path.write_bytes(path.read_bytes()[:-5])
    assert cache.get("ab12") is None
    assert not path.exists()


def test_a_program_comes_back_whole(tmp_path: Path) -> None:
    """Code, PTX and messages are kept as they are, whatever bytes and characters they hold."""
    cache = CompileCache(tmp_path)
    whole = Program(
        bytes(range(256)) * 3, {"k<1>": "_Z1k"}, {"k<1>": EntryUse(9, 8, 7, 6)}, 'l\n\udcff"', "ptx\n\u00e9", ("C",)
    )
    cache.put("ab12", whole)
    assert cache.get("ab12") == whole
    real = compiled(entries=("plain", "family<7>"))
    cache.put("ab13", real)
    assert cache.get("ab13") == replace(real, seconds=0.0)


class Payload:
    """What runs when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("ran",)


def test_reading_the_cache_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickle is no program, with the checksum of the format before as well as with the present one's."""
    monkeypatch.chdir(tmp_path)
    cache = CompileCache(tmp_path / "cache")
    path = tmp_path / "cache" / "programs" / "ab" / "12"
    path.parent.mkdir()
    payload = pickle.dumps(Payload())
    for magic, digest in (
        (b"evokern program 2\n", hashlib.sha256(payload)),
        (b"evokern program 4\n", hashlib.sha256(b"ab12\n" + payload)),
    ):
        path.write_bytes(magic + digest.digest() + payload)
        assert cache.get("ab12") is None
    assert not (tmp_path / "ran").exists()


def test_a_program_is_no_other_address_s(tmp_path: Path) -> None:
    """A file that was moved to another address is damage: the checksum is over the address too."""
    cache = CompileCache(tmp_path)
    cache.put("ab12", entry(1))
    (tmp_path / "programs" / "ab" / "12").rename(tmp_path / "programs" / "ab" / "13")
    assert cache.get("ab13") is None


@pytest.mark.parametrize("place", [".", "programs"])
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
def test_a_cache_that_others_may_write_is_refused(
    tmp_path: Path, place: str, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies there would be launched: refused with the value and the remedy."""
    monkeypatch.setattr(ownership, "_only_ours", lambda group: False)
    CompileCache(tmp_path / "cache")
    (tmp_path / "cache" / place).chmod(mode)
    with pytest.raises(UsageError, match=r"unsafe compile cache .* can write to .*`chmod go-w`"):
        CompileCache(tmp_path / "cache")


def test_a_program_that_others_may_write_is_a_miss(tmp_path: Path) -> None:
    """Neither a file that others may change nor a link is read."""
    cache = CompileCache(tmp_path)
    path = tmp_path / "programs" / "ab" / "12"
    cache.put("ab12", entry(1))
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o666)
    assert cache.get("ab12") is None
    cache.put("ab12", entry(1))
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert cache.get("ab12") is None


def test_the_cap_drops_what_was_longest_unread(tmp_path: Path) -> None:
    """Trimming keeps what was read last, and the cap is remembered for other processes."""
    cache = CompileCache(tmp_path)
    for number in range(4):
        cache.put(f"aa{number}", entry(number, 1000))
        os.utime(tmp_path / "programs" / "aa" / str(number), (number, number))
    assert cache.get("aa0") is not None
    size = cache.info().bytes // 4
    cache.set_cap(2 * size + 10)
    assert [number for number in range(4) if cache.get(f"aa{number}")] == [0, 3]
    assert CompileCache(tmp_path).info().cap_bytes == 2 * size + 10
    assert cache.clear() == 2
    assert cache.info().programs == 0


def test_a_cache_that_cannot_be_written_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is a file is the user's mistake; `off` keeps nothing."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(UsageError, match="EVOKERN_CACHE"):
        CompileCache(blocked)
    monkeypatch.setenv("EVOKERN_CACHE", "off")
    assert default_directory() is None
    monkeypatch.setenv("EVOKERN_CACHE", str(tmp_path))
    assert default_directory() == tmp_path


def test_build_compiles_each_distinct_program_once(tmp_path: Path) -> None:
    """Problems that do not change a macro share a program; a second build comes from the cache."""
    kernel = load_kernel(FOLDER)
    problems = [kernel.problem("64,256"), kernel.problem("32,512")]
    target = Target(chip("l4"), CompileCache(tmp_path))
    built = build(kernel, kernel.space.default(), problems, target)
    assert isinstance(built, Built)
    assert len(built.programs) == 1
    assert [one.launches[0].grid for one in built.builds] == [(64, 1, 1), (32, 1, 1)]
    assert built.compile_s > 0
    assert len(built.resources) == 2
    again = build(kernel, kernel.space.default(), problems, target)
    assert isinstance(again, Built)
    assert again.compile_s == 0
    assert again.fingerprint == built.fingerprint


def test_a_candidate_over_the_studys_limits_is_over_resources() -> None:
    """Limits lowered by the study turn a compiled candidate away with needed and available."""
    kernel = load_kernel(FOLDER)
    config = kernel.space.with_changes(kernel.space.default(), {"WARPS": 8})
    outcome = build(kernel, config, [kernel.problem("64,256")], Target(chip("l4").limited(registers_per_sm=4096), None))
    assert isinstance(outcome, Evaluation)
    assert outcome.outcome is Outcome.OVER_RESOURCES
    assert outcome.evidence["constraint"] == "registers_per_block"
    assert outcome.evidence["needed"] > outcome.evidence["available"] == 4096


def test_the_pool_compiles_in_other_processes(tmp_path: Path) -> None:
    """Two workers build what they are asked for, and keep it in one cache."""
    kernel = load_kernel(FOLDER)
    settings = CompileSettings(WorkerContext(FOLDER, (kernel.problem("64,256"),), chip("l4")), tmp_path)
    server = ForkServer(PRELOAD)
    pool = WorkerPool(server, compile_spec(settings), size=2)
    for number in range(3):
        pool.submit(number, kernel.space.with_changes(kernel.space.default(), {"UNROLL": 2**number}), 60.0)
    results = []
    end = time.monotonic() + 60
    while len(results) < 3 and time.monotonic() < end:
        results += wait([pool], 1.0)
    assert sorted((result.key, result.status) for result in results) == [(n, "done") for n in range(3)]
    assert all(isinstance(result.value, Built) for result in results)
    assert pool.ready_report == {"compiler": compiler_version()}
    assert CompileCache(tmp_path).info().programs == 3
    pool.close()
    server.close()


def _digest(source: str) -> str:
    program = compile_program(source, "kernel.cu", {}, (), ("k",), "sm_90")
    assert isinstance(program, Program)
    return code_digest(program, ["k"])


def test_constants_that_nothing_reads_do_not_tell_programs_apart() -> None:
    """The compiler keeps an unread constant in the machine code; two candidates that differ there alone are one."""
    entry = 'extern "C" __global__ void k(float* x) {{ *x = '
    unread = "constexpr int U = {0}; constexpr float T[2] = {{1, {0}}}; " + entry + "2; }}"
    read = "__constant__ float T[2] = {{1, {0}}}; " + entry + "T[threadIdx.x]; }}"
    assert _digest(unread.format(3)) == _digest(unread.format(4))
    assert _digest(read.format(3)) != _digest(read.format(4))


@pytest.mark.parametrize("name", ["l4", "h200"])
def test_own_kernels_compile_and_take_what_they_are_passed(name: str) -> None:
    """Both that a GPU's worker loads; the record of a step has the size of the kernel's parameter."""
    source, entry = timed_calls.SOURCE.read_text(), timed_calls._ENTRY
    step = compile_internal(source, timed_calls.SOURCE.name, entry, chip(name))
    assert (ctypes.sizeof(timed_calls._StepRecord),) == parameter_sizes(step.cubin, step.lowered[entry])
    entry = between_calls._ENTRY
    overwrite = compile_internal(between_calls.SOURCE, "overwrite.cu", entry, chip(name))
    assert (4, 4, 4, 1) == parameter_sizes(overwrite.cubin, overwrite.lowered[entry])


def test_an_own_kernel_that_does_not_compile_is_named() -> None:
    """The message says which, for which chip, and why."""
    with pytest.raises(DeviceError, match=r"kernel broken\.cu does not compile for l4: .*\"missing\" is undefined"):
        compile_internal('extern "C" __global__ void k() { missing(); }', "broken.cu", "k", chip("l4"))
