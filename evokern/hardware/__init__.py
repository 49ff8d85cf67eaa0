"""Chips with their resource limits and peak rates, and the driver of this machine."""
