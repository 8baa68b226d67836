"""What tests of Stateline, and of stores and tools built on it, are made of.

Not imported by anything that ships in production. Needs pytest.
"""
