"""Samples, the stopping rule, racing, statistics of times, and the limit of a chip."""
