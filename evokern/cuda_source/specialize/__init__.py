"""A champion as readable text: the branches it takes, its constants in place."""
