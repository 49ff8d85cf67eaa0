"""Pools of worker processes that are forked from a server and may die without harm."""
