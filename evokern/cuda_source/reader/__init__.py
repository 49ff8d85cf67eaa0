"""CUDA files as people have them: kernels, launches, macros, host code."""
