"""Studies: their settings and TOML files, the lookup of studies and kernel folders, and trial outcomes."""
