"""Reading PTX: literals, scopes, variables, line information, and what is refused by name and line."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evokern import simt
from evokern.errors import SourceError
from evokern.ptx.literals import read_integer, split_top
from evokern.simt.operations.table import entries

HEADER = ".version 8.0\n.target sm_89\n.address_size 64\n"


def module(body: str, *, before: str = "", params: str = ".param .u64 p") -> simt.Module:
    """Return a module with one entry ``k``."""
    return simt.parse(f"{HEADER}{before}\n.visible .entry k({params})\n{{\n{body}\nret;\n}}\n")


def run(body: str, *, before: str = "", count: int = 32) -> np.ndarray:
    """Run one warp that stores ``%r9`` per thread."""
    declarations = ".reg .b32 %r<10>; .reg .b64 %rd<4>; .reg .pred %p<4>; .reg .f32 %f<8>; .reg .b16 %rs<4>;\n"
    store = """
    mov.u32 %r8, %tid.x; mul.wide.u32 %rd1, %r8, 4; ld.param.u64 %rd2, [p]; cvta.to.global.u64 %rd2, %rd2;
    add.s64 %rd3, %rd1, %rd2; st.global.u32 [%rd3], %r9;"""
    memory = simt.Memory()
    out = memory.allocate("out", np.zeros(32, np.uint32))
    result = simt.launch(
        module(declarations + body + store, before=before),
        simt.LaunchSpec("k", (1, 1, 1), (count, 1, 1)),
        [out],
        memory,
    )
    assert result.findings == ()
    return out.read()


@given(st.integers(0, 2**64 - 1), st.sampled_from(["{}", "0x{:x}", "0X{:X}", "0b{:b}", "0{:o}", "{}U"]), st.booleans())
def test_integer_literals(value: int, form: str, negative: bool) -> None:
    """Every radix of the ISA is read, with sign and suffix."""
    text = ("-" if negative else "") + form.format(value)
    assert (-value if negative else value) == read_integer(text)


def test_lists_respect_brackets() -> None:
    """Commas inside brackets do not separate."""
    assert ["{%r1, %r2}", "[%r3+4]", "(a, b)"] == split_top("{%r1, %r2}, [%r3+4], (a, b)")


def test_scoped_registers() -> None:
    """Registers of inner scopes hide outer ones of the same name."""
    body = """
    .reg .b32 t; mov.u32 t, 5;
    { .reg .b32 t; mov.u32 t, 7; { .reg .b32 t; mov.u32 t, 100; } add.u32 %r1, t, 0; }
    add.u32 %r9, t, %r1;"""
    assert [12] * 32 == list(run(body))


def test_variables_and_addresses() -> None:
    """Initialisers hold numbers, bytes and addresses of other variables."""
    before = """
    .global .align 4 .u32 one[3] = {1, 0x10, 07};
    .const .align 8 .f64 half = 0d3FE0000000000000;
    .global .align 8 .u64 table[2] = {one+4, generic(one)+8};"""
    body = """
    ld.global.u64 %rd1, [table]; ld.global.u32 %r1, [%rd1]; ld.global.u64 %rd1, [table+8]; ld.u32 %r2, [%rd1];
    mov.u64 %rd2, half; ld.const.u32 %r3, [%rd2+4]; add.u32 %r4, %r1, %r2; add.u32 %r9, %r3, %r4;"""
    assert [0x3FE00000 + 16 + 7] * 32 == list(run(body, before=before))


def test_guards_and_predicates() -> None:
    """Guarded instructions change only the lanes whose guard holds."""
    body = """
    mov.u32 %r1, %tid.x; mov.u32 %r9, 1; setp.lt.u32 %p1|%p2, %r1, 10; @%p1 add.u32 %r9, %r9, %r1; @!%p1 mov.u32 %r9, 3;
    setp.eq.and.u32 %p3, %r1, 20, %p2; @%p3 shl.b32 %r9, %r9, 4;"""
    assert [1 + i if i < 10 else 48 if i == 20 else 3 for i in range(32)] == list(run(body))


def test_carry_chains() -> None:
    """add.cc and addc, sub.cc and subc, mad.lo.cc and madc make longer integers."""
    body = """
    mov.u32 %r1, 0xffffffff; mov.u32 %r2, 2; add.cc.u32 %r3, %r1, %r2; addc.u32 %r4, %r1, 0; sub.cc.u32 %r5, %r2, %r1;
    subc.u32 %r6, %r2, 0; mad.lo.cc.u32 %r7, %r1, %r1, %r1; madc.hi.u32 %r7, %r1, %r1, 0;
    shl.b32 %r4, %r4, 8; shl.b32 %r6, %r6, 16; shl.b32 %r7, %r7, 24;
    or.b32 %r9, %r3, %r4; or.b32 %r9, %r9, %r6; xor.b32 %r9, %r9, %r7;"""
    product = 0xFFFFFFFF**2 + 0xFFFFFFFF
    assert [1 | (0 << 8) | (1 << 16) ^ ((product >> 32 & 0xFF) << 24)] * 32 == list(run(body))


def test_partial_warps() -> None:
    """A block that does not fill its last warp runs, and its missing lanes are nobody."""
    body = "activemask.b32 %r1; vote.sync.ballot.b32 %r2, %p1, 0xffffffff; add.u32 %r9, %r1, %r2;"
    assert [0xFFF] * 12 + [0] * 20 == list(run(body, count=12))


@pytest.mark.parametrize(
    "text",
    [
        "tcgen05.fence::before_thread_sync;",
        "tex.2d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [p, {%r1, %r2}];",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd1], [%r1], 16;",
        "cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
        "[%r1], [%rd1, {%r1, %r2, %r3}], [%r2], {%rs1};",
        "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r1], %r2, [%r3];",
        "mma.sync.aligned.m8n8k128.row.col.s32.b1.b1.s32.xor.popc {%r1, %r2}, {%r3}, {%r4}, {%r5, %r6};",
        "frobnicate.u32 %r1, %r2;",
        "cvt.rn.e2m1x2.f32 %rs1, %f1, %f2;",
    ],
)
def test_unsupported_instructions_are_refused(text: str) -> None:
    """What the machine does not execute is refused before any run, quoting the instruction."""
    with pytest.raises(SourceError, match=text.split(".")[0].split()[0]):
        module(f".reg .b32 %r<8>; .reg .b64 %rd<4>; .reg .f32 %f<8>; .reg .b16 %rs<4>;\n{text}").check("k")


def test_labels_of_a_scope_hide_those_outside_it() -> None:
    """Each loop of inline assembly has its own labels, even if another one has the same names."""
    loop = "{ .reg .pred p; WAIT: add.u32 %r9, %r9, 1; setp.ge.u32 p, %r9, LIMIT; @p bra DONE; bra WAIT; DONE: }"
    body = "mov.u32 %r9, 0; " + loop.replace("LIMIT", "3") + " " + loop.replace("LIMIT", "7")
    assert [7] * 32 == list(run(body))


def test_refusal_concerns_the_reachable_only() -> None:
    """An unsupported instruction in a function that the entry does not call is no obstacle."""
    other = ".func other()\n{\ntcgen05.fence::before_thread_sync;\nret;\n}"
    module("", before=other).check("k")


@pytest.mark.parametrize(
    "text", ["}", "add.u32 %r1, %r2, %r3;", ".visible .entry k( {", ".bogus 3;", ".visible .entry k() { mov"]
)
def test_text_that_is_no_ptx(text: str) -> None:
    """Malformed text is an error with the PTX line, never a crash."""
    with pytest.raises(SourceError, match="PTX line"):
        simt.parse(HEADER + text)


def test_lines_of_inlined_code() -> None:
    """A place in a header resolves to the line of the user's file that it was inlined at."""
    body = """
    .reg .b32 %r<3>;
    .loc 1 7 3
    mov.u32 %r1, 1;
    .loc 2 99 1, function_name $x, inlined_at 1 7 3
    .loc 2 50 5, function_name $y, inlined_at 2 99 1
    add.u32 %r2, %r1, 1;"""
    text = module(body)
    text = simt.parse(f'{HEADER}.entry k()\n{{\n{body}\nret;\n}}\n.file 1 "/x/kernel.cu"\n.file 2 "/usr/cuda_fp16.h"\n')
    program = text.program("k")
    assert [7, 7] == [program.lines.source_location(item.location).line for item in program.instructions[:2]]


def test_the_table_cites_the_isa() -> None:
    """Every entry of the table of operations names its section."""
    assert len(entries()) > 120
    for entry in entries():
        assert entry.section.startswith("9.7."), entry.opcode
