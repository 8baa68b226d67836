"""Operators that run a ``StatefulProcessor`` of the user's."""
