"""Any interleaving of writers, crashes, resumes, zombies and commits, against a model of plain byte strings."""

import uuid

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from stateline.blob.memory import MemoryStore
from stateline.errors import ConflictError, DataLossError
from stateline.handles import ResumePoint
from stateline.recoverable import RecoverableWriter, RecoverableWriterSettings

TARGET = "out/file"


class RecoverableMachine(RuleBasedStateMachine):
    """One file; many streams of it, each with the bytes that the model says it holds."""

    streams = Bundle("streams")
    points = Bundle("points")

    @initialize(chunk=st.integers(1, 60), fold=st.integers(1, 60))
    def start(self, chunk, fold):
        self.store = MemoryStore(uuid.uuid4().hex)
        self.writer = RecoverableWriter(self.store, RecoverableWriterSettings(chunk_size=chunk, fold_size=fold))
        self.published = None
        self.counter = 0

    @rule(target=streams)
    def open(self):
        return [self.writer.open(TARGET), b""]

    @rule(stream=streams, length=st.integers(0, 150))
    def write(self, stream, length):
        if stream[0].closed:
            return
        self.counter += 1
        data = bytes((self.counter + index) % 256 for index in range(length))
        try:
            assert stream[0].write(data) == length
        except (ConflictError, DataLossError):
            assert self.published is not None
            return
        stream[1] += data
        assert stream[0].position == len(stream[1])

    @rule(target=points, stream=streams)
    def persist(self, stream):
        try:
            point = stream[0].persist()
        except (ConflictError, DataLossError):
            assert self.published is not None
            point = ResumePoint(target=TARGET, parts=(), length=0, crc32c=0, nonce="lost")
            return [point, b"", True]
        assert point.length == len(stream[1])
        return [point, stream[1], False]

    @rule(target=streams, point=points, chunk=st.integers(1, 60))
    def recover(self, point, chunk):
        other = RecoverableWriter(self.store, RecoverableWriterSettings(chunk_size=chunk))
        try:
            stream = other.recover(point[0])
        except ConflictError:
            assert self.published is not None
            stream = other.recover(point[0], verify=False)
        else:
            assert self.published is None
        assert stream.position == len(point[1])
        return [stream, point[1]]

    @rule(stream=streams)
    def close(self, stream):
        try:
            stream[0].close()
        except (ConflictError, DataLossError):
            assert self.published is not None

    @rule(point=points, clean=st.booleans())
    def commit(self, point, clean):
        resume, data, lost = point
        committer = self.writer.recover_for_commit(resume)
        try:
            (committer.commit if clean and self.published is None else committer.commit_after_recovery)()
        except (ConflictError, DataLossError):
            assert self.published is not None
            assert lost or (resume.nonce, data) != self.published
        else:
            assert not lost
            assert self.published in (None, (resume.nonce, data))
            self.published = (resume.nonce, data)

    @rule(point=points)
    def move_away_and_commit_again(self, point):
        """A consumer takes the file: publishing what was published must fail loudly, and may not come back empty."""
        resume, data, lost = point
        if lost or self.published != (resume.nonce, data) or not resume.parts:
            return
        self.store.delete([TARGET])
        try:
            self.writer.recover_for_commit(resume).commit_after_recovery()
        except DataLossError:
            self.store.put(TARGET, b"")
            self.store.delete([TARGET])
            self._put_back(resume, data)
        else:
            raise AssertionError("a file whose pieces are gone was published")

    def _put_back(self, resume, data):
        self.store.publish(TARGET, [self.store.stage(TARGET, data)] if data else [], resume.nonce)

    @invariant()
    def the_file_is_what_was_committed_or_absent(self):
        if not hasattr(self, "store"):
            return
        found = {info.name for info in self.store.list("out/")}
        if self.published is None:
            assert found == set()
        else:
            assert found == {TARGET}
            assert self.store.get(TARGET) == self.published[1]


TestRecoverableMachine = RecoverableMachine.TestCase
TestRecoverableMachine.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
