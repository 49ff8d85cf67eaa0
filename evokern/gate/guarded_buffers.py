"""Buffers in one allocation, with guard zones before, between and after them.

`GuardedBuffers` holds several *sets* of the same buffers. Its memory is a matrix of bytes with one row per set, so one
torch operation resets or checks all sets.

Guard bytes read as NaN in every floating-point type of two bytes or more. A read outside a buffer therefore shows in
the result, and a write outside it shows in the guard.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from evokern.declaration.kernel import Tensor
from evokern.gate.data import torch_dtype

ALIGNMENT = 256
"""Alignment of every buffer in bytes: that of `cudaMalloc`, on which kernels may rely."""
GUARD_PATTERN = (0xFD, 0x7F)
"""Guard bytes: little-endian 0x7FFD, a NaN that no instruction produces."""


@dataclass(frozen=True)
class GuardViolation:
    """A write outside all buffers."""

    tensor: str
    """The nearest buffer."""
    distance: int
    """Bytes before its start (negative) or past its end (0 is the first byte after it)."""

    def __str__(self) -> str:
        if self.distance < 0:
            return f"wrote {-self.distance} bytes before the start of {self.tensor!r}"
        return f"wrote past the end of {self.tensor!r}, at offset {self.distance} from its end"


class GuardedBuffers:
    """Several sets of buffers with guard zones."""

    def __init__(self, tensors: Mapping[str, Tensor], sets: int, guard_bytes: int, device: torch.device) -> None:
        """Allocate the buffers and fill the guards.

        Args:
            tensors: the buffers of one set.
            sets: number of sets.
            guard_bytes: size of each guard zone, a multiple of `ALIGNMENT`.
            device: device of the buffers.
        """
        self.tensors = dict(tensors)
        self.sets = sets
        self._offsets: dict[str, int] = {}
        end = guard_bytes
        for name, tensor in self.tensors.items():
            self._offsets[name] = end
            end += -(-tensor.bytes // ALIGNMENT) * ALIGNMENT + guard_bytes
        self.memory = torch.empty((sets, end), dtype=torch.uint8, device=device)
        self.memory.view(sets, -1, 2).copy_(torch.tensor(GUARD_PATTERN, dtype=torch.uint8, device=device))
        self._guards = self._guard_offsets(end).to(device)
        self._guard_bytes = self.memory[0].index_select(0, self._guards)
        self.views = {name: self._view(name, tensor) for name, tensor in self.tensors.items()}
        """Views of the buffers in their own dtypes, each of shape (sets, *shape)."""

    def _guard_offsets(self, end: int) -> torch.Tensor:
        starts = [0, *(self._offsets[name] + tensor.bytes for name, tensor in self.tensors.items())]
        ends = [*self._offsets.values(), end]
        return torch.cat([torch.arange(start, stop) for start, stop in zip(starts, ends, strict=True)])

    def _view(self, name: str, tensor: Tensor) -> torch.Tensor:
        return self.bytes_of(name).view(torch_dtype(tensor.dtype)).view(self.sets, *tensor.shape)

    def bytes_of(self, name: str, memory: torch.Tensor | None = None) -> torch.Tensor:
        """Return the bytes of a buffer in all sets, shape (sets, bytes).

        Args:
            name: the buffer.
            memory: copy of the buffers' memory to read from instead.
        """
        start = self._offsets[name]
        return (self.memory if memory is None else memory)[:, start : start + self.tensors[name].bytes]

    def set(self, index: int) -> dict[str, torch.Tensor]:
        """Return the contiguous buffers of one set, by name."""
        return {name: view[index] for name, view in self.views.items()}

    def restore_guards(self) -> None:
        """Restore every guard."""
        self.memory.index_copy_(1, self._guards, self._guard_bytes.expand(self.sets, -1))

    def broken_guards(self) -> torch.Tensor:
        """Return the number of changed guard bytes in each set, shape (sets,), on the device of the buffers."""
        return (self.memory.index_select(1, self._guards) != self._guard_bytes).sum(1)

    def guard_violation(self, index: int) -> GuardViolation:
        """Return the position of the first changed guard byte of a set."""
        changed = (self.memory[index].index_select(0, self._guards) != self._guard_bytes).nonzero()
        offset = int(self._guards[changed[0, 0]])
        return min((self._violation_at(name, offset) for name in self.tensors), key=lambda t: abs(t.distance))

    def _violation_at(self, name: str, offset: int) -> GuardViolation:
        start = self._offsets[name]
        past = offset - (start + self.tensors[name].bytes)
        return GuardViolation(name, past if past >= 0 else offset - start)
