"""Readable source of a single candidate, with its branches resolved and its constants written out."""
