"""A live GPU: compiled candidates launched, judged and timed in worker processes."""
