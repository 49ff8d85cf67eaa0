"""Request for a Ray cluster: its address and the resources to use."""

from __future__ import annotations

import os
from dataclasses import dataclass

from evokern.errors import UsageError


@dataclass(frozen=True)
class RayRequest:
    """Ray cluster on which a search runs."""

    address: str
    """`auto` for the cluster of this machine, or HOST:PORT of the head node."""
    num_cpus: int | None = None
    """Total number of CPU cores to use; None uses all."""
    num_gpus: int | None = None
    """Total number of GPUs to use; None uses all."""

    def __post_init__(self) -> None:
        for option, number in (("--num-cpus", self.num_cpus), ("--num-gpus", self.num_gpus)):
            if number is not None and number < 1:
                raise UsageError(f"{option} {number} is too small; use at least 1")
        host, colon, port = self.address.rpartition(":")
        if self.address != "auto" and not (host and colon and port.isdecimal() and int(port) < 1 << 16):
            raise UsageError(
                f"invalid --ray-address {self.address!r}; use auto, or HOST:PORT as printed by `ray start --head`"
            )


def ray_request(address: str | None, num_cpus: int | None, num_gpus: int | None) -> RayRequest | None:
    """Return the cluster that the option or the environment variable RAY_ADDRESS requests, or None.

    Raises:
        UsageError: if a value is out of range or is given without an address.
    """
    address = address or os.environ.get("RAY_ADDRESS") or None
    if address is not None:
        return RayRequest(address, num_cpus, num_gpus)
    for option, number in (("--num-cpus", num_cpus), ("--num-gpus", num_gpus)):
        if number is not None:
            raise UsageError(f"{option} requires a Ray cluster; choose one with --ray-address auto or HOST:PORT")
    return None
