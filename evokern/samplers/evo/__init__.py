"""`evo`: the two-layer evolutionary sampler."""

from evokern.samplers.evo._sampler import EvoSampler

__all__ = ["EvoSampler"]
