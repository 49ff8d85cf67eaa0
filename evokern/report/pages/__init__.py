"""Pages beside the report of a study, in its design: two studies compared, a profile, samplers on a recording."""
