"""`evokern sanitize`: kernel folders and plain CUDA files, run with every access checked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paths import DATA
from simt_tools import Defect, defects
from typer.testing import CliRunner

from evokern import simt
from evokern.analysis.sanitize.arguments import allocate_arguments, parse_argument
from evokern.analysis.sanitize.candidate import UNWRITTEN, chip_for_architecture, sanitize_kernel
from evokern.analysis.sanitize.diagnose import diagnose
from evokern.cli._command import app
from evokern.cli.app import run  # noqa: F401 (registers every command)
from evokern.compile.isolated import compile_program
from evokern.errors import UsageError
from evokern.hardware.profiles import CHIPS
from evokern.simt.sanitizer.findings import Collector, FindingSite
from evokern.study.discovery import load_kernel

FILES = DATA / "cuda_files"
FIELDS = {
    "kind", "line", "source", "instruction", "block", "thread", "address", "allocation", "offset", "other_line",
    "count", "hint", "level",
}  # fmt: skip
SOFTMAX = [str(FILES / "project/src/softmax.cu"), "-I", str(FILES / "project/include"), "--block", "32", "--grid", "4"]
LITTLE = {"shared_bytes_per_block": 16384}
SAMPLE = str(FILES / "cuda_sample.cu")
COUNT_BITS = [SAMPLE, "--entry", "count_bits", "--block", "128", "--grid", "4"]


def _sanitize(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["sanitize", *arguments])
    return result.exit_code, result.stdout, result.stderr


def _refused(*arguments: str) -> str:
    code, out, told = _sanitize(*arguments)
    assert (2, "") == (code, out), told
    assert told.startswith("evokern: ")
    assert 1 == told.count("\n")
    return told


def _arguments_of(defect: Defect) -> list[str]:
    """Say with `--arg` what the defect's header says of its buffers."""
    said = []
    for word in defect.args.split():
        _, _, rest = word.partition("=")
        if "[" not in rest:
            said += ["--arg", rest.replace(":", "=")]
            continue
        shape, _, flags = rest.partition("]")
        role = "in" if flags.startswith("r") else "out" if flags.startswith("u") else "zero"
        said += ["--arg", f"{role}:{shape}]"]
    return said


PLAIN = [defect for defect in defects() if "iota" not in defect.args and defect.kind not in ("instruction_limit",)]


@pytest.mark.thorough
@pytest.mark.parametrize("defect", PLAIN[::3], ids=lambda defect: defect.name)
def test_a_planted_defect_of_a_file_is_named(defect: Defect) -> None:
    """The command line finds what is planted, at its line, and finds nothing in the clean twin."""
    grid, block = (",".join(map(str, extent)) for extent in (defect.grid, defect.block))
    path = DATA / "defects" / f"{defect.name}.cu"
    command = [str(path), "--grid", grid, "--block", block, "--smem", str(defect.shared), *_arguments_of(defect)]
    command += ["--arch", defect.architecture.replace("compute", "sm")]
    code, out, _ = _sanitize(*command, "--json")
    report = json.loads(out)
    assert (int(defect.name != "race_within_warp"), False) == (code, report["clean"])
    first = report["findings"][0]
    assert defect.kind == first["kind"]
    assert first["line"] in defect.lines
    assert defect.source.splitlines()[first["line"] - 1].strip() == first["source"]
    assert all(
        FIELDS <= set(finding) <= FIELDS | {"called_from", "other_called_from"} for finding in report["findings"]
    )
    code, out, _ = _sanitize(*command, "-D", "FIXED", "--json")
    assert (0, {"clean": True, "errors": 0, "warnings": 0, "findings": []}) == (code, json.loads(out))


