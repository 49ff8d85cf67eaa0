"""Time model, which predicts the time of a launch on a chip from counters and the program."""
