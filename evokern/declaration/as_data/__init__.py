"""Kernels that are declared as data instead of Python code."""
