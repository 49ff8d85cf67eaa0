"""Chips, their limits and peak rates, and the driver of this machine."""
