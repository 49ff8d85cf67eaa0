"""The version of this package, where every module can read it without importing the package."""

__version__ = "0.2.0"
