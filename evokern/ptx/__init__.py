"""PTX text as a program: parser, syntax, segments, instruction groups and registers; independent of lanes."""
