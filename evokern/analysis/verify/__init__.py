"""Whether a champion is right and fast: gate, sanitizer, playoff, fuzzing."""
