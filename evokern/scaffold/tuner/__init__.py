"""Tuning scripts of Kernel Tuner and T1 files, read into what a draft needs."""
