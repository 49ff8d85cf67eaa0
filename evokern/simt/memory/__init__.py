"""State spaces of a launch: global, shared, local and parameter memory."""
