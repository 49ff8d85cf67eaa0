"""Baselines from other libraries: what they are called with, that they are optional, and that a failure has its reason.

The stand-ins have the parameters of flash-attn-4 4.0.0b36, flash-attn 2.8.3, flashinfer-python 0.7.4 and quack-kernels
0.6.5, and compute with torch.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from engine_helpers import share_of_allowed
from paths import KERNELS
from torch.nn.functional import rms_norm, scaled_dot_product_attention

from evokern.declaration.kernel import Kernel, is_installed
from evokern.device.gpu.baselines import baseline_call
from evokern.doctor import PEERS, _peers
from evokern.gate.data import torch_dtype
from evokern.pack.baseline_code import baselines_of
from evokern.study.discovery import load_kernel

Made = torch.Tensor


def _attended(q: Made, k: Made, v: Made, causal: bool) -> Made:
    """Return attention in the layout [B, S, H, D]."""
    assert q.stride(-1) == k.stride(-1) == v.stride(-1) == 1
    q, k, v = (one.transpose(1, 2) for one in (q, k, v))
    return scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).contiguous()


def flash_4(
    q: Made, k: Made, v: Made, qv: Made | None = None, gather_kv_indices: Made | None = None,
    softmax_scale: float | None = None, causal: bool = False,
) -> tuple[Made, None]:  # fmt: skip
    return _attended(q, k, v, causal), None


def flash_2(
    q: Made, k: Made, v: Made, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False
) -> Made:
    return _attended(q, k, v, causal)


class BatchPrefillWithRaggedKVCacheWrapper:
    """Attention over a batch of requests; `run` takes all their tokens."""

    def __init__(self, float_workspace_buffer: Made, kv_layout: str = "NHD") -> None:
        assert (float_workspace_buffer.dtype, kv_layout) == (torch.uint8, "NHD")

    def plan(
        self, qo_indptr: Made, kv_indptr: Made, num_qo_heads: int, num_kv_heads: int, head_dim_qk: int,
        head_dim_vo: int | None = None, custom_mask: Made | None = None, packed_custom_mask: Made | None = None,
        causal: bool = False, pos_encoding_mode: str = "NONE", use_fp16_qk_reduction: bool = False,
        window_left: int = -1, logits_soft_cap: float | None = None, sm_scale: float | None = None,
        rope_scale: float | None = None, rope_theta: float | None = None, q_data_type: Any = "float16",
    ) -> None:  # fmt: skip
        assert (qo_indptr.dtype, num_qo_heads, num_kv_heads) == (torch.int32, 1, 1)
        self.starts, self.causal, self.dtype, self.depth = qo_indptr.tolist(), causal, q_data_type, head_dim_qk

    def run(self, q: Made, k: Made, v: Made) -> Made:
        assert q.dtype == self.dtype and q.shape == (self.starts[-1], 1, self.depth) and q.is_contiguous()
        cuts = [slice(*ends) for ends in zip(self.starts, self.starts[1:], strict=False)]
        return torch.cat([_attended(q[None, at], k[None, at], v[None, at], self.causal)[0] for at in cuts])


def gemm(A: Made, B: Made, out: Made | None = None, bias: Made | None = None, alpha: float = 1.0) -> Made:
    assert A.shape[1] == B.shape[0] and 1 in B.stride()
    return A @ B


def quack_norm(
    x: Made, weight: Made | None = None, bias: Made | None = None, residual: Made | None = None,
    out_dtype: torch.dtype | None = None, residual_dtype: torch.dtype | None = None, eps: float = 1e-6,
    prenorm: bool = False,
) -> Any:  # fmt: skip
    h = x if residual is None else x + residual
    y = rms_norm(h, h.shape[-1:], weight, eps)
    return (y, h) if prenorm else y


def flashinfer_norm(input: Made, weight: Made, eps: float = 1e-6, out: Made | None = None) -> Made:
    return rms_norm(input, input.shape[-1:], weight, eps)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the stand-ins."""
    found = {
        "flash_attn": {"flash_attn_func": flash_2, "__path__": []},
        "flash_attn.flash_attn_interface": {},
        "flash_attn.cute": {"__path__": []},
        "flash_attn.cute.interface": {"flash_attn_func": flash_4},
        "flashinfer": {"BatchPrefillWithRaggedKVCacheWrapper": BatchPrefillWithRaggedKVCacheWrapper, "__path__": []},
        "flashinfer.norm": {"rmsnorm": flashinfer_norm},
        "quack": {"__path__": []},
        "quack.gemm_interface": {"gemm": gemm},
        "quack.rmsnorm": {"rmsnorm": quack_norm},
    }
    for name, content in found.items():
        module = ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)


