"""Compilation of CUDA source to machine code: NVRTC, headers, resources, fingerprint, cache."""
