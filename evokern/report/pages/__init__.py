"""Other HTML pages in the design of the report: comparison of two runs, profile, and replay of samplers."""
