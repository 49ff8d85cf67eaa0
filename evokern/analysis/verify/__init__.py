"""Verification of a champion: correctness gate, sanitizer, playoff and fuzzing."""
