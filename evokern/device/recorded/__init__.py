"""Recorded devices: results come from the table of an earlier search or of another tuner."""
