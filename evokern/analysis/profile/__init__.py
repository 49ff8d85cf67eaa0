"""Profiling of a candidate and analysis of its bottleneck."""
