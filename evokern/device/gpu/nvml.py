"""Clocks, temperature, throttling and other users of a GPU, from NVML; the GPU is matched by its PCI address."""

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
"""Reasons whose samples are all taken again. Under a power cap those before it are kept: it is how a GPU runs that long
calls keep busy (`State.capped`)."""


@dataclass(frozen=True)
class State:
    """One reading."""

    clock_mhz: float | None = None
    """SM clock."""
    throttle: str = ""
    """Throttle reasons, comma-separated; empty for none."""
    temperature_c: float | None = None
    """GPU temperature."""

    @property
    def disturbed(self) -> bool:
        """Whether samples taken now say more about the clock than about the candidate."""
        return any(reason in self.throttle for reason in DISTURBING)

    @property
    def capped(self) -> bool:
        """Whether the GPU has reached its power limit, so that its clock falls for as long as it stays busy."""
        return "power cap" in self.throttle


class Monitor:
    """Reads one GPU; every reading is empty where NVML is not installed or does not answer."""

    def __init__(self, pci_bus_id: str) -> None:
        """Find the GPU.

        Args:
            pci_bus_id: for example `0000:3B:00.0`.
        """
        self._nvml: Any = None
        self._handle: Any = None
        self.problem = ""
        """Why there are no readings, empty where there are."""
        try:
            import pynvml

            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id.encode())
            self._nvml = pynvml
        except ImportError:
            self.problem = "clocks are not recorded: pip install nvidia-ml-py"
        except Exception as error:
            # NVML's own errors derive from Exception; a container often has no NVML at all.
            self.problem = f"clocks are not recorded: NVML says {error}"

    def read(self) -> State:
        """Return clock, throttle reasons and temperature."""
        if self._nvml is None:
            return State()
        nvml, handle = self._nvml, self._handle
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons") or 0
        clock = _quiet(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM)
        temperature = _quiet(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
        names = ", ".join(name for bit, name in _REASONS.items() if reasons & bit)
        return State(clock, names, temperature)

    def foreign(self, own: Iterable[int]) -> list[int]:
        """Return processes that compute on this GPU and are not ours.

        Inside a container NVML may number processes as the host does. When none of ours is among those it lists, which
        ones are foreign cannot be told, and none is reported.
        """
        found = _quiet(self._nvml.nvmlDeviceGetComputeRunningProcesses, self._handle) if self._nvml else None
        listed = [process.pid for process in found or []]
        ours = set(own)
        if ours and not ours & set(listed):
            return []
        return [pid for pid in listed if pid not in ours]

    def utilisation(self) -> int | None:
        """Return the share of the last moments in which the GPU was busy, percent."""
        rates = _quiet(self._nvml.nvmlDeviceGetUtilizationRates, self._handle) if self._nvml else None
        return None if rates is None else int(rates.gpu)

    def _ask(self, *names: str) -> Any:
        for name in names:
            function = getattr(self._nvml, name, None)
            if function is not None:
                return _quiet(function, self._handle)
        return None


def _quiet(function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception:
        # Not every GPU answers every question; an unanswered one is None.
        return None
