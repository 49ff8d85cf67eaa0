"""Candidates on the hosts of a Ray cluster: compiled and executed there, asked for and judged here.

Ray is imported when a cluster is asked for, and nowhere else.
"""

from evokern.cluster.request import RayRequest

__all__ = ["RayRequest"]
