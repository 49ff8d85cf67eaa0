"""PTX text as a program: parser, syntax, segments, instruction groups and registers; knows nothing of lanes."""