def _kernel(name: str) -> Kernel:
    return load_kernel(KERNELS / name)


CASES = [
    ("attention", "2,3,40,64", 3), ("attention", "1,2,72,128,1,bf16", 3), ("attention_fp8", "1,2,72,64,1", 1),
    ("matmul", "24,40,56", 1), ("matmul", "24,40,56,dtype=bf16,layout=nt", 1),
    ("rmsnorm", "5,264", 2), ("rmsnorm", "5,264,bf16", 2), ("rmsnorm", "5,264,residual=add", 1),
]  # fmt: skip


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name, text, count", CASES)
def test_peers_compute_what_the_kernel_computes(name: str, text: str, count: int) -> None:
    """Each library gets arguments that it knows, in its own layout, and its result has the kernel's layout."""
    kernel = _kernel(name)
    problem = kernel.problem(text)
    torch.manual_seed(0)
    inputs, outputs = {}, {}
    for tensor_name, one in kernel.workload.buffers(problem, kernel.space.default()).items():
        values = torch.randn(one.shape) * one.scale
        if one.given or one.role == "output":
            made = inputs if one.given else outputs
            made[tensor_name] = values.to(torch_dtype(one.dtype))
    right = 0
    for baseline in kernel.workload.baselines:
        if baseline.requires is None:
            continue
        assert baseline.installed
        try:
            found = baseline_call(baseline, problem, inputs)()
        except NotImplementedError as error:
            assert "overwrites" in str(error)
            continue
        assert set(found) == set(outputs)
        right += 1
        for output, value in found.items():
            assert (value.shape, value.dtype) == (outputs[output].shape, outputs[output].dtype)
            assert float(share_of_allowed(kernel, problem, inputs, output, value).max()) <= 1
    assert right == count


def test_a_missing_peer_is_left_out_and_told_by_doctor() -> None:
    """A library that is not installed is not tried, and `doctor` names its package."""
    told = {check.name: check for check in _peers()}
    assert set(told) == set(PEERS)
    for name, (module, _) in PEERS.items():
        if not is_installed(module):
            assert told[name].status == "optional" and "pip install" in told[name].remedy
    required = {
        baseline.requires
        for name in ("attention", "attention_fp8", "matmul", "rmsnorm")
        for baseline in _kernel(name).workload.baselines
        if baseline.requires
    }
    packages = {module.split(".")[0] for module, _ in PEERS.values()}
    assert {one.split(".")[0] for one in required} == packages


@pytest.mark.usefixtures("installed")
def test_doctor_finds_installed_peers() -> None:
    """Every stand-in counts as installed."""
    assert {check.status for check in _peers()} == {"ok"}


def test_a_module_is_found_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that fails on import, a namespace package, and a module inside either."""
    (tmp_path / "broken_peer" / "inner").mkdir(parents=True)
    (tmp_path / "broken_peer" / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "broken_peer" / "inner" / "part.py").write_text("")
    (tmp_path / "spread_peer" / "cute").mkdir(parents=True)
    (tmp_path / "spread_peer" / "cute" / "interface.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert is_installed("broken_peer") and is_installed("broken_peer.inner.part")
    assert is_installed("spread_peer.cute.interface")
    assert not is_installed("spread_peer.interface") and not is_installed("broken_peer.inner.other")
    assert not is_installed("absent_peer.inner")
    assert "broken_peer" not in sys.modules and "spread_peer" not in sys.modules


def test_a_package_for_torch_has_no_peers() -> None:
    """A package runs without the libraries of others."""
    found = baselines_of(_kernel("matmul"))
    assert found.names == ("cuBLAS", "cuBLASLt")
    assert found.left_out == ("quack: it requires quack.gemm_interface",)
