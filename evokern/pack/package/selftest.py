"""Self-test of this package: `python -m PACKAGE.selftest`."""
