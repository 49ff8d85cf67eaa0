"""Encrypted storage on a GPU, which candidates on that GPU cannot read.

A candidate can search all device memory of the context that it runs in. Float64 references must stay secret, and the
original inputs must not be replaced unnoticed. Both are stored XORed with the stream of a counter generator (Philox,
Salmon et al., SC 2011). The keys stay in host memory and change with each write.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping

import torch

from evokern.gate.device_kernels import DeviceKernels

_WORDS_AT_ONCE = 1 << 24
"""Maximum number of 8-byte words whose stream is generated in one step."""


class Sealed:
    """Encrypted rows of 8-byte words, with one key per row or one key for all rows if they are few."""

    def __init__(
        self, rows: int, words: int, device: torch.device, secret: random.Random, *, active: bool, together: bool,
        own: DeviceKernels | None = None,
    ) -> None:  # fmt: skip
        """Allocate the storage.

        Args:
            rows: number of rows.
            words: number of 8-byte words per row.
            device: device of the storage.
            secret: source of the keys, in host memory.
            active: whether to encrypt; False if no candidate can read the device's memory.
            together: whether rows are mostly written and read together; a few rows then share one key.
            own: evokern's kernels for this device; None uses torch's generator and operations.
        """
        self.memory = torch.zeros((rows, words), dtype=torch.int64, device=device)
        self._secret, self._active = secret, active
        one = together and rows * words <= _WORDS_AT_ONCE
        self._groups = [slice(0, rows)] if one else [slice(row, row + 1) for row in range(rows)]
        self._keys = [0] * len(self._groups)
        self._stream = torch.Generator(device)
        self._cipher = own.cipher if own else self._by_torch

    def put(self, rows: Collection[int], words: torch.Tensor) -> None:
        """Store some rows under new keys.

        Args:
            rows: indices of the rows.
            words: contents of all rows, shape (rows, words); other rows are ignored.
        """
        for number, group in enumerate(self._groups):
            kept = [row for row in range(group.start, group.stop) if row not in rows]
            if len(kept) == group.stop - group.start:
                continue
            plain = words[group]
            if kept:
                opened, plain = self._opened(number), plain.clone()
                for row in kept:
                    plain[row - group.start] = opened[row - group.start]
            self._keys[number] = self._secret.getrandbits(62)
            self._xor(number, plain, self.memory[group])

    def get(self, row: int) -> torch.Tensor:
        """Return the decrypted row; without encryption, the row itself and not a copy."""
        number = next(n for n, group in enumerate(self._groups) if group.start <= row < group.stop)
        return self._opened(number)[row - self._groups[number].start]

    def plain(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield all rows decrypted, grouped by key; without encryption, the rows themselves and not copies."""
        for number, group in enumerate(self._groups):
            yield group, self._opened(number)

    def _opened(self, number: int) -> torch.Tensor:
        sealed = self.memory[self._groups[number]]
        if not self._active:
            return sealed
        words = torch.empty_like(sealed)
        self._xor(number, sealed, words)
        return words

    def _xor(self, number: int, words: torch.Tensor, out: torch.Tensor) -> None:
        """Write the words of a group to `out`, XORed with the stream of its key."""
        if self._active:
            self._cipher(words.reshape(-1), out.view(-1), self._keys[number])
        elif words.data_ptr() != out.data_ptr():  # `get` returned the row itself
            out.copy_(words)

    def _by_torch(self, flat: torch.Tensor, into: torch.Tensor, key: int) -> None:
        for place, start in enumerate(range(0, len(flat), _WORDS_AT_ONCE)):
            part = flat[start : start + _WORDS_AT_ONCE]
            self._stream.manual_seed(key + place)
            mask = torch.randint(
                -(2**63), 2**63 - 1, part.shape, generator=self._stream, device=part.device, dtype=torch.int64
            )
            torch.bitwise_xor(part, mask, out=into[start : start + _WORDS_AT_ONCE])


def wipe_free_memory(device: torch.device) -> int:
    """Overwrite torch's cached free device memory, which may hold results of earlier operations.

    Returns:
        Number of bytes overwritten; 0 without a GPU.
    """
    if device.type != "cuda":
        return 0
    from cuda.bindings import driver

    index = torch.cuda.current_device() if device.index is None else device.index
    stream, wiped = torch.cuda.current_stream(device).cuda_stream, 0
    for segment in torch.cuda.memory_snapshot():  # type: ignore[no-untyped-call]
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "inactive" and segment["device"] == index:
                # An error of the candidate may appear here; the next driver call reports it again.
                driver.cuMemsetD8Async(address, 0xFF, block["size"], stream)
                wiped += block["size"]
            address += block["size"]
    return wiped


class ReferenceValues(dict[str, torch.Tensor]):
    """Float64 references by output, with the bounds on their errors."""

    def __init__(self, values: Mapping[str, torch.Tensor], errors: Mapping[str, torch.Tensor] | None = None) -> None:
        super().__init__(values)
        self.errors = dict(errors or {})
        """Output → bound on the error before rounding, broadcastable to the output; outputs without a bound, or whose
        bound is 0, are absent."""
