"""`evo`: the two-layer evolutionary sampler, an `optuna.samplers.BaseSampler`."""

from evokern.samplers.evo._prior import Prior
from evokern.samplers.evo._sampler import EvoSampler

__all__ = ["EvoSampler", "Prior"]
