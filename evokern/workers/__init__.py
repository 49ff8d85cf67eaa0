"""Processes that may die: a pool of workers forked from a server."""
