"""Exactly-once files that span checkpoints, without Spark.

``api`` says what an output is, ``rolling`` when a file is complete, ``partitions`` which folder a row goes to,
``pending`` keeps rows between checkpoints, ``writer`` is one task's share.
"""

from stateline.files.api import FileOutput, FilesResult
from stateline.files.rolling import RollingPolicy
from stateline.files.writer import FileWriter, encode_file

__all__ = ["FileOutput", "FileWriter", "FilesResult", "RollingPolicy", "encode_file"]
