"""Exactly-once files that span checkpoints, without Spark.

``api`` says what an output is, ``formats`` how it is encoded, ``rolling`` when a file is complete, ``partitions`` which
folder a row goes to, ``pending`` keeps rows between checkpoints, ``row_groups`` which of them are encoded together,
``writer`` is one task's share. ``ahead`` encodes while nobody waits.
"""

from stateline.files.ahead import EncodingAhead
from stateline.files.api import FileOutput, FilesResult
from stateline.files.rolling import RollingPolicy
from stateline.files.writer import FileWriter, encode_file

__all__ = ["EncodingAhead", "FileOutput", "FileWriter", "FilesResult", "RollingPolicy", "encode_file"]
