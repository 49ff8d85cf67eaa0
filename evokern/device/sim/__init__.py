"""A simulated chip: the kernel's PTX run on the CPU, judged, counted and its time predicted."""
