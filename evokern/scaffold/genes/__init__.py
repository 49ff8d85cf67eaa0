"""Genes of a draft: numbers that code may change, conditions on them, and runs that confirm their values."""
