"""Comparison of two runs of a kernel, to detect slowdowns."""
