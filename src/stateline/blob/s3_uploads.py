"""How pieces become one object on S3: through a multipart upload that is named when the file ends.

Facts (Amazon S3 API reference):
- An upload lives until it is completed or aborted, by whomever, and is gone then: every request on it gives 404
  NoSuchUpload, also one that a network delivers late.
- A part that is uploaded again replaces the first one. Completing names each part by its ETag: InvalidPart if another
  one is there by now.
- CompleteMultipartUpload may answer 200 with an error in its body. The SDK turns that into an error.
- Repeating a CompleteMultipartUpload that took effect gives 404 NoSuchUpload, or 200 on some services.
- With ``If-None-Match: *`` it is create-if-absent: 412 if the key exists, 409 if another conditional request on it is
  in progress. After a 409 the documentation asks for a new upload: one that has ended by it is told by NoSuchUpload,
  and treated as one that the service has forgotten.
- With checksum type FULL_OBJECT the service compares the CRC32C of the whole object before it creates it.

So ``prepare`` begins the one upload of a file and returns, beside the pieces, a part without bytes that names it. All
who publish the file fill and complete that upload: they put the same bytes under the same part numbers, and whoever
completes it first ends it for all. One who wakes up later finds it ended and can create nothing, whatever became of the
file meanwhile. Nobody aborts it but ``discard``.

An upload without parts costs nothing, so one that was begun by a writer whose file was never decided needs no sweep; a
lifecycle rule may abort it. A rule may also abort an upload that is needed still. Then the target is absent **and** all
pieces are there, which proves that nobody has published the file: pieces go before the file may be moved. Only then an
upload of one's own is used, as for parts that were never prepared: it exists only during the call, and somebody who
sleeps inside it may create the file once more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from stateline.blob.answers import Answer, Refusal
from stateline.blob.api import Buffer, ObjectInfo
from stateline.blob.arguments import checked_parts, own_bytes
from stateline.blob.checksum import crc32c, encoded_checksum
from stateline.blob.names import STAGING_PREFIX, check_name, not_staged
from stateline.blob.outcome import Fingerprint, PieceError, damaged_part
from stateline.blob.s3_parts import PARTS_MAX, Segment, plan_parts
from stateline.blob.s3_requests import S3Requests, metadata_of
from stateline.errors import AccessDeniedError, InvalidInputError, OutcomeUnknownError
from stateline.handles import Part

__all__ = ["S3Uploads"]

_COPIED_BYTES_MAX: Final = 5 * 1024**3
"""The longest part that can be copied, and so the longest object that pieces are gathered in."""

_UPLOAD_PREFIX: Final = STAGING_PREFIX + "upload-"
"""Names of parts that name an upload and no object."""


class _Upload(NamedTuple):
    """An upload that was begun.

    Attributes:
        target: Name of the object that it makes.
        upload_id: The service's own name for it.
        checksum_type: What the service said it would compare; empty where it said nothing.
    """

    target: str
    upload_id: str
    checksum_type: str

    @property
    def version(self) -> str:
        """All of it, as the version of a part. No id and no type has a space in it."""
        return f"{self.upload_id} {self.checksum_type} {self.target}"

    @classmethod
    def of(cls, part: Part) -> _Upload:
        """The upload that a part names."""
        upload_id, checksum_type, target = (*part.version.split(" ", 2), "", "")[:3]
        if not upload_id or not target:
            raise not_staged(part.name, "does not name an upload")
        return cls(target, upload_id, checksum_type)


class S3Uploads(S3Requests):
    """Staged pieces of a bucket, and what they become."""

    def stage(self, target: str, data: Buffer) -> Part:
        made = self._stage_object(own_bytes(data, "stage", check_name(target)))
        return Part(name=made.name, length=made.size, crc32c=made.crc32c or 0, version=made.version)

    def prepare(self, target: str, parts: Sequence[Part], nonce: str) -> tuple[Part, ...]:
        """Begins the upload of the target, and returns a part that names it besides the pieces."""
        check_name(target)
        # An empty file has no piece whose absence could tell that it was published: one without bytes is staged.
        pieces = tuple(parts) or (self.stage(target, b""),)
        with self._telling("prepare", target):
            upload = self._begin(target, Fingerprint.of_parts(pieces, nonce))
        name = _UPLOAD_PREFIX + self._environment.ids.new_id()
        return (*pieces, Part(name=name, length=0, crc32c=0, version=upload.version))

    def discard(self, parts: Iterable[Part]) -> None:
        """Deletes pieces, and aborts an upload that is still there."""
        pieces, uploads = _told_apart(checked_parts(parts, "discard"))
        deletions = self._deletions([self._staged_key(part) for part in pieces])
        aborts: list[Callable[[], None]] = [partial(self._end, self._place(upload)) for upload in uploads]
        with self._telling("discard", ""):
            self._each(lambda request: request(), [*deletions, *aborts])

    def _assemble(self, target: str, parts: Sequence[Part], ours: Fingerprint) -> ObjectInfo:
        pieces, uploads = _told_apart(parts)
        if uploads:
            _require_target(uploads[0], target)
            try:
                with self._few(target, pieces) as few:
                    return self._fill(target, uploads[0], few, ours)
            except Refusal as refusal:
                if refusal.answer is not Answer.ENDED:
                    raise
                self._require_unpublished(target, pieces, refusal)
        with self._few(target, pieces) as few:
            return self._assemble_anew(target, few, ours)

    def _assemble_anew(self, target: str, pieces: Sequence[Part], ours: Fingerprint) -> ObjectInfo:
        """Publishes through a request or an upload of its own."""
        plan = plan_parts([part.length for part in pieces])
        if not plan or (len(plan) == 1 and len(plan[0]) > 1):
            segments = [segment for planned in plan for segment in planned]
            data = self._each(lambda segment: self._segment(target, pieces[segment.piece], segment), segments)
            return self._create(target, b"".join(data), ours)
        return self._upload(target, target, pieces, ours)

    def _require_unpublished(self, target: str, pieces: Sequence[Part], ended: Refusal) -> None:
        """Makes sure that an upload ended without its file: the target is absent, **then** all pieces are there."""
        if self._present(lambda: self.head(target), ended) is not None:
            raise ended.meaning(Answer.TAKEN) from ended
        self._each(lambda part: self._require_piece(target, part), pieces)

    def _require_piece(self, target: str, part: Part) -> None:
        key = self._staged_key(part)
        with self._meeting(target, part):
            self._read_whole(lambda: self._client.head_object(Bucket=self._container, Key=key))

    # -- more pieces than an upload may have parts ----------------------------------------------------------------

    @contextlib.contextmanager
    def _few(self, target: str, pieces: Sequence[Part]) -> Iterator[Sequence[Part]]:
        """The pieces, or fewer and longer ones with the same bytes, which live only inside."""
        if len(plan_parts([part.length for part in pieces])) <= PARTS_MAX:
            yield pieces
            return
        gathered = self._gathered(target, pieces)
        try:
            with self._few(target, gathered) as few:
                yield few
        finally:
            with contextlib.suppress(OutcomeUnknownError, AccessDeniedError):
                self.discard(gathered)

    def _gathered(self, target: str, parts: Sequence[Part]) -> Sequence[Part]:
        groups: list[list[Part]] = [[]]
        size = 0
        for part in parts:
            if groups[-1] and (len(groups[-1]) == PARTS_MAX or size + part.length > _COPIED_BYTES_MAX):
                groups.append([])
                size = 0
            groups[-1].append(part)
            size += part.length
        return [self._gather(target, group) for group in groups]

    def _gather(self, target: str, parts: Sequence[Part]) -> Part:
        name = STAGING_PREFIX + self._environment.ids.new_id()
        ours = Fingerprint.of_parts(parts)
        made = self._upload(target, name, parts, ours)
        return Part(name=name, length=ours.length, crc32c=ours.crc32c, version=made.version)

    # -- one upload -----------------------------------------------------------------------------------------------

    def _begin(self, name: str, ours: Fingerprint) -> _Upload:
        with self._asking():
            begun = self._client.create_multipart_upload(
                Bucket=self._container,
                Key=self._key(name),
                Metadata=metadata_of(ours),
                **self._checked(ChecksumAlgorithm="CRC32C", ChecksumType="FULL_OBJECT"),
            )
            return _Upload(name, begun["UploadId"], begun.get("ChecksumType") or "")

    def _place(self, upload: _Upload) -> dict[str, Any]:
        return {"Bucket": self._container, "Key": self._key(upload.target), "UploadId": upload.upload_id}

    def _upload(self, target: str, name: str, parts: Sequence[Part], ours: Fingerprint) -> ObjectInfo:
        """Creates ``name`` through an upload of its own."""
        with self._own_upload(name, ours) as upload:
            return self._fill(target, upload, parts, ours)

    def _duplicate(self, target: str, source: Part) -> ObjectInfo:
        starts = range(0, source.length, _COPIED_BYTES_MAX)
        extents = [Segment(0, start, min(start + _COPIED_BYTES_MAX, source.length)) for start in starts]
        ours = Fingerprint.of_parts([source])
        with self._own_upload(target, ours) as upload:
            place = self._place(upload)
            made = self._each(
                lambda number: self._copy_part(
                    target, source, source.name, extents[number], {**place, "PartNumber": number + 1}
                ),
                range(len(extents)),
            )
            return self._complete(upload, made, ours)

    @contextlib.contextmanager
    def _own_upload(self, name: str, ours: Fingerprint) -> Iterator[_Upload]:
        """An upload that lives only inside: it is aborted if anything fails."""
        upload = self._begin(name, ours)
        try:
            yield upload
        except BaseException as error:
            aborted = self._aborted(upload)
            if isinstance(error, Refusal) and error.answer is Answer.SILENT and aborted:
                # The service has forgotten the upload, so a late completion can have no effect.
                raise Refusal(Answer.BUSY, error.error) from error
            raise

    def _fill(self, target: str, upload: _Upload, parts: Sequence[Part], ours: Fingerprint) -> ObjectInfo:
        """Uploads or copies every part and completes the upload. Several may do so at once."""
        place = self._place(upload)
        plan = plan_parts([part.length for part in parts]) or [[]]  # An empty object has one part, which is empty.
        made = self._each(
            lambda number: self._upload_part(target, parts, plan[number], {**place, "PartNumber": number + 1}),
            range(len(plan)),
        )
        return self._complete(upload, made, ours)

    def _upload_part(
        self, target: str, parts: Sequence[Part], segments: Sequence[Segment], place: Mapping[str, Any]
    ) -> dict[str, Any]:
        if len(segments) == 1:
            part = parts[segments[0].piece]
            return self._copy_part(target, part, self._staged_key(part), segments[0], place)
        data = b"".join(self._segment(target, parts[segment.piece], segment) for segment in segments)
        checked = self._checked(ChecksumCRC32C=encoded_checksum(crc32c(data)))
        with self._asking():
            return _part_made(place, self._client.upload_part(Body=data, **place, **checked))

    def _copy_part(
        self, target: str, part: Part, key: str, segment: Segment, place: Mapping[str, Any]
    ) -> dict[str, Any]:
        source = {"Bucket": self._container, "Key": key}
        whole = (segment.start, segment.end) == (0, part.length)
        extent = {} if whole else {"CopySourceRange": f"bytes={segment.start}-{segment.end - 1}"}
        with self._meeting(target, part), self._asking():
            answer = self._client.upload_part_copy(CopySource=source, CopySourceIfMatch=part.version, **extent, **place)
            made = answer["CopyPartResult"]
            if "ChecksumCRC32C" not in made:
                found = self._client.head_object(**source)
                if (found["ContentLength"], found["ETag"]) != (part.length, part.version):
                    raise PieceError(damaged_part(target, part))
            elif whole and made["ChecksumCRC32C"] != encoded_checksum(part.crc32c):
                raise PieceError(damaged_part(target, part))
            return _part_made(place, made)

    def _complete(self, upload: _Upload, made: Sequence[Mapping[str, Any]], ours: Fingerprint) -> ObjectInfo:
        whole = {}
        if upload.checksum_type == "FULL_OBJECT":
            sums = {"ChecksumCRC32C": encoded_checksum(ours.crc32c), "ChecksumType": "FULL_OBJECT"}
            whole = self._checked(**sums, MpuObjectSize=ours.length)
        with self._asking():
            answer = self._client.complete_multipart_upload(
                MultipartUpload={"Parts": list(made)}, IfNoneMatch="*", **whole, **self._place(upload)
            )
            return self._made(upload.target, ours, answer["ETag"])

    def _end(self, place: Mapping[str, Any]) -> None:
        """Aborts an upload, if it is still there."""
        self._if_there(lambda: self._client.abort_multipart_upload(**place), Answer.ENDED, Answer.ABSENT)

    def _aborted(self, upload: _Upload) -> bool:
        """Gives a failed upload up; whether the service confirmed it. Lifecycle rules remove one that stays."""
        try:
            with self._asking():
                self._client.abort_multipart_upload(**self._place(upload))
        except Refusal:
            return False
        return True

    # -- bytes of pieces ------------------------------------------------------------------------------------------

    def _segment(self, target: str, part: Part, segment: Segment) -> bytes:
        """Some bytes of a piece, checked against it."""
        key = self._staged_key(part)
        with self._meeting(target, part):
            if (segment.start, segment.end) != (0, part.length):
                bounds = (segment.start, segment.end)
                return self._read_whole(lambda: self._read_range(part.name, key, *bounds, IfMatch=part.version))
            data = self._read_whole(lambda: self._read(key))
        return self._check_piece(target, part, data)


def _told_apart(parts: Iterable[Part]) -> tuple[list[Part], list[_Upload]]:
    """The pieces, which are objects, and the uploads."""
    pieces: list[Part] = []
    uploads: list[_Upload] = []
    for part in parts:
        if part.name.startswith(_UPLOAD_PREFIX):
            uploads.append(_Upload.of(part))
        else:
            pieces.append(part)
    return pieces, uploads


def _require_target(upload: _Upload, target: str) -> None:
    if upload.target != target:
        raise InvalidInputError(
            f"its parts were prepared for {upload.target}",
            operation="publish",
            subject=target,
            hint="Publish them there, or leave out the part that names the upload",
        )


def _part_made(place: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
    """What CompleteMultipartUpload wants to hear about one part."""
    checksum = {"ChecksumCRC32C": made["ChecksumCRC32C"]} if "ChecksumCRC32C" in made else {}
    return {"PartNumber": place["PartNumber"], "ETag": made["ETag"], **checksum}
