"""Pools of worker processes, which a server forks and which may crash without affecting the search."""