def test_the_report_tells_everything_of_a_finding() -> None:
    """Text names kind, line and its text, block and thread, memory, the other party's line and text, and the cause."""
    path = DATA / "defects" / "race_missing_barrier.cu"
    defect = next(defect for defect in defects() if defect.name == path.stem)
    code, out, _ = _sanitize(str(path), "--block", str(defect.block[0]), "--grid", "1", *_arguments_of(defect))
    assert code == 1
    finding = defect.run().findings[0]
    lines = defect.source.splitlines()
    for part in (
        f"1. shared race at race_missing_barrier.cu:{finding.line}",
        lines[finding.line - 1].strip(),
        f"race_missing_barrier.cu:{finding.other_line}",
        lines[finding.other_line - 1].strip(),
        f"thread {','.join(map(str, finding.thread))}",
        finding.instruction,
        finding.hint,
        f"occurrences   {finding.count:,}",
        "1 finding: 1 shared race",
    ):
        assert part in out


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("command", "code"),
    [
        ([*SOFTMAX, "--arg", "in:f32[4,100]", "--arg", "out:f32[4,100]", "--arg", "i32=100"], 0),
        ([*SOFTMAX, "--arg", "in:f32[4,100]", "--arg", "out:f32[4,90]", "--arg", "i32=100"], 1),
        (
            [str(FILES / "torch_extension.cu"), "--entry", "rms_norm_kernel", "--block", "256", "--grid", "4", "--arg",
             "out:f16[4,1024]", "--arg", "in:f16[4,1024]", "--arg", "in:f16[1024]", "--arg", "f32=1e-6", "--arg",
             "i32=1024"], 0,
        ),
        (
            [str(FILES / "torch_extension.cu"), "--entry", "swish_forward_kernel<float>", "--block", "128", "--grid",
             "2,4", "--arg", "in:f32[4,200]", "--arg", "out:f32[4,200]", "--arg", "u64=200"], 0,
        ),
        (
            [str(FILES / "templates.cu"), "--entry", "kernels::reduce<float, 256>", "--block", "256", "--grid", "1",
             "--arg", "in:f32[1000]", "--arg", "out:f32[1]", "--arg", "i64=1000"], 0,
        ),
        (
            [SAMPLE, "--entry", "transpose", "--block", "16,16", "--grid", "3,4", "--arg", "out:f32[40,50]", "--arg",
             "in:f32[50,40]", "--arg", "i32=40", "--arg", "i32=50"], 0,
        ),
        ([*COUNT_BITS, "--smem", "512", "--arg", "in:u32[128]", "--arg", "out:u32[4]", "--arg", "i32=128"], 0),
        (
            [SAMPLE, "--entry", "finish", "--block", "64", "-D", "USE_FAST_PATH", "--arg", "inout:f32[100]", "--arg",
             "i32=100"], 0,
        ),
    ],
    ids=["headers", "short output", "extension", "template", "namespace", "square blocks", "dynamic", "macro"],
)  # fmt: skip
def test_files_as_people_have_them(command: list[str], code: int) -> None:
    """Host code, bindings, templates, namespaces, own headers and macros do not stand in the way."""
    found, out, told = _sanitize(*command)
    assert code == found, out + told


def test_a_finding_in_a_header_names_the_header(tmp_path: Path) -> None:
    """The line named is the innermost one in the user's own files, with the calls that led there."""
    (tmp_path / "store.cuh").write_text(
        "#pragma once\n__device__ inline void put(float* x, int i) {\n  x[i] = 1;\n}\n", encoding="utf-8"
    )
    path = tmp_path / "my.cu"
    path.write_text(
        '#include "store.cuh"\n__device__ void all(float* x) {\n  put(x, threadIdx.x + 1);\n}\n'
        "__global__ void fill(float* x) {\n  all(x);\n}\n",
        encoding="utf-8",
    )
    code, out, _ = _sanitize(str(path), "--block", "32", "--arg", "out:f32[32]", "--json")
    finding = json.loads(out)["findings"][0]
    assert (1, "store.cuh", 3, "x[i] = 1;") == (code, finding["file"], finding["line"], finding["source"])
    assert [["", 3], ["", 6]] == finding["called_from"]
    assert FIELDS < set(finding)
    text = _sanitize(str(path), "--block", "32", "--arg", "out:f32[32]")[1]
    assert "out of bounds at store.cuh:3" in text
    assert "called from   my.cu:3" in text


