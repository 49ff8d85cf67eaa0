"""Clocks, temperature, throttling and other users of a GPU, read from NVML by PCI address."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

_REASONS = {
    0x0000000000000004: "power cap",
    0x0000000000000008: "hardware slowdown",
    0x0000000000000020: "software thermal slowdown",
    0x0000000000000040: "hardware thermal slowdown",
    0x0000000000000080: "power brake",
}
"""Bits of `nvmlClocksEventReasons` that lower clocks under load (NVML API reference, "Clocks event reasons")."""
DISTURBING = ("hardware slowdown", "software thermal slowdown", "hardware thermal slowdown", "power brake")
"""Throttle reasons that discard all samples. With a power cap the samples before it count (`State.capped`), because
long calls always reach it."""


@dataclass(frozen=True)
class State:
    """One reading of the GPU's state."""

    clock_mhz: float | None = None
    """SM clock in MHz."""
    throttle: str = ""
    """Throttle reasons, comma-separated; empty for none."""
    temperature_c: float | None = None
    """Temperature of the GPU in °C."""

    @property
    def disturbed(self) -> bool:
        """Whether the GPU is throttled for a reason that makes samples taken now useless."""
        return any(reason in self.throttle for reason in DISTURBING)

    @property
    def capped(self) -> bool:
        """Whether the GPU reached its power limit, which lowers its clock while it stays busy."""
        return "power cap" in self.throttle


class Monitor:
    """NVML monitor of one GPU; readings are empty if NVML is missing or fails."""

    def __init__(self, pci_bus_id: str) -> None:
        """Connect to the GPU.

        Args:
            pci_bus_id: for example `0000:3B:00.0`.
        """
        self._nvml: Any = None
        self._handle: Any = None
        self.problem = ""
        """Reason why readings are missing; empty otherwise."""
        try:
            import pynvml

            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id.encode())
            self._nvml = pynvml
        except ImportError:
            self.problem = "clocks are not recorded, because nvidia-ml-py is missing; run: pip install nvidia-ml-py"
        except Exception as error:
            # NVML's own errors derive from Exception; containers often lack NVML.
            self.problem = f"clocks are not recorded, because NVML failed: {error}"

    def read(self) -> State:
        """Return clock, throttle reasons and temperature."""
        if self._nvml is None:
            return State()
        nvml, handle = self._nvml, self._handle
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons") or 0
        clock = _call_or_none(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM)
        temperature = _call_or_none(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
        names = ", ".join(name for bit, name in _REASONS.items() if reasons & bit)
        return State(clock, names, temperature)

    def foreign(self, own: Iterable[int]) -> list[int]:
        """Return the IDs of other processes that compute on this GPU.

        In a container NVML may list process IDs of the host. If none of the given processes is listed, foreign
        processes cannot be identified and the result is empty.

        Args:
            own: process IDs of this search.
        """
        found = _call_or_none(self._nvml.nvmlDeviceGetComputeRunningProcesses, self._handle) if self._nvml else None
        listed = [process.pid for process in found or []]
        ours = set(own)
        if ours and not ours & set(listed):
            return []
        return [pid for pid in listed if pid not in ours]

    def utilisation(self) -> int | None:
        """Return the recent utilisation of the GPU in percent."""
        rates = _call_or_none(self._nvml.nvmlDeviceGetUtilizationRates, self._handle) if self._nvml else None
        return None if rates is None else int(rates.gpu)

    def _ask(self, *names: str) -> Any:
        for name in names:
            function = getattr(self._nvml, name, None)
            if function is not None:
                return _call_or_none(function, self._handle)
        return None


def _call_or_none(function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception:
        # Some GPUs do not support all queries; an unsupported value is None.
        return None
