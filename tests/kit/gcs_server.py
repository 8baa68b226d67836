"""A Google Cloud Storage of one process, for tests: objects with generations, and preconditions that are enforced.

Facts that it keeps, because protocols depend on them (Cloud Storage documentation):
- Every write of a name makes a new, larger generation. ``ifGenerationMatch=0`` means "does not exist"; any mismatch is
  412, checked at the same instant as the effect.
- A source of a compose that names a generation which is not the live one is 404; one with a failed precondition is 412.
- Compose takes 1 to 32 sources of its own bucket, makes a composite object without MD5, and is all or nothing.
- The CRC32C of every object is known. A wrong one sent with an upload is 400 and writes nothing.
- A resumable session can be continued from any process until it is finished or cancelled (then 499).

::

    with GcsServer() as server:
        client = storage.Client(client_options={"api_endpoint": server.url}, ...)
        server.faults.add(lose_answer, method="POST", path="/compose")
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import Any, Final
from urllib.parse import quote, unquote

from stateline.blob.checksum import crc32c
from stateline.environment import Environment, system_environment
from tests.kit.fault_proxy import FaultPlan
from tests.kit.loopback_http import LoopbackServer, Reply, Request

__all__ = ["GcsServer"]

_COMPOSE_SOURCES_MAX: Final = 32
_OBJECT: Final = re.compile(
    r"(?:/download)?/storage/v1/b/([^/]+)/o/([^/]+)(?:/(compose|rewriteTo/b/([^/]+)/o/([^/]+)))?"
)
_OBJECTS: Final = re.compile(r"/storage/v1/b/([^/]+)/o")
_UPLOAD: Final = re.compile(r"(?:/resumable)?/upload/storage/v1/b/([^/]+)/o")
_BUCKETS: Final = re.compile(r"/storage/v1/b(?:/([^/]+))?")
_RANGE: Final = re.compile(r"bytes=(\d+)-(\d*)")
_CONTENT_RANGE: Final = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")


class _Failure(Exception):  # noqa: N818 - an answer of the server, not an error of the program
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class _Object:
    data: bytes
    generation: int
    created_at: float
    metadata: dict[str, str]
    content_type: str
    components: int
    checksum: int


@dataclass(slots=True)
class _Session:
    bucket: str
    resource: dict[str, Any]
    query: dict[str, str]
    received: bytearray
    finished: Reply | None = None
    cancelled: bool = False


class GcsServer(LoopbackServer):
    """Listens on the loopback interface. ``faults`` decides which requests fail; buckets spring up on first use.

    Args:
        environment: Clock and ids.
        rewrite_bytes: Bytes that one rewrite call copies before it asks to be called again.
        omitted: What it does not tell of an object without bytes: Google's own test bench leaves out ``size``.
        address: Of the loopback interface.
        ignores_conditions: Whether it ignores preconditions, and so breaks every race.
    """

    def __init__(
        self,
        environment: Environment | None = None,
        *,
        ignores_conditions: bool = False,
        rewrite_bytes: int = 1024 * 1024,
        omitted: Collection[str] = (),
        address: str = "127.0.0.1",
    ) -> None:
        self.faults = FaultPlan()
        self._environment = environment or system_environment()
        self._rewrite_bytes = rewrite_bytes
        self._omitted = omitted
        self._ignores_conditions = ignores_conditions
        self._lock = threading.RLock()
        self._buckets: dict[str, dict[str, _Object]] = {}
        self._sessions: dict[str, _Session] = {}
        self._generations = count(1_700_000_000_000_001)
        super().__init__(lambda request: self.faults.intercept(request, lambda: self._answer(request)), address)

    def damage(self, bucket: str, name: str) -> None:
        """Changes one byte of an object and nothing else: what no client can do."""
        with self._lock:
            found = self._buckets[bucket][name]
            data = bytearray(found.data)
            data[len(data) // 2] ^= 1
            self._buckets[bucket][name] = _Object(
                bytes(data),
                found.generation,
                found.created_at,
                found.metadata,
                found.content_type,
                found.components,
                found.checksum,
            )

    def names(self, bucket: str) -> list[str]:
        """The names in a bucket, sorted."""
        with self._lock:
            return sorted(self._buckets.get(bucket, ()))

    def components(self, bucket: str, name: str) -> int:
        """How many uploads an object was composed of."""
        return self._buckets[bucket][name].components

    # -- routes ---------------------------------------------------------------------------------------------------

    def _answer(self, request: Request) -> Reply:
        try:
            with self._lock:
                return self._route(request)
        except _Failure as failure:
            body = {"error": {"code": failure.status, "message": str(failure), "errors": [{"message": str(failure)}]}}
            return _json(body, failure.status)

    def _route(self, request: Request) -> Reply:
        path = request.path
        if found := _UPLOAD.fullmatch(path):
            return self._upload(unquote(found[1]), request)
        if found := _OBJECTS.fullmatch(path):
            return self._list(unquote(found[1]), request.query)
        if found := _OBJECT.fullmatch(path):
            bucket, name = unquote(found[1]), unquote(found[2])
            if found[3] == "compose":
                return self._compose(bucket, name, request)
            if found[3]:
                return self._rewrite(bucket, name, unquote(found[4]), unquote(found[5]), request)
            if request.method == "DELETE":
                return self._delete(bucket, name, request.query)
            return self._get(bucket, name, request)
        if found := _BUCKETS.fullmatch(path):
            name = found[1] or json.loads(request.body)["name"]
            self._buckets.setdefault(unquote(name), {})
            return _json({"kind": "storage#bucket", "name": name})
        raise _Failure(501, f"{request.method} {path} is not part of this fake")

    # -- reading --------------------------------------------------------------------------------------------------

    def _get(self, bucket: str, name: str, request: Request) -> Reply:
        query = request.query
        found = self._find(bucket, name, query.get("generation"))
        self._check(found, query)
        if query.get("alt") != "media":
            return _json(self._resource(bucket, name, found))
        headers = {
            "Content-Type": found.content_type,
            "X-Goog-Generation": str(found.generation),
            "X-Goog-Hash": f"crc32c={_encoded(found.checksum)}",
        }
        wanted = _RANGE.fullmatch(request.headers.get("range", ""))
        if wanted is None:
            return Reply(200, found.data, headers)
        start, size = int(wanted[1]), len(found.data)
        if start >= size:
            raise _Failure(416, "the range begins past the end")
        end = min(int(wanted[2]) + 1 if wanted[2] else size, size)
        return Reply(206, found.data[start:end], {**headers, "Content-Range": f"bytes {start}-{end - 1}/{size}"})

    def _list(self, bucket: str, query: dict[str, str]) -> Reply:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        limit, after = int(query.get("maxResults", "1000")), query.get("pageToken", "")
        objects = self._bucket(bucket)
        entries: dict[str, _Object | None] = {}
        for name, found in objects.items():
            if name.startswith(prefix):
                inside, slash, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
                entries[prefix + inside + slash if slash else name] = None if slash else found
        due = sorted(key for key in entries if key > after)
        shown = {key: entries[key] for key in due[:limit]}
        page: dict[str, Any] = {
            "kind": "storage#objects",
            "items": [self._resource(bucket, key, found) for key, found in shown.items() if found is not None],
            "prefixes": [key for key, found in shown.items() if found is None],
        }
        return _json({**page, "nextPageToken": due[limit - 1]} if len(due) > limit else page)

    # -- writing --------------------------------------------------------------------------------------------------

    def _upload(self, bucket: str, request: Request) -> Reply:
        query = request.query
        if "upload_id" in query:
            return self._continue(query["upload_id"], request)
        kind = query.get("uploadType")
        if kind == "multipart":
            resource, data = _multipart(request)
            return self._write(bucket, resource, query, data)
        if kind == "media":
            return self._write(bucket, {"name": query["name"]}, query, request.body)
        session = self._environment.ids.new_id()
        resource = json.loads(request.body or b"{}")
        self._sessions[session] = _Session(bucket, {"name": query.get("name"), **resource}, query, bytearray())
        host = request.headers["host"]
        location = f"http://{host}/upload/storage/v1/b/{quote(bucket)}/o?uploadType=resumable&upload_id={session}"
        return Reply(200, b"", {"Location": location})

    def _continue(self, name: str, request: Request) -> Reply:
        session = self._sessions.get(name)
        if session is None:
            raise _Failure(404, "there is no such session")
        if session.cancelled or request.method == "DELETE":
            session.cancelled = True
            raise _Failure(499, "the session was cancelled")
        if session.finished is not None:
            return session.finished
        extent = _CONTENT_RANGE.fullmatch(request.headers.get("content-range", f"bytes */{len(request.body)}"))
        if extent is None:
            raise _Failure(400, "the Content-Range cannot be read")
        start = int(extent[1] or 0)
        if request.body and start <= len(session.received):
            session.received[start:] = request.body
        if extent[3] == "*" or len(session.received) < int(extent[3]):
            held = {"Range": f"bytes=0-{len(session.received) - 1}"} if session.received else {}
            return Reply(308, b"", held)
        session.finished = self._write(session.bucket, session.resource, session.query, bytes(session.received))
        return session.finished

    def _compose(self, bucket: str, name: str, request: Request) -> Reply:
        wanted = json.loads(request.body)
        sources = wanted["sourceObjects"]
        if not 1 <= len(sources) <= _COMPOSE_SOURCES_MAX:
            raise _Failure(400, f"the number of source components ({len(sources)}) is not between 1 and 32")
        found = []
        for source in sources:
            piece = self._find(bucket, source["name"], source.get("generation"))
            self._check(piece, {key: str(value) for key, value in source.get("objectPreconditions", {}).items()})
            found.append(piece)
        data = b"".join(piece.data for piece in found)
        components = sum(piece.components for piece in found)
        return self._write(bucket, {**wanted.get("destination", {}), "name": name}, request.query, data, components)

    def _rewrite(self, bucket: str, name: str, to_bucket: str, to_name: str, request: Request) -> Reply:
        query = request.query
        found = self._find(bucket, name, query.get("sourceGeneration"))
        source_conditions = {key.replace("Source", ""): value for key, value in query.items() if "ifSource" in key}
        self._check(found, source_conditions)
        self._check(self._bucket(to_bucket).get(to_name), query)
        copied = min(int(query.get("rewriteToken", "0")) + self._rewrite_bytes, len(found.data))
        progress = {"kind": "storage#rewriteResponse", "objectSize": str(len(found.data))}
        if copied < len(found.data):
            partial = {"totalBytesRewritten": str(copied), "done": False, "rewriteToken": str(copied)}
            return _json({**progress, **partial})
        resource = {"metadata": found.metadata, "contentType": found.content_type, **json.loads(request.body or b"{}")}
        made = self._write(to_bucket, {**resource, "name": to_name}, query, found.data)
        done = {"totalBytesRewritten": str(copied), "done": True, "resource": json.loads(made.body)}
        return _json({**progress, **done})

    def _delete(self, bucket: str, name: str, query: dict[str, str]) -> Reply:
        self._check(self._find(bucket, name, query.get("generation")), query)
        del self._buckets[bucket][name]
        return Reply(204)

    def _write(
        self, bucket: str, resource: dict[str, Any], query: dict[str, str], data: bytes, components: int = 1
    ) -> Reply:
        name, objects = resource["name"], self._bucket(bucket)
        self._check(objects.get(name), query)
        checksum = crc32c(data)
        if resource.get("crc32c", _encoded(checksum)) != _encoded(checksum):
            raise _Failure(400, f"the provided CRC32C {resource['crc32c']} does not match {_encoded(checksum)}")
        made = objects[name] = _Object(
            data=data,
            generation=next(self._generations),
            created_at=self._environment.clock.now(),
            metadata=dict(resource.get("metadata") or {}),
            content_type=resource.get("contentType") or "application/octet-stream",
            components=components,
            checksum=checksum,
        )
        return _json(self._resource(bucket, name, made))

    # -- objects --------------------------------------------------------------------------------------------------

    def _bucket(self, bucket: str) -> dict[str, _Object]:
        if bucket.startswith("missing-"):
            raise _Failure(404, "The specified bucket does not exist.")
        return self._buckets.setdefault(bucket, {})

    def _find(self, bucket: str, name: str, generation: str | int | None) -> _Object:
        found = self._bucket(bucket).get(name)
        if found is None or (generation is not None and int(generation) != found.generation):
            raise _Failure(404, f"No such object: {bucket}/{name}")
        return found

    def _check(self, found: _Object | None, conditions: dict[str, str]) -> None:
        if self._ignores_conditions:
            return
        generation = 0 if found is None else found.generation
        wanted, unwanted = conditions.get("ifGenerationMatch"), conditions.get("ifGenerationNotMatch")
        if (wanted is not None and int(wanted) != generation) or (unwanted is not None and int(unwanted) == generation):
            raise _Failure(412, "At least one of the pre-conditions you specified did not hold.")

    def _resource(self, bucket: str, name: str, found: _Object) -> dict[str, Any]:
        stamp = datetime.fromtimestamp(found.created_at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        told = {
            "kind": "storage#object",
            "id": f"{bucket}/{name}/{found.generation}",
            "bucket": bucket,
            "name": name,
            "generation": str(found.generation),
            "metageneration": "1",
            "size": str(len(found.data)),
            "crc32c": _encoded(found.checksum),
            "timeCreated": stamp,
            "updated": stamp,
            "metadata": found.metadata,
            "contentType": found.content_type,
            "storageClass": "STANDARD",
            "componentCount": found.components,
        }
        return told if found.data else {key: value for key, value in told.items() if key not in self._omitted}


def _multipart(request: Request) -> tuple[dict[str, Any], bytes]:
    boundary = re.search(r'boundary="?([^";]+)"?', request.headers["content-type"])
    if boundary is None:
        raise _Failure(400, "there is no boundary")
    pieces = request.body.split(b"--" + boundary[1].encode())
    head, content = pieces[1], (b"--" + boundary[1].encode()).join(pieces[2:-1])
    resource: dict[str, Any] = json.loads(head.split(b"\r\n\r\n", 1)[1])
    return resource, content.split(b"\r\n\r\n", 1)[1].removesuffix(b"\r\n")


def _encoded(checksum: int) -> str:
    return base64.b64encode(checksum.to_bytes(4, "big")).decode("ascii")


def _json(body: dict[str, Any], status: int = 200) -> Reply:
    return Reply(status, json.dumps(body).encode(), {"Content-Type": "application/json; charset=UTF-8"})
