"""Checks of kernel folders and studies."""
