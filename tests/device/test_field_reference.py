"""References over the field: equal formulas have equal residues, others do not, and unknown operations are named."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from evokern.device.sim.algebra.reference import field_reference
from evokern.simt.exact import NO_Q, P, Q, Value

Reference = Callable[[Any, Mapping[str, torch.Tensor]], torch.Tensor]
SHAPES = {"x": (2, 3, 6, 8), "y": (2, 3, 6, 8), "z": (2, 3, 6, 8), "w": (8,), "m": (16, 8)}


def _evaluated(reference: Reference) -> Value | str:
    rng, generator = np.random.default_rng(1), torch.Generator().manual_seed(1)
    inputs = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    shadows = {
        name: Value(rng.integers(0, P, math.prod(shape), np.uint64), rng.integers(0, Q, math.prod(shape), np.uint64))
        for name, shape in SHAPES.items()
    }
    workload = SimpleNamespace(reference=lambda p, t: {"o": reference(p, t)})
    kernel: Any = SimpleNamespace(workload=workload)
    problem: Any = None
    found = field_reference(kernel, problem, inputs, shadows)
    return found if isinstance(found, str) else found.values["o"]


def _same(one: Reference, other: Reference) -> bool:
    a, b = _evaluated(one), _evaluated(other)
    assert isinstance(a, Value), a
    assert isinstance(b, Value), b
    assert a.bad is None, "not comparable"
    assert b.bad is None, "not comparable"
    both = (a.q != NO_Q) & (b.q != NO_Q)
    return bool((a.p == b.p).all() and (a.q == b.q)[both].all())


def _attention(p: Any, t: Mapping[str, torch.Tensor], *, causal: bool = False, first: int = 0) -> torch.Tensor:
    """Attention in parts, with a mask in place, as the packaged kernel writes it."""
    parts = []
    for q, k, v in zip(*(t[name].flatten(0, 1).split(2) for name in "xyz"), strict=True):
        scores = q @ k.transpose(-1, -2) / math.sqrt(16) * 1.0
        if causal:
            scores.masked_fill_(torch.ones(6, 6, dtype=torch.bool).triu(1), -math.inf)
        parts.append(torch.softmax(scores[..., first:], -1) @ v[..., first:, :])
    return torch.cat(parts).view(t["x"].shape)


def _by_hand(p: Any, t: Mapping[str, torch.Tensor]) -> torch.Tensor:
    e = torch.exp(t["x"] @ t["y"].mT * 0.25)
    return torch.einsum("abij,abjk->abik", e, t["z"]) / e.sum(-1, keepdim=True)


def _stored(p: Any, t: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """A normalisation that writes rows into a new tensor of the type of its inputs."""
    out = torch.zeros(t["x"].shape, dtype=torch.float64)
    for row in range(t["x"].shape[2]):
        h = t["x"][:, :, row]
        out[:, :, row] = h / (h * h).mean(-1, keepdim=True).add(1e-5).sqrt() * t["w"]
    return out


def _normal(p: Any, t: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return t["x"] * torch.rsqrt(t["x"].square().mean(-1, keepdim=True) + 1e-5) * t["w"]


SAME: Mapping[str, tuple[Reference, Reference]] = {
    "attention": (_attention, _by_hand),
    "attention of torch": (
        lambda p, t: functional.scaled_dot_product_attention(t["x"], t["y"], t["z"], scale=0.25),
        _by_hand,
    ),
    "causal attention of torch": (
        lambda p, t: functional.scaled_dot_product_attention(t["x"], t["y"], t["z"], is_causal=True, scale=0.25),
        lambda p, t: _attention(p, t, causal=True),
    ),
    "normalisation": (_normal, lambda p, t: functional.rms_norm(t["x"], (8,), t["w"], 1e-5)),
    "normalisation by rows": (_normal, _stored),
    "new tensors": (lambda p, t: torch.empty_like(t["w"]).copy_(t["w"]), lambda p, t: t["w"].clone()),
    "padding": (lambda p, t: functional.pad(t["x"], (0, 2)).sum(-1), lambda p, t: t["x"].sum(-1)),
    "selection": (
        lambda p, t: t["x"][:, [2, 0]].flip(0),
        lambda p, t: torch.stack([t["x"][1, [2, 0]], t["x"][0, [2, 0]]]),
    ),
    "products": (lambda p, t: functional.linear(t["x"], t["m"]), lambda p, t: (t["m"] @ t["x"].mT).mT),
    "vectors": (lambda p, t: t["m"] @ t["w"], lambda p, t: (t["m"] * t["w"]).sum(-1)),
    "sums": (lambda p, t: t["x"].sum((0, 2)) / 12, lambda p, t: t["x"].mean(2).mean(0)),
    "roots": (lambda p, t: 1 / (t["w"] * t["w"] + 1).sqrt(), lambda p, t: (t["w"] ** 2 + 1) ** -0.5),
    "activations": (lambda p, t: functional.silu(t["x"]), lambda p, t: t["x"] / (1 + torch.exp(-t["x"]))),
    "conversions": (lambda p, t: (t["x"] + t["y"]).to(torch.float16).to(torch.float64), lambda p, t: t["y"] + t["x"]),
    "maxima": (lambda p, t: torch.relu(t["x"]), lambda p, t: torch.where(t["x"] > 0, t["x"], 0.0)),
    "logarithms": (
        lambda p, t: torch.log_softmax(t["x"], -1) + t["x"].logsumexp(-1, keepdim=True),
        lambda p, t: torch.log(t["x"].exp()),
    ),
    "losses": (
        lambda p, t: functional.cross_entropy(t["m"], torch.arange(16) % 8, reduction="none"),
        lambda p, t: t["m"].exp().sum(-1).log() - t["m"][torch.arange(16), torch.arange(16) % 8],
    ),
    "softplus": (lambda p, t: functional.softplus(t["x"]), lambda p, t: -functional.logsigmoid(-t["x"])),
    "error functions": (
        lambda p, t: functional.gelu(t["x"]),
        lambda p, t: t["x"] * (1 - 0.5 * torch.erfc(t["x"] * 0.5**0.5)),
    ),
    "powers": (lambda p, t: (t["x"] ** 2) ** t["y"], lambda p, t: ((t["x"] * t["x"]).log() * t["y"]).exp()),
    "sines": (lambda p, t: t["x"].sin() ** 2 + t["x"].cos() ** 2, lambda p, t: torch.ones_like(t["x"])),
    "hyperbolic functions": (lambda p, t: t["x"].sinh() / t["x"].cosh(), lambda p, t: t["x"].tanh()),
    "running sums": (lambda p, t: t["x"].cumsum(-1), lambda p, t: t["x"] @ torch.ones(8, 8).double().triu()),
    "scattered sums": (
        lambda p, t: torch.zeros(3, 8).double().index_add_(0, torch.arange(16) % 3, t["m"]),
        lambda p, t: torch.stack([t["m"][first::3].sum(0) for first in range(3)]),
    ),
    "accumulation": (
        lambda p, t: t["w"].index_put((torch.tensor([1, 1]),), t["m"][0, :2], accumulate=True),
        lambda p, t: torch.cat([t["w"][:1], t["w"][1:2] + t["m"][0, :2].sum(), t["w"][2:]]),
    ),
    "convolutions": (
        lambda p, t: functional.conv2d(t["x"], t["y"][:, :, :2, :3], t["w"][:2], stride=2, padding=1),
        lambda p, t: (
            functional.unfold(t["x"], (2, 3), padding=1, stride=2).mT @ t["y"][:, :, :2, :3].flatten(1).T + t["w"][:2]
        ).mT.unflatten(-1, (4, 4)),
    ),
    "convolutions of groups": (
        lambda p, t: functional.conv1d(t["x"][0, :, 0][None], t["y"][0, :, None, 0, :3], dilation=2, groups=3)[0],
        lambda p, t: sum(t["x"][0, :, 0, 2 * k : 2 * k + 4] * t["y"][0, :, 0, k : k + 1] for k in range(3)),
    ),
    "orders": (lambda p, t: t["x"].sort(-1).values[..., -2:].flip(-1), lambda p, t: t["x"].topk(2).values),
    "layers": (
        lambda p, t: functional.layer_norm(t["x"], (8,), t["w"], eps=1e-5),
        lambda p, t: (
            (t["x"] - t["x"].mean(-1, keepdim=True))
            * torch.rsqrt(t["x"].var(-1, correction=0, keepdim=True) + 1e-5)
            * t["w"]
        ),
    ),
}
DIFFERENT: Mapping[str, tuple[Reference, Reference]] = {
    "a key": (_attention, lambda p, t: _attention(p, t, first=1)),
    "the mask": (_attention, lambda p, t: _attention(p, t, causal=True)),
    "a constant": (_normal, lambda p, t: functional.rms_norm(t["x"], (8,), t["w"], 1.1e-5)),
    "the order of a matrix": (lambda p, t: t["x"] @ t["y"].mT, lambda p, t: t["y"] @ t["x"].mT),
}


@pytest.mark.parametrize("name", SAME)
def test_equal_formulas_have_equal_residues(name: str) -> None:
    """Other operations, orders and shapes of the same formula change nothing."""
    assert _same(*SAME[name])


@pytest.mark.parametrize("name", DIFFERENT)
def test_other_formulas_have_other_residues(name: str) -> None:
    """A term, a mask, a constant or an operand that differs is found."""
    assert not _same(*DIFFERENT[name])


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        (lambda p, t: torch.hypot(t["x"], t["y"]), "torch's 'hypot' has no rule in exact arithmetic"),
        (lambda p, t: torch.linalg.inv(t["x"] @ t["x"].mT), "has no rule in exact arithmetic"),
        (lambda p, t: torch.tensor(t["x"].numpy()), "the reference raised"),
        (lambda p, t: t["x"].cummax(-1).values, "torch's 'cummax' has no rule in exact arithmetic"),
        (lambda p, t: t["x"] * t["x"].max().item(), "torch's '_local_scalar_dense' has no rule"),
        (lambda p, t: functional.conv_transpose2d(t["x"], t["y"][:1].mT), "a transposed convolution has no rule"),
        (lambda p, t: t["w"].index_add(0, torch.tensor([0]), t["w"][:1], alpha=2), "'index_add' with alpha has no"),
        (lambda p, t: 1 / 0, "the reference raised ZeroDivisionError"),
    ],
)
def test_an_unknown_operation_is_named(reference: Reference, reason: str) -> None:
    """There is then no reference over the field, with the operation."""
    found = _evaluated(reference)
    assert isinstance(found, str)
    assert reason in found


def test_a_second_exponential_is_not_comparable() -> None:
    """The result of an exponential is no exponent."""
    found = _evaluated(lambda p, t: torch.exp(torch.exp(t["w"])))
    assert isinstance(found, Value)
    assert found.bad is not None
    assert found.bad.all()
