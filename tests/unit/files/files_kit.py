"""What the tests of file outputs share: a writer whose rows are durable when it has finished, and stored rows."""

from stateline.changelog.segment_writer import Segments
from stateline.environment import system_environment
from stateline.files import FilesContext, FileWriter
from stateline.files.pending import add_rows


class DurableWriter:
    """A writer and the segment that it fills."""

    def __init__(self, output, root, store, schema, *, inline_bytes=0, open_files=(), **more):
        segments = Segments(root, system_environment())
        self.segment = segments.writer(inline_bytes)
        context = FilesContext(output=output, schema=schema, store=store, segments=segments, **more)
        self.writer = FileWriter(context, open_files)

    def write(self, rows):
        self.writer.write(rows)

    def finish(self):
        return self.writer.finish(self.segment).placed(self.segment.finish())


def store_rows(store, *tables):
    """Each table as a section of one segment."""
    segment = Segments(store, system_environment()).writer()
    handles = [add_rows(segment, "rows", table) for table in tables]
    placement = segment.finish()
    return [placement.of(handle) for handle in handles]
