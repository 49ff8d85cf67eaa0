"""Thread-block clusters: their layout, their barrier and the lifetime of their shared memory."""
