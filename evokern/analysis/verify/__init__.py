"""Verification of a champion: correctness gate, sanitizer, playoff, fuzzing."""
