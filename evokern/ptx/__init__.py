"""Programs from PTX text: parser, syntax, segments, instruction groups and registers; independent of lanes."""
