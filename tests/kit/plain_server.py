"""A service of one process that speaks as much of S3 and of Azure as a probe needs, and may ignore conditions.

``PUT`` with ``If-None-Match: *`` is refused where the object exists, unless the service ignores conditions, as some
services do: then it answers success and overwrites.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from tests.kit.fault_proxy import FaultPlan
from tests.kit.loopback_http import LoopbackServer, Reply, Request

__all__ = ["PlainServer"]

_MOMENT = "Mon, 01 Jan 2024 00:00:00 GMT"
_TAKEN_XML = b"<Error><Code>PreconditionFailed</Code><Message>taken</Message></Error>"
_GONE_XML = b"<Error><Code>NoSuchKey</Code><Message>gone</Message></Error>"


class PlainServer(LoopbackServer):
    """Objects by path, with the headers that came with them.

    Args:
        ignores_conditions: Whether ``If-None-Match`` has no effect.

    Attributes:
        requests: Method and path of each request.
        faults: Which requests fail.
        objects: What is there.
    """

    def __init__(self, *, ignores_conditions: bool) -> None:
        self.ignores_conditions = ignores_conditions
        self.objects: dict[str, tuple[bytes, dict[str, str]]] = {}
        self.requests: list[tuple[str, str]] = []
        self.faults = FaultPlan()
        super().__init__(lambda request: self.faults.intercept(request, lambda: self._answer(request)))

    def _answer(self, request: Request) -> Reply:
        path = unquote(request.path)
        self.requests.append((request.method, path))
        if request.method == "POST" and "delete" in request.query:
            for key in re.findall(rb"<Key>(.*?)</Key>", request.body):
                self.objects.pop(f"{path.rstrip('/')}/{key.decode()}", None)
            return Reply(200, b"<DeleteResult/>")
        if request.method == "DELETE":
            self.objects.pop(path, None)
            return Reply(202)
        if request.method == "PUT":
            return self._put(path, request)
        if "list-type" in request.query:
            return Reply(200, b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>")
        found = self.objects.get(path)
        if found is None:
            return Reply(404, b"" if request.method == "HEAD" else _GONE_XML, {"x-ms-error-code": "BlobNotFound"})
        data, headers = found
        if request.method == "HEAD":
            return Reply(200, b"", headers, length=len(data))
        return Reply(200, data, headers)

    def _put(self, path: str, request: Request) -> Reply:
        if request.headers.get("if-none-match") == "*" and path in self.objects and not self.ignores_conditions:
            is_azure = "x-ms-version" in request.headers
            return Reply(409 if is_azure else 412, _TAKEN_XML, {"x-ms-error-code": "BlobAlreadyExists"})
        kept = {
            name: value for name, value in request.headers.items() if name.startswith(("x-amz-meta-", "x-ms-meta-"))
        }
        headers = {"ETag": f'"{len(self.requests)}"', "Last-Modified": _MOMENT, **kept}
        self.objects[path] = request.body, headers
        return Reply(201 if "x-ms-version" in request.headers else 200, b"", headers)
