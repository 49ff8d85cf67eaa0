"""Checks of a running program: accesses, races, barriers, asynchronous copies and proxy fences."""
