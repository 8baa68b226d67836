"""The columns of a stream as users name them, and those that Stateline adds."""
