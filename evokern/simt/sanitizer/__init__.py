"""What is checked while a program runs: accesses, races, barriers, asynchronous copies and proxies."""
