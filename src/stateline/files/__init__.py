"""Exactly-once files that span checkpoints, without Spark.

``api`` says what an output is, ``formats`` how it is encoded, ``rolling`` when a file is complete, ``partitions`` which
folder a row goes to. ``writer`` takes the rows of a task, and ``joiner`` adds them to open files, whose rows wait in
``pending`` and are joined again as ``folding`` says. ``encoding`` makes whole files, ``ahead`` while nobody waits, and
``background`` writes their bytes on another thread.
"""

from stateline.files.ahead import EncodingAhead
from stateline.files.api import FileOutput, FilesResult
from stateline.files.encoding import encode_file
from stateline.files.joiner import FileJoiner, FilesContext
from stateline.files.rolling import RollingPolicy
from stateline.files.writer import FileWriter

__all__ = [
    "EncodingAhead",
    "FileJoiner",
    "FileOutput",
    "FileWriter",
    "FilesContext",
    "FilesResult",
    "RollingPolicy",
    "encode_file",
]
