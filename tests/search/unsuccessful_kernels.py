"""Small generated kernels: some can never be right, and the others are right for a share of their candidates."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SOURCE = """\
#include <cuda_fp16.h>
{head}
extern "C" __global__ void copy(float* x, float* y, int n) {{
{begin}
  for (int k = 0; k < ITEMS; k++) {{
    const int i = (blockIdx.x * ITEMS + k) * THREADS + threadIdx.x;
    if (i < n) {{
      float v = x[i];
#pragma unroll
      for (int u = 0; u < UNROLL; u++) v += 2.f;
      v -= 2.f * UNROLL;
      {body}
    }}
  }}
}}
"""
# words: this is a Python file
DECLARATION = """\
from evokern import Kernel, Launch, Parameter, ProblemField, Tensor, Tolerance, Workload, i32


def launches(c, p):
    blocks = -(-p.N // (c.THREADS * c.ITEMS))
    return [Launch("copy", blocks, c.THREADS, ("x", "y", i32(p.N)), shared_bytes={shared})]


kernel = Kernel(
    name="copy",
    genes=(
        Parameter("THREADS", (32, 64, 96, 128, 192, 256, 384, 512), default=128),
        Parameter("ITEMS", (1, 2, 3, 4, 6, 8), default=1),
        Parameter("UNROLL", (1, 2, 4, 8), default=1),
        Parameter("PAD", (0, 1, 2, 3), default=0),
    ),
    fields=(ProblemField("N"),),
    launches=launches,
    workload=Workload(
        tensors=lambda p, c: {{"x": Tensor("f32", (p.N,){more}), "y": Tensor("f32", (p.N,), "output")}},
        reference=lambda p, t: {{"y": 2 * t["x"]}},
        tolerance={{"y": Tolerance(atol={atol}, rtol=1e-5)}},
        flops=lambda p: p.N,
        bytes=lambda p: 8 * p.N,
        small_problems=("1000", "777"),
    ),
)
"""
RIGHT = "y[i] = 2.f * v;"
EXACT = "y[i] = 2.f * x[i];"


@dataclass(frozen=True)
class Generated:
    """A kernel to generate."""

    body: str = RIGHT
    """Statements that write element i."""
    head: str = ""
    """Text before the kernel."""
    begin: str = ""
    """Statements at the begin of the kernel."""
    shared: str = "0"
    """Dynamic shared memory as Python."""
    more: str = ""
    """Further arguments of the input tensor."""
    atol: float = 1e-4
    """Absolute tolerance."""

    def write(self, folder: Path) -> Path:
        """Write kernel and study below a folder; return the path of the study."""
        kernel, study = folder / "kernels" / "copy", folder / "studies" / "copy.toml"
        kernel.mkdir(parents=True)
        study.parent.mkdir()
        source = SOURCE.format(head=self.head, begin=self.begin, body=self.body)
        (kernel / "kernel.cu").write_text(source, encoding="utf-8")
        declared = DECLARATION.format(shared=self.shared, more=self.more, atol=self.atol)
        (kernel / "kernel.py").write_text(declared, encoding="utf-8")
        study.write_text('kernel = "copy"\nproblems = ["N=4000"]\ndevice = "sim:l4"\n', encoding="utf-8")
        return study


SHARED = "  __shared__ float big[{size}];\n  if (n < 0) y[0] = big[threadIdx.x + n];"
NEVER = {
    "undefined name": Generated(body="y[i] = 2.f * w;"),
    "missing header": Generated(head='#include "not_here.h"'),
    "false static_assert": Generated(head='static_assert(sizeof(float) == 8, "never");'),
    "wrong line of a helper": Generated(head="__device__ float f(float v) { return v.x; }", body="y[i] = f(v);"),
    "index far outside": Generated(body="y[i + 100000] = 2.f * v;"),
    "neighbour's element": Generated(body="y[i] = 2.f * x[(i + 1) % n];"),
    "wrong factor": Generated(body="y[i] = 3.f * v;"),
    "reads one too far": Generated(body="y[i] = 2.f * x[i + 1];"),
    "shared memory": Generated(begin=SHARED.format(size="20000")),
    "shared memory of a gene": Generated(begin=SHARED.format(size="(13000 + 1000 * PAD)")),
    "wrong on large inputs": Generated(body="y[i] = 2.f * fminf(fmaxf(x[i], -60.f), 60.f);", atol=1e-3),
    "wrong on denormal inputs": Generated(body="y[i] = fabsf(x[i]) < 1e-37f ? 0.f : 2.f * x[i];", atol=0),
    "wrong on zeros": Generated(body="y[i] = x[i] == 0.f ? 1.f : 2.f * x[i];", atol=1e-3),
    "endless loop": Generated(body="while (true) { if (n < 0) break; }"),
    "endless loop of one thread": Generated(body="while (i == 3) { if (n < 0) break; } " + EXACT),
    "race": Generated(
        begin="  __shared__ float s[512];\n  s[threadIdx.x] = x[threadIdx.x];",
        body="y[i] = s[(threadIdx.x + 32) % THREADS];",
    ),
    "writes nothing": Generated(body="if (n < 0) " + EXACT),
    "misaligned": Generated(body="if (i + 4 < n) *reinterpret_cast<float4*>(y + i + 1) = make_float4(v, v, v, v);"),
    "trap": Generated(body="if (i == 5) __trap(); " + EXACT),
    "writes its input": Generated(body=EXACT + " x[i] = v;"),
}
"""Name → kernel that can never be right."""
CONDITIONS = {
    "a pair, 2 %": "THREADS == 192 && ITEMS == 3",
    "a triple, 2 %": "UNROLL == 4 && PAD == 2 && (ITEMS == 3 || ITEMS == 6)",
    "one value, 25 %": "PAD == 3",
    "half": "ITEMS <= 3",
}
MODES = {
    "tolerance": Generated(body="y[i] = ({ok} ? 2.f : 3.f) * x[i];"),
    "outside": Generated(body="y[i + ({ok} ? 0 : 100000)] = 2.f * x[i];"),
    "static_assert": Generated(head='static_assert({ok}, "values");', body=EXACT),
    "#error": Generated(head="#if !({ok})\n#error values\n#endif", body=EXACT),
    "shared": Generated(begin=SHARED.format(size="({ok} ? 100 : 20000)"), body=EXACT),
    "endless": Generated(body="while (!({ok})) {{ if (n < 0) break; }} " + EXACT),
    "trap": Generated(body="if (!({ok})) __trap(); " + EXACT),
    "unwritten": Generated(begin="  if (!({ok})) return;", body=EXACT),
}


def sometimes() -> dict[str, Generated]:
    """Return name → kernel with some right candidates."""
    found = {}
    for mode, template in MODES.items():
        for share, ok in CONDITIONS.items():
            texts = {name: getattr(template, name).format(ok=ok) for name in ("body", "head", "begin")}
            found[f"{mode}, {share}"] = Generated(**texts)
    return dict(list(found.items())[:30])
