"""What counters and program say of the time on a chip."""
