"""Loops and branches of a program, and the paths that launches take through them."""
