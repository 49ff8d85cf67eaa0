"""Sanitizer, which runs a candidate or a CUDA file on the CPU and checks every memory access."""