def test_device_printf_is_shown(tmp_path: Path) -> None:
    """What the kernel prints stands in the report."""
    path = tmp_path / "hello.cu"
    path.write_text('#include <cstdio>\n__global__ void hello() {\n  printf("from %d\\n", threadIdx.x);\n}\n')
    code, out, _ = _sanitize(str(path), "--block", "2", "--grid", "1")
    assert (0, ["  printed: from 0", "  printed: from 1"]) == (code, out.splitlines()[1:3])


@pytest.mark.thorough
def test_the_default_grid_covers_the_largest_output() -> None:
    """Without `--grid` there is a thread for each element of the largest buffer that may be written, and it is said."""
    found, out, told = _sanitize(
        SAMPLE, "--entry", "count_bits", "--block", "128", "--smem", "512", "--arg", "in:u32[128]", "--arg",
        "out:u32[300]", "--arg", "i32=128",
    )  # fmt: skip
    assert "--grid not given; using 3 blocks, one thread for each element of out:u32[300]" in told
    assert (0, "count_bits of cuda_sample.cu: grid 3, block 128, 512 bytes of dynamic shared memory, sm_89") == (
        found,
        out.splitlines()[0],
    )


def test_a_kernel_without_end_is_told_with_the_way_out() -> None:
    """A launch that passes the limit names `--limit`; where the loop provably never ends, it says so instead."""
    path = DATA / "defects" / "hung_loop.cu"
    command = [str(path), "--block", "32", "--grid", "1", "--arg", "out:i32[32]", "--arg", "zero:i32[1]", "--json"]
    # With 50 instructions, the poll has not come round often enough to be known.
    for limit, kind, hint in (
        ("50", "unfinished", "--limit above 50"), ("50000", "instruction_limit", "this loop never ends")
    ):  # fmt: skip
        code, out, _ = _sanitize(*command, "--limit", limit)
        finding = json.loads(out)["findings"][0]
        assert (1, kind) == (code, finding["kind"])
        assert hint in finding["hint"]


_PROGRAMS: dict[str, Any] = {}


