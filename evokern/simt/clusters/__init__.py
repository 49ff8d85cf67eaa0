"""Thread-block clusters: layout, barrier, and lifetime of their shared memory."""
