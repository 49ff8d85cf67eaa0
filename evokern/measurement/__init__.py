"""Samples, the stopping rule, racing, statistics of times, and the roofline bound of a chip."""
