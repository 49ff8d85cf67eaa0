"""Profiler for candidates, with an analysis of the bottleneck."""
