"""Exact arithmetic next to the PTX machine: each floating-point value has a shadow in two finite fields.

The real bits decide branches, addresses, selections and maxima. The shadow follows each value through registers and
memory, so that two kernels can be compared without rounding errors. See docs/exact-proof.md.
"""
