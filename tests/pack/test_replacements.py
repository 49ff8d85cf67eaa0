"""Functions of a package that let the operator compute what a model asks of torch."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (the usual name)
from packed import described

from evokern.pack import write_package
from evokern.pack.baseline_code import baselines_of
from evokern.study.discovery import find_kernel

PACKAGES = {
    "pk_sdpa": ("attention", "B=2 H=2 S=64 D=64 dtype=bf16", ["replace_sdpa", "register_attention"]),
    "pk_linear": ("matmul", "M=16 N=128 K=64 dtype=bf16 layout=nt", ["replace_linear"]),
    "pk_norm": ("rmsnorm", "ROWS=16 COLS=64 dtype=bf16", ["replace_rmsnorm"]),
    "pk_product": ("matmul", "M=16 N=128 K=64 dtype=bf16", []),
    "pk_residual": ("rmsnorm", "ROWS=16 COLS=64 dtype=bf16 residual=add", []),
}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The packages, imported; their kernels would be launched from Python."""
    root = tmp_path_factory.mktemp("replacements")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("evokern.pack.library.host_compiler", lambda: None)
        for name, (kernel, problem, _) in PACKAGES.items():
            made = described(find_kernel(kernel), problem, package=name)
            write_package(root / name, made, baselines_of(made.kernel), {})
            patch.syspath_prepend(str(root / name))
        yield {name: import_module(name) for name in PACKAGES}


@pytest.fixture(autouse=True)
def own_compilation() -> None:
    """Forget what other tests compiled."""
    torch._dynamo.reset()


def counted(package: Any) -> dict[str, int]:
    """Return how often replaced code ran, by reason."""
    found = package.stats()["baselines"]
    return {name.removeprefix("replaced code: "): n for name, n in found.items() if name.startswith("replaced")}


def heads(*shape: int) -> list[torch.Tensor]:
    """Return query, key and value."""
    return [torch.randn(*shape).bfloat16() for _ in range(3)]


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_has_the_functions_that_fit_its_kernel(name: str, packages: Any) -> None:
    """The reference decides, not the name of the kernel: another layout or a residual is another operation."""
    assert [one for one in packages[name].__all__ if one.startswith(("replace", "register"))] == PACKAGES[name][2]
    files = {path.name for path in Path(packages[name].__file__).parent.glob("*.py")}
    assert ("_sdpa.py" in files, "_modules.py" in files) == (
        name == "pk_sdpa", name in ("pk_linear", "pk_norm"),
    )  # fmt: skip


def test_attention_is_replaced_until_the_block_ends(packages: Any) -> None:
    """The operator computes plain and causal attention; the function of torch is back also after an error."""
    package, original = packages["pk_sdpa"], F.scaled_dot_product_attention
    given = heads(2, 2, 64, 64)
    before = package.stats()["baselines"].get("SDPA: the inputs are on cpu", 0)
    with package.replace_sdpa():
        for causal in (False, True):
            torch.testing.assert_close(
                F.scaled_dot_product_attention(*given, is_causal=causal), original(*given, is_causal=causal)
            )
    assert package.stats()["baselines"]["SDPA: the inputs are on cpu"] == before + 2
    with pytest.raises(ZeroDivisionError), package.replace_sdpa():
        raise ZeroDivisionError
    assert F.scaled_dot_product_attention is original


def test_other_attention_goes_to_torch_and_is_counted(packages: Any) -> None:
    """Masks, dropout, another scale, fewer heads of keys, gaps, other data types, gradients."""
    package, original = packages["pk_sdpa"], F.scaled_dot_product_attention
    q, k, v = heads(2, 2, 64, 64)
    gaps = q.transpose(1, 2).contiguous().transpose(1, 2)
    calls: dict[str, tuple[tuple[torch.Tensor, ...], dict[str, Any]]] = {
        "there is a mask": ((q, k, v), {"attn_mask": torch.ones(64, 64, dtype=torch.bool).tril()}),
        "there is dropout": ((q, k, v), {"dropout_p": 1e-9}),
        "the scale is not 1/sqrt(D)": ((q, k, v), {"scale": 0.1}),
        "query, key and value have different shapes": ((q, k[:, :1], v[:, :1]), {"enable_gqa": True}),
        "q is not contiguous": ((gaps, k, v), {}),
        "q has the data type torch.float32": ((q.float(), k.float(), v.float()), {}),
        "an input needs a gradient": ((q.clone().requires_grad_(), k, v), {}),
    }
    with package.replace_sdpa():
        for reason, (given, options) in calls.items():
            before = sum(counted(package).values())
            made = F.scaled_dot_product_attention(*given, **options)
            torch.testing.assert_close(made, original(*given, **options), atol=0.02, rtol=0.02)
            assert sum(counted(package).values()) == before + 1
            assert any(one.startswith(reason) for one in counted(package)), reason
    made.sum().backward()
    with package.replace_sdpa(copy=True):
        before = sum(counted(package).values())
        torch.testing.assert_close(F.scaled_dot_product_attention(gaps, k, v), original(gaps, k, v))
        assert sum(counted(package).values()) == before


def test_a_model_compiles_with_replaced_attention(packages: Any) -> None:
    """Without a break of the graph, for calls that the operator takes and for others."""
    package = packages["pk_sdpa"]

    def model(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True) + 1

    with package.replace_sdpa():
        function = torch.compile(model, fullgraph=True, backend="aot_eager")
        for given in (heads(2, 2, 64, 64), [one.float() for one in heads(2, 2, 64, 64)]):
            torch.testing.assert_close(function(*given), model(*given))


