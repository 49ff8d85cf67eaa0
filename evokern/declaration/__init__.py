"""Contents of a kernel folder: genes and space, problems, workload, constraints, launches, rendered source."""
