"""The command ``stateline``, for people and scripts that look at state from a terminal.

``main`` is the entry point and needs nothing but the standard library, so that a missing extra is told in one line;
``commands`` holds the commands.
"""
