"""Studies: settings and TOML files, lookup of studies and kernel folders, and trial outcomes."""
