"""Thread-block clusters: which blocks form one, where they meet, and whether they are there."""