def _compiled_once(*arguments: Any, **options: Any) -> Any:
    """Compile what was not compiled before: most mistakes are made with one and the same file."""
    asked = repr((arguments, options))
    if asked not in _PROGRAMS:
        _PROGRAMS[asked] = compile_program(*arguments, **options)
    return _PROGRAMS[asked]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["absent.cu", "--block", "32"], "no CUDA file at absent.cu"),
        ([SAMPLE, "--block", "32"], "with --entry: count_bits, finish, transpose"),
        ([SAMPLE, "--entry", "count_bit", "--block", "32"], "did you mean 'count_bits'?"),
        ([*COUNT_BITS[:3], *["--arg", "null"] * 2, "--arg", "i32=1"], "--block is missing; set the threads"),
        ([str(FILES / "torch_extension.cu"), "--entry", "rms_norm_kernel"], "rms_norm_kernel takes 5 arguments"),
        (COUNT_BITS, "(const word_t * in, word_t * out, int n); pass one --arg for each"),
        ([*COUNT_BITS, "--arg", "i32=1", "--arg", "out:u32[4]", "--arg", "i32=1"], "the parameter is a pointer"),
        ([*COUNT_BITS, "--arg", "in:u32[4]", "--arg", "out:u32[4]", "--arg", "in:i32[1]"], "the parameter is a number"),
        ([*COUNT_BITS, "--arg", "in:u32[4]", "--arg", "out:u32[4]", "--arg", "i64=1"], "the argument has 8"),
        ([*COUNT_BITS, "--arg", "in:u32[4]", "--arg", "out:u32[4]", "--arg", "f32=1"], "the parameter is an integer"),
        ([*COUNT_BITS, "--arg", "in:u32"], "--arg 'in:u32' is not a valid argument"),
        ([*COUNT_BITS, "--arg", "in:u33[4]"], "did you mean 'u32'?"),
        ([*COUNT_BITS, "--arg", "at:u32[4]"], "'at' is not a role"),
        ([*COUNT_BITS, "--arg", "in:u32[4,0]"], "positive integers"),
        ([*COUNT_BITS, "--arg", "i32=3000000000"], "does not fit i32"),
        ([*COUNT_BITS, "--arg", "in:i8[4]=9..1"], "the range 9..1 is empty"),
        (
            [*COUNT_BITS, "--arg", "in:u32[99999,99999]", "--arg", "out:u32[4]", "--arg", "i32=1"],
            "37.3 GiB (in:u32[99999,99999] alone 37.3), but the simulator holds 4 GiB",
        ),
        (
            [SAMPLE, "--entry", "count_bits", "--block", "128", "--arg", "in:u32[4]", "--arg", "out:u32[900000000]",
             "--arg", "i32=1"], "exceeds the simulator's limit",
        ),
        ([SAMPLE, "--entry", "count_bits", "--block", "12y"], "--block '12y' is not a valid extent"),
        ([*COUNT_BITS[:3], "--block", "2048", *["--arg", "null"] * 2, "--arg", "i32=1"], "the limit of 1024"),
        ([*COUNT_BITS, "--smem", "200000", *["--arg", "null"] * 2, "--arg", "i32=1"], "exceeds the limit of 101376"),
        ([*COUNT_BITS, "-D", "3=4"], "-D '3=4' is not a macro"),
        ([*COUNT_BITS, "-I", "absent"], "-I absent is not a folder"),
        ([*COUNT_BITS, "--arch", "sm_70"], "--arch 'sm_70' is not supported"),
        ([*COUNT_BITS, "--set", "A=1"], "--set applies only to a kernel folder"),
        (SOFTMAX[:1] + SOFTMAX[3:], 'not found: "reduce/warp.cuh" (line 3); add the folder with -I'),
        (["rmsnorm", "--block", "32"], "--block applies only to a CUDA file"),
        (["rmsnorm", "--set", "NO=1"], "there is no gene 'NO'"),
        (["rmsnorm", "--problem", "x"], "ROWS='x' is not a whole number"),
        (["no_such_kernel"], "there is no kernel 'no_such_kernel'"),
    ],
)  # fmt: skip
def test_mistakes_are_told_with_the_remedy(
    command: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each mistake ends with exit code 2 and one line that names the value and what to do."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("evokern.compile.device_code.compile_program", _compiled_once)
    assert told in _refused(*command)


def test_what_the_ptx_machine_does_not_execute_is_refused_by_name(tmp_path: Path) -> None:
    """An instruction that is not supported is named with its line, before anything runs; other kernels still run."""
    path = tmp_path / "texture.cu"
    path.write_text(
        "__global__ void fetch(cudaTextureObject_t t, float* x) {\n  x[threadIdx.x] = tex1Dfetch<float>(t, 1);\n}\n"
        "__global__ void plain(float* x) {\n  x[threadIdx.x] = 1;\n}\n"
    )
    told = _refused(str(path), "--entry", "fetch", "--block", "32", "--arg", "u64=0", "--arg", "out:f32[32]")
    assert "line 2 of texture.cu" in told
    assert "tex.1d" in told
    assert 0 == _sanitize(str(path), "--entry", "plain", "--block", "32", "--arg", "out:f32[32]")[0]


def test_what_a_later_architecture_has_names_the_option(tmp_path: Path) -> None:
    """A file with clusters is refused where none is named, for the default chip has no clusters: by the way out."""
    source = 'extern "C" __global__ void __cluster_dims__(2, 1, 1) k(float* out) { out[blockIdx.x] = 1; }'
    (tmp_path / "a.cu").write_text(source)
    command = ["sanitize", str(tmp_path / "a.cu"), "--grid", "2", "--block", "1", "--arg", "out:f32[2]"]
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code == 2 and "--arch sm_90" in refused.output
    assert CliRunner().invoke(app, [*command, "--arch", "sm_90"]).exit_code == 0


def test_a_file_is_launched_in_clusters(tmp_path: Path) -> None:
    """Clusters of a launch are an option; what contradicts the chip, the grid or the kernel is said before it runs."""
    (tmp_path / "a.cu").write_text(
        """#include <cooperative_groups.h>
__global__ void k(int* out) {
  __shared__ int mine;
  auto cluster = cooperative_groups::this_cluster();
  mine = blockIdx.x;
  cluster.sync();
  out[blockIdx.x] = *cluster.map_shared_rank(&mine, cluster.block_rank() ^ 1);
  cluster.sync();
}
"""
    )
    command = [str(tmp_path / "a.cu"), "--grid", "4", "--block", "1", "--arg", "out:i32[4]", "--cluster"]
    code, out, told = _sanitize(*command, "2", "--arch", "sm_90")
    assert (0, True) == (code, "clusters of 2" in out), told
    assert "launch a multiple of 3" in _refused(*command, "3", "--arch", "sm_90")
    assert "--cluster 2 needs --arch sm_90" in _refused(*command, "2")
    assert "--arch sm_90" in _refused(*command[:-1])
    code, out, told = _sanitize(command[0], "--block", "1", "--arg", "out:i32[3]", "--arch", "sm_90", "--cluster", "2")
    assert "grid 4, block 1, clusters of 2" in out, told  # whole clusters, where nobody named a grid
    (tmp_path / "b.cu").write_text("__global__ void __cluster_dims__(2, 1, 1) k(int* out) { *out = 1; }")
    command[0] = str(tmp_path / "b.cu")
    told = _refused(*command, "4", "--arch", "sm_90")
    assert told.startswith("evokern: k requires clusters of (2, 1, 1) ")
    assert "clusters of 2" in _sanitize(*command[:-1], "--arch", "sm_90")[1]


def test_macros_that_a_file_wants_are_named(tmp_path: Path) -> None:
    """A file with `#error` for a missing macro is told with the macro's name."""
    path = tmp_path / "tile.cu"
    path.write_text("#ifndef TILE\n#error TILE is missing\n#endif\n__global__ void k(float* x) { x[TILE] = 1; }\n")
    told = _refused(str(path), "--block", "32", "--arg", "out:f32[32]")
    assert "tile.cu:2" in told
    assert "-D TILE=…" in told


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("in:i32[5]=3", [3] * 5),
        ("zero:f32[2]", [0, 0]),
        ("inout:bf16[2]=1.5", [0x3FC0] * 2),
        ("in:e4m3[1]=1", [0x38]),
        ("in:u16[2]=7", [7, 7]),
    ],
)
def test_buffers_hold_what_was_asked_for(text: str, values: list[int]) -> None:
    """A value after `=` stands in every element, in the element's own format."""
    memory = simt.Memory()
    buffer: Any = allocate_arguments([parse_argument(text)], ["x"], memory, 0).values[0]
    array = buffer.read().view(np.uint16 if "bf16" in text else buffer.dtype)
    assert values == array.tolist()


