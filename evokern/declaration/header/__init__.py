"""Generated header `evokern_genes.h` of a kernel: its text, and assertions that follow from constraints."""
