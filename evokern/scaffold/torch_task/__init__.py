"""Tasks of KernelBench, files with a torch `Model` and its inputs, read into a kernel's declaration."""
