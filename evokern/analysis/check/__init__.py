"""Whether a kernel folder and a study are sound."""
