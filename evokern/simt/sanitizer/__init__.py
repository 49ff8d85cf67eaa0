"""What is checked while a program runs: accesses, races, barriers, asynchronous copies and proxy fences."""