def test_random_inputs_keep_their_range() -> None:
    """A range bounds the random numbers on both sides, and both ends are drawn."""
    memory = simt.Memory()
    buffer: Any = allocate_arguments([parse_argument("in:i8[500]=-2..2")], ["x"], memory, 0).values[0]
    assert {-2, -1, 0, 1, 2} == set(buffer.read().tolist())
    assert not buffer.writable
    output: Any = allocate_arguments([parse_argument("out:f32[4]")], ["y"], memory, 0).values[0]
    assert (True, False) == (output.writable, output.initialised)


def test_a_header_that_is_left_out_is_named(tmp_path: Path) -> None:
    """A file whose kernel compiles without a header that is not there runs, and is told to have run without it."""
    (tmp_path / "one.cu").write_text('#include "absent.h"\n__global__ void one(int* y) { *y = 1; }\n')
    code, told, remarks = _sanitize(str(tmp_path / "one.cu"), "--block", "1", "--arg", "out:i32[1]")
    assert code == 0
    assert 'skipped missing headers: "absent.h" (line 1); add the folder with -I' in told + remarks
    assert "--grid not given; using 1 block, one thread" in told + remarks


@pytest.mark.parametrize(("written", "kinds"), [(64, []), (40, []), (0, ["unwritten_output"])])
def test_an_output_that_no_thread_writes_is_named(tmp_path: Path, written: int, kinds: list[str]) -> None:
    """One that stays as it was is a warning; one that is written in part is remarked on, for it may be meant so."""
    path = tmp_path / "some.cu"
    path.write_text("__global__ void some(int* y, int n) { if (threadIdx.x < n) y[threadIdx.x] = 1; }\n")
    command = [str(path), "--block", "64", "--grid", "1", "--arg", "out:i32[64]", "--arg", f"i32={written}"]
    code, out, remarks = _sanitize(*command, "--json")
    found = json.loads(out)["findings"]
    assert (0, kinds) == (code, [finding["kind"] for finding in found])
    assert [("warning", "y", 64)] * len(kinds) == [(one["level"], one["allocation"], one["count"]) for one in found]
    _, _, remarks = _sanitize(*command)
    assert ("24 of 64 elements of y, the first at index 40" in remarks) == (written == 40)


