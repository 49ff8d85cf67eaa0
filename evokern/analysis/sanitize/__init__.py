"""Sanitizer runs of a candidate or a CUDA file, on the CPU with every access checked."""
