"""Values that lie on a GPU while a candidate runs there, so that no candidate can read them.

Device memory belongs to the context that a candidate runs in: it can search all of it. What must stay unknown, the
float64 references, and what must not be replaced unseen, the inputs' originals, rests XORed with a stream of a counter
generator (Philox, Salmon et al., SC 2011) whose keys stay in host memory and are new with each write.
"""

from __future__ import annotations

import random

import torch

_WORDS_AT_ONCE = 1 << 24
"""Words of 8 bytes whose stream is made at once."""


class Sealed:
    """Rows of 8-byte words, each under a key of its own."""

    def __init__(self, rows: int, words: int, device: torch.device, secret: random.Random, *, active: bool) -> None:
        """Allocate.

        Args:
            rows: how many rows.
            words: 8-byte words of each.
            device: where.
            secret: source of the keys, in host memory.
            active: False keeps the words as they are, where no candidate can reach them.
        """
        self.memory = torch.zeros((rows, words), dtype=torch.int64, device=device)
        self._secret, self._active = secret, active
        self._keys = [0] * rows
        self._stream = torch.Generator(device)

    def put(self, row: int, words: torch.Tensor) -> None:
        """Store a row."""
        self._keys[row] = self._secret.getrandbits(62)
        self._crossed(row, words, self.memory[row])

    def get(self, row: int) -> torch.Tensor:
        """Return a row: a copy where it is sealed, the row itself where it is not."""
        if not self._active:
            return self.memory[row]
        words = torch.empty_like(self.memory[row])
        self._crossed(row, self.memory[row], words)
        return words

    def _crossed(self, row: int, words: torch.Tensor, out: torch.Tensor) -> None:
        if not self._active:
            out.copy_(words)
            return
        for number, start in enumerate(range(0, len(words), _WORDS_AT_ONCE)):
            part = words[start : start + _WORDS_AT_ONCE]
            self._stream.manual_seed(self._keys[row] + number)
            mask = torch.randint(
                -(2**63), 2**63 - 1, part.shape, generator=self._stream, device=part.device, dtype=torch.int64
            )
            torch.bitwise_xor(part, mask, out=out[start : start + _WORDS_AT_ONCE])


def wipe_free_memory(device: torch.device) -> int:
    """Overwrite the device memory that torch keeps for later, where results of its own operations are left.

    Returns:
        Bytes overwritten; 0 where there is no GPU.
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
                # An error of the candidate's that surfaces here surfaces again in the next call of the driver.
                driver.cuMemsetD8Async(address, 0xFF, block["size"], stream)
                wiped += block["size"]
            address += block["size"]
    return wiped
