"""Compile and run candidates on the hosts of a Ray cluster, while the search itself runs on this machine.

Ray is imported only when a cluster is requested.
"""

from evokern.cluster.request import RayRequest

__all__ = ["RayRequest"]
