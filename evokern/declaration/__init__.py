"""Declaration of a kernel: genes, search space, problems, workload, constraints, launches and rendered source."""
