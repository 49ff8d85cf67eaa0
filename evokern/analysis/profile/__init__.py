"""What bounds a candidate."""
