"""What the choices of a kernel are worth."""
