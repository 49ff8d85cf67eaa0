"""Whether a kernel became slower."""