def test_variables_are_called_as_in_the_source() -> None:
    """Mangled names of variables lose their decoration, and what they stand in."""
    names = {
        "_ZZ6kernelE4tile": "tile", "_ZZN2ns1kIfEEvPT_E5stage": "stage", "_ZN2ns5tableE": "table", "in": "in",
        "_ZN3BoxILi4EE5countE": "count", "_ZZN3BoxIN2ns1VIfEELj8EE3runEvE4tile_0": "tile",
    }  # fmt: skip
    found = {}
    for symbol in names:
        collector = Collector(None)
        site, access = FindingSite(instruction="ld.global.u32"), simt.Access(allocation=symbol)
        collector.add(simt.Finding(kind="out_of_bounds", hint="", site=site, access=access))
        (found[symbol],) = (finding.allocation for finding in collector.findings)
    assert names == found


def test_a_kernel_folder_is_clean_at_its_small_problems() -> None:
    """Without `--problem` a kernel runs at its small problems; the candidate is named, and a right one is clean."""
    code, out, _ = _sanitize("rmsnorm")
    assert (0, "clean: nothing was found") == (code, out.splitlines()[-1])
    candidate, *runs = out.splitlines()[:3]
    assert "candidate: the default candidate" == candidate
    assert ["rmsnorm at ROWS=5 COLS=264", "rmsnorm at ROWS=3 COLS=1024"] == [line.partition(":")[0] for line in runs]


def test_a_candidate_is_named_by_what_was_set() -> None:
    """A candidate that `--set` changes is named by its genes."""
    assert "candidate: ROWS_PER_BLOCK=2" == _sanitize("rmsnorm", "--set", "ROWS_PER_BLOCK=2")[1].splitlines()[0]


