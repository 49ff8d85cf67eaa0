"""Devices that evaluate candidates: the interface and its implementations."""

from evokern.device.contract import Answer, BaselineResult, Device, Request, StartReport, Task

__all__ = ["Answer", "BaselineResult", "Device", "Request", "StartReport", "Task"]
