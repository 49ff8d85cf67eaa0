"""Draft kernels from Kernel Tuner scripts and T1 files."""
