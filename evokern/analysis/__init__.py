"""Analyses of kernels, candidates and results: check, sanitize, profile, verify, compare and others."""
