"""A candidate or a CUDA file run on the CPU with every access checked."""
