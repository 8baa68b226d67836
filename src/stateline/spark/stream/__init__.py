"""What users call: keyed streams, their operators, and where the results go."""
