"""Draft kernels from KernelBench tasks: Python files with a torch `Model` and its inputs."""
