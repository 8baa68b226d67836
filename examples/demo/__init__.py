"""A year of flights, streamed through a driver that is killed again and again, and compared row by row.

Run it with ``make demo``. The parts:

- ``flights``: the data, as weekly files in the order of time;
- ``pipeline``: the program that is killed; it is what a user would write;
- ``supervisor``: starts it, watches it, kills it, starts it again;
- ``progress``: what the newest checkpoint says, read as the plain JSON that it is;
- ``display``: what people see;
- ``model``: the same results by pandas, with no Stateline code;
- ``verification``: output, tables and state against the model, each read as anybody else would.
"""
