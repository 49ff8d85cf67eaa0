"""Reader of CUDA files: kernels, launches, macros and host code."""
