"""Live GPUs: worker processes launch, check and time compiled candidates."""
