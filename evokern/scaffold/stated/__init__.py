"""Statements of a CUDA file about a kernel: its launch, template arguments and sizes of buffers."""