@pytest.mark.parametrize(("path", "which"), [("tiled", "the default"), ("skinny", "this")])
def test_it_is_the_candidate_that_cannot_run(path: str, which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate beyond the chip's limits is told as that one, or as the default: others of the kernel may run."""
    monkeypatch.setattr(
        "evokern.analysis.sanitize.candidate.chip_for_architecture", lambda name: replace(CHIPS["l4"], **LITTLE)
    )
    told = _refused("matmul", "--set", f"PATH={path}", "--problem", "M=3 N=130 K=77")
    assert told.startswith(f"evokern: {which} candidate of matmul cannot run at M=3 N=130 K=77 on NVIDIA L4: shared_")


def test_a_candidate_without_a_small_problem_is_told_its_constraint() -> None:
    """If no small problem suits a candidate, the violated constraint and its reason are named."""
    told = _refused("matmul", "--set", "BLOCK_M=256", "--set", "BLOCK_N=256")
    for part in ("small problems", "accumulators_fit: needs 680 registers, has 255 registers (", "--problem"):
        assert part in told


def test_a_gene_that_does_not_count_is_told() -> None:
    """What `--set` asks of an inactive gene is no part of the candidate, which a remark says."""
    code, out, remarks = _sanitize("matmul", "--set", "LANES=row", "--problem", "M=64 N=64 K=64")
    assert (0, "candidate: the default candidate") == (code, out.splitlines()[0])
    assert "LANES=row has no effect with PATH=tiled; it needs PATH=skinny\n" == remarks


@pytest.mark.parametrize(("fault", "kind"), [("misaligned", "misaligned"), ("out_of_bounds", "out_of_bounds")])
def test_a_crash_is_diagnosed(fault: str, kind: str) -> None:
    """A candidate that crashes on a GPU gets a sentence with kind, line, thread and cause, and the finding."""
    kernel = load_kernel(DATA / "kernels" / "faulty")
    config = kernel.space.with_changes(kernel.space.default(), {"FAULT": fault, "VARIANT": 3})
    found = diagnose(kernel, config, kernel.problem("4096"), chip_for_architecture("sm_89"))
    assert found is not None
    assert (kind, "300", True) == (found.finding["kind"], found.problem, found.certain)
    assert found.sentence.startswith(f"{kind.replace('_', ' ')} at line {found.finding['line']} (")
    assert found.finding["source"] in found.sentence


def test_a_right_candidate_has_no_diagnosis() -> None:
    """Where the PTX machine finds nothing, nothing is claimed."""
    kernel = load_kernel(DATA / "kernels" / "faulty")
    assert None is diagnose(kernel, kernel.space.default(), kernel.problem("4096"), chip_for_architecture("sm_89"))


def test_a_crash_at_the_large_problem_alone_is_found(tmp_path: Path) -> None:
    """Where small problems are clean, sampled blocks of the problem itself are looked at."""
    folder = tmp_path / "faulty"
    folder.mkdir()
    for path in (DATA / "kernels" / "faulty").iterdir():
        if path.suffix in (".py", ".cu"):
            text = path.read_text(encoding="utf-8")
            (folder / path.name).write_text(text.replace("  y[i] = result;\n", "  y[n > 999 ? 2 * i : i] = result;\n"))
    kernel = load_kernel(folder)
    found = diagnose(kernel, kernel.space.default(), kernel.problem("4096"), chip_for_architecture("sm_89"))
    assert found is not None
    assert ("out_of_bounds", "4096") == (found.finding["kind"], found.problem)


def test_a_candidate_that_cannot_run_there_is_refused() -> None:
    """A kernel is not run where its own constraints say it cannot."""
    kernel = load_kernel(DATA / "kernels" / "faulty")
    config = kernel.space.with_changes(kernel.space.default(), {"FAULT": "endless", "VARIANT": 7})
    with pytest.raises(UsageError, match="five_hang"):
        sanitize_kernel(kernel, config, [kernel.problem("300")], chip_for_architecture("sm_89"))


SPECULATED = """__global__ void race(float* out, int flag) {
  __shared__ float sh[4]; int t = threadIdx.x; if (t < 4) sh[t] = t;
  __syncthreads();
  float o = 0;
  if (flag) o = sh[1];
  if (t == 127) sh[1] = o + 1;
  __syncthreads(); out[t] = sh[1] + o;
}
__global__ void unwritten(float* out, int flag) {
  __shared__ float sh[4]; int t = threadIdx.x; if (flag == 1 && t < 4) sh[t] = t;
  __syncthreads();
  float o = 0;
  if (flag) o = sh[1];
  out[t] = o;
}
__global__ void decides(float* out, int flag) {
  __shared__ float sh[4]; int t = threadIdx.x; if (flag == 1 && t < 4) sh[t] = t;
  __syncthreads();
  if (sh[1] == sh[1] + flag) return;
  out[t] = 1;
}
__global__ void clamped(float* out, int flag) {
  const int t = threadIdx.x, last = 455;
  for (int i = t; i < 512; i += 128) out[i] = i;
  __syncthreads();
  #pragma unroll 1
  for (int i = t; i < 512; i += 256) {
    float v = out[min(i, last)], w = out[min(i + 128, last)];
    if (i <= last) out[i] = v + 1;
    if (i + 128 <= last) out[i + 128] = w + 1; else if (flag == 2) out[i + 128] = w;
  }
}
"""
"""The compiler reads sh[1] whatever the flag is, and throws the value away where it is not set; `clamped` reads with
one instruction what it uses and, behind the last element, what it does not."""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("entry", "flag", "kind", "level"),
    [
        ("race", 0, "shared_race", "warning"),
        ("race", 1, "shared_race", "error"),
        ("unwritten", 0, "uninitialised", "warning"),
        ("unwritten", 2, "uninitialised", "error"),
        ("decides", 0, "uninitialised", "error"),
        ("clamped", 1, "global_race", "warning"),
        ("clamped", 2, "global_race", "error"),
    ],
)
def test_what_is_read_and_thrown_away_is_a_warning(
    tmp_path: Path, entry: str, flag: int, kind: str, level: str
) -> None:
    """A load that the compiler moved above its condition fails only with --strict, unless its value is used."""
    path = tmp_path / "speculated.cu"
    path.write_text(SPECULATED, encoding="utf-8")
    command = [str(path), "--entry", entry, "--block", "128", "--grid", "1", "--arg", "out:f32[512]", "--arg",
               f"i32={flag}"]  # fmt: skip
    code, out, _ = _sanitize(*command, "--json")
    report = json.loads(out)
    found = [(finding["kind"], finding["level"]) for finding in report["findings"]]
    assert [(kind, level)] == [one for one in found if one[0] != UNWRITTEN]
    assert int(level == "error") == code == report["errors"]
    assert 1 == _sanitize(*command, "--strict")[0]
    _, text, _ = _sanitize(*command)
    assert (f"1. warning: {kind.replace('_', ' ')}" in text) == (level == "warning")
    assert ("1 of them is a warning; with --strict" in text) == (len(found) > report["errors"])


