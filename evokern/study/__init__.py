"""A study: its settings and TOML file, where studies and kernel folders are found, and the outcome of a trial."""
