"""Declaration of a kernel from one call: a source, example arrays, parameters and a reference.

Importing this package imports nothing else: `evokern` needs its marks at once, and the rest only in `evokern.tune`.
"""
