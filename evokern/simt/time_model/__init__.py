"""Time model: predicts the time on a chip from counters and the program."""