def test_a_failure_of_the_operator_is_not_hidden(packages: Any) -> None:
    """Only its refusals send a call to torch."""

    def failing(*given: Any, **options: Any) -> Any:
        raise RuntimeError("cannot launch: an illegal address")

    with pytest.raises(RuntimeError, match="cannot launch"):
        packages["pk_norm"]._operator.run_instead(failing, [torch.ones(1)], {}, lambda: None)


def test_the_attention_of_transformers(packages: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A registered function gets the layout of transformers, and passes other calls to its `sdpa`."""
    registered: dict[str, Any] = {}

    def original(module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> tuple[Any, None]:
        found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=bool(options["is_causal"]))
        return found.transpose(1, 2).contiguous(), None

    root = types.ModuleType("transformers")
    for name in ("AttentionInterface", "AttentionMaskInterface"):
        save = staticmethod(lambda key, value, name=name: registered.__setitem__((name, key), value))
        setattr(root, name, type(name, (), {"register": save}))
    for name, functions in (
        ("masking_utils", "ALL_MASK_ATTENTION_FUNCTIONS"),
        ("modeling_utils", "ALL_ATTENTION_FUNCTIONS"),
    ):
        module = types.ModuleType(f"transformers.{name}")
        setattr(module, functions, {"sdpa": original})
        monkeypatch.setitem(sys.modules, f"transformers.{name}", module)
    monkeypatch.setitem(sys.modules, "transformers", root)
    package = packages["pk_sdpa"]
    package.register_attention("packed")
    attention = registered["AttentionInterface", "packed"]
    assert registered["AttentionMaskInterface", "packed"] is original
    q, k, v = (one.transpose(1, 2).contiguous().transpose(1, 2) for one in heads(2, 2, 64, 64))
    layer = torch.nn.Module()
    layer.is_causal = True  # type: ignore[assignment]
    before = package.stats()["baselines"].get("SDPA: the inputs are on cpu", 0)
    made, weights = attention(layer, q, k, v, None, scaling=64**-0.5)
    wanted = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    torch.testing.assert_close(made, wanted)
    assert (weights, made.is_contiguous()) == (None, True)
    assert package.stats()["baselines"]["SDPA: the inputs are on cpu"] == before + 1
    mask = torch.ones(64, 64, dtype=torch.bool).tril()
    torch.testing.assert_close(attention(layer, q, k, v, mask, is_causal=False)[0], wanted, atol=0.02, rtol=0.02)
    assert package.stats()["baselines"]["SDPA: the inputs are on cpu"] == before + 1


class _Norm(torch.nn.Module):
    """A norm as model libraries write it."""

    def __init__(self, offset: float = 0.0, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight, self.offset, self.variance_epsilon = torch.nn.Parameter(torch.rand(64)), offset, eps

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the normalised rows."""
        wide = hidden.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.variance_epsilon)
        return ((self.offset + self.weight) * wide).to(hidden.dtype)


def test_norms_are_replaced_if_they_compute_the_same(packages: Any) -> None:
    """Also a norm of another library; not one with another eps or with an offset of the weight."""
    package = packages["pk_norm"]
    model = torch.nn.Sequential(
        torch.nn.RMSNorm(64, eps=1e-5), torch.nn.RMSNorm(64, eps=1e-6), _Norm(), _Norm(1.0), _Norm(eps=1e-6),
        torch.nn.LayerNorm(64),
    ).bfloat16()  # fmt: skip
    names, x = list(model.state_dict()), torch.randn(3, 5, 64).bfloat16()
    with torch.no_grad():
        wanted = model(x)
        assert package.replace_rmsnorm(model) == 2
        assert package.replace_rmsnorm(model) == 0
        torch.testing.assert_close(model(x), wanted, atol=0.05, rtol=0.05)
        assert torch.compile(model, fullgraph=True, backend="aot_eager")(x).shape == x.shape
    assert isinstance(model[0], torch.nn.RMSNorm)
    assert list(model.state_dict()) == names
    before = counted(package).get("an input needs a gradient", 0)
    model(x).sum().backward()
    assert counted(package)["an input needs a gradient"] == before + 2


def test_linear_layers_without_a_bias_are_replaced(packages: Any) -> None:
    """Rows of any number of dimensions; layers with a bias stay as they are."""
    package = packages["pk_linear"]
    model = torch.nn.Sequential(torch.nn.Linear(64, 128, bias=False), torch.nn.Linear(128, 64)).bfloat16()
    x = torch.randn(2, 8, 64).bfloat16()
    with torch.no_grad():
        wanted = model(x)
        assert package.replace_linear(model) == 1
        before = package.stats()["baselines"].get("cuBLAS: the inputs are on cpu", 0)
        torch.testing.assert_close(model(x), wanted)
        torch.testing.assert_close(model(x.transpose(0, 1)), wanted.transpose(0, 1))
        assert package.stats()["baselines"]["cuBLAS: the inputs are on cpu"] == before + 1
        assert counted(package)["the input is not contiguous"] == 1
        torch.testing.assert_close(torch.compile(model, fullgraph=True, backend="aot_eager")(x), wanted)
        torch.testing.assert_close(model.float()(x.float()), wanted.float(), atol=0.05, rtol=0.05)
