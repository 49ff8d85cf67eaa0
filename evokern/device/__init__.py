"""Devices: the contract, and what implements it."""

from evokern.device.contract import Answer, BaselineResult, Device, Request, StartReport, Task

__all__ = ["Answer", "BaselineResult", "Device", "Request", "StartReport", "Task"]
