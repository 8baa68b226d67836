"""What the records of a root tell people: read from any store, beside any driver or after its death, and shown.

``roots`` reads, the other modules turn what it read into view models and pictures, and ``pages`` makes HTML of them,
for the server and for a report in one file. Nothing here writes.
"""
