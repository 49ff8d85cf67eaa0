"""Simulated chips: the kernel's PTX runs on the CPU, is checked and counted, and its time is predicted."""
