"""A result as something that stands alone."""
