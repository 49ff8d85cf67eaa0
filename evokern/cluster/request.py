"""Which cluster, and how much of it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from evokern.errors import UsageError


@dataclass(frozen=True)
class RayRequest:
    """A Ray cluster that a search runs on."""

    address: str
    """`auto` for the one that this machine belongs to, or HOST:PORT of its head."""
    num_cpus: int | None = None
    """Processors of all hosts together; None takes all that the cluster has."""
    num_gpus: int | None = None
    """GPUs of all hosts together; None takes all that the cluster has."""

    def __post_init__(self) -> None:
        for option, number in (("--num-cpus", self.num_cpus), ("--num-gpus", self.num_gpus)):
            if number is not None and number < 1:
                raise UsageError(f"{option} {number}: give at least 1")
        host, colon, port = self.address.rpartition(":")
        if self.address != "auto" and not (host and colon and port.isdecimal() and int(port) < 1 << 16):
            raise UsageError(f"--ray-address {self.address!r}: give auto, or HOST:PORT as `ray start --head` prints it")


def ray_request(address: str | None, num_cpus: int | None, num_gpus: int | None) -> RayRequest | None:
    """Return the cluster that is asked for by option or by RAY_ADDRESS; None for none.

    Raises:
        UsageError: a value is out of range, or one is given without an address.
    """
    address = address or os.environ.get("RAY_ADDRESS") or None
    if address is not None:
        return RayRequest(address, num_cpus, num_gpus)
    for option, number in (("--num-cpus", num_cpus), ("--num-gpus", num_gpus)):
        if number is not None:
            raise UsageError(f"{option} is about a Ray cluster; name it with --ray-address auto or HOST:PORT")
    return None
