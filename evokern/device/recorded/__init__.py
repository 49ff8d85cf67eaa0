"""A recorded space: answers from a table of an earlier search or of another tuner."""
