"""What stands behind a result: whether a kernel folder is sound."""
