"""What a kernel folder declares: genes and space, problems, workload, constraints, launches; its rendered source."""
