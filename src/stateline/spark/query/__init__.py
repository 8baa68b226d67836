"""The life of a query: its start, what its driver calls while it runs, and its end."""