def test_a_race_within_a_warp_is_a_warning() -> None:
    """Lanes of one warp without __syncwarp are told, and fail only with --strict."""
    defect = next(defect for defect in defects() if defect.name == "race_within_warp")
    command = [str(DATA / "defects/race_within_warp.cu"), "--block", "32", "--grid", "1", *_arguments_of(defect)]
    code, out, _ = _sanitize(*command, "--json")
    assert (0, {"warning"}) == (code, {finding["level"] for finding in json.loads(out)["findings"]})
    assert 1 == _sanitize(*command, "--strict")[0]


SEVERAL = """__device__ float get(const float* p, int i) { return p[i]; }
__device__ void put(float* s, int i, float v) { s[i] = v; }
__global__ void several(float* out, const char* in) {
  __shared__ float s[64];
  int t = threadIdx.x;
  float a = *(const float*)(in + t * 4 + 1);
  put(s, t, a);
  float b = get(s, 63 - t);
  out[t] = a + b;
  __syncthreads();
  *(float2*)(out + 1) = make_float2(b, a);
}
"""


def test_a_file_goes_on_after_a_misaligned_access(tmp_path: Path) -> None:
    """Every misaligned line is named, and what else is wrong, with the calls that both parties of a race came by."""
    path = tmp_path / "several.cu"
    path.write_text(SEVERAL, encoding="utf-8")
    command = [str(path), "--block", "64", "--grid", "1", "--arg", "out:f32[64]", "--arg", "in:i8[300]"]
    code, out, _ = _sanitize(*command, "--json")
    found = json.loads(out)["findings"]
    assert 1 == code
    assert [6, 11] == [finding["line"] for finding in found if finding["kind"] == "misaligned"]
    race = next(finding for finding in found if finding["kind"] == "shared_race")
    assert ([["", 8]], [["", 7]]) == (race["called_from"], race["other_called_from"])
    _, text, _ = _sanitize(*command)
    assert "     called from several.cu:7\n" in text
    assert "ended early" not in text
