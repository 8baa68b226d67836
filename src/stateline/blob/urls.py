"""From a URL to the store behind it; the SDK of a cloud is loaded only when its scheme is asked for.

| URL | store | extra |
|---|---|---|
| ``memory://name/folder`` | this process's memory | |
| ``file:///folder``, ``/folder``, ``folder`` | local disk | |
| ``s3://bucket/prefix`` (also ``s3a``) | Amazon S3 and compatible | ``stateline[s3]`` |
| ``gs://bucket/prefix`` | Google Cloud Storage | ``stateline[gcs]`` |
| ``az://container/prefix`` (also ``abfs``, ``abfss``) | Azure Blob Storage | ``stateline[azure]`` |

A text with ``://`` before its first ``/`` is a URL, never a path, whatever stands before it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Final
from urllib.parse import unquote, urlsplit

from stateline.blob.api import BlobStore
from stateline.blob.names import check_name
from stateline.environment import Environment
from stateline.errors import InvalidInputError, NotInstalledError
from stateline.extras import extra_module
from stateline.options import plain_options
from stateline.redaction import hide_inside

__all__ = [
    "absolute_url",
    "is_local",
    "is_relative",
    "open_store",
    "places_of",
    "refuse_credentials",
    "relative_name",
    "same_service",
    "split_cloud_url",
    "split_local_url",
    "store_of",
    "store_options",
]

_CLOUDS: Final = {
    "s3": ("stateline.blob.s3", "S3Store", "s3"),
    "s3a": ("stateline.blob.s3", "S3Store", "s3"),
    "gs": ("stateline.blob.gcs", "GcsStore", "gcs"),
    "az": ("stateline.blob.azure", "AzureStore", "azure"),
    "abfs": ("stateline.blob.azure", "AzureStore", "azure"),
    "abfss": ("stateline.blob.azure", "AzureStore", "azure"),
}

_KNOWN: Final = ", ".join(["memory", "file", *_CLOUDS])

_OTHER_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
"""Such as ``dbfs:/folder``, which Spark knows, and ``file:/folder``."""

_MISSPELT: Final = re.compile(r"([A-Za-z][\w+.-]*(?::/?(?!/)|//))[^:@]*:[^@]*@")
"""What would be a local path, and was meant as a URL with a password: ``s3//user:password@bucket``."""

_ALIASES: Final = {"s3a": "s3", "abfs": "az", "abfss": "az"}
"""Spellings of one scheme: what is stored under the first is found under the second."""


def open_store(
    url: str | os.PathLike[str], options: Mapping[str, str] | None = None, environment: Environment | None = None
) -> BlobStore:
    """Opens the store that a URL names. No I/O happens before the first call on it.

    Args:
        url: One of :mod:`stateline.blob.urls`, or a path of the local disk.
        options: Settings of that store, as strings; unknown ones are refused.
        environment: Clock, ids and threads; the real ones by default.

    Raises:
        InvalidInputError: The URL has an unknown scheme, no bucket or a credential, or is not one; or an option is
            unknown.
        NotInstalledError: The SDK of a cloud is missing; the hint names the ``pip install``.
    """
    url = _text_of(url)
    scheme = _written_scheme(url)
    settings = plain_options(options)
    if scheme in (None, "file"):
        from stateline.blob.local import LocalStore  # noqa: PLC0415 - each store loads on demand

        return LocalStore.open(split_local_url(url), settings, environment)
    if scheme == "memory":
        from stateline.blob.memory import MemoryStore  # noqa: PLC0415

        if settings:
            raise _refused(url, "must have no options", "Leave them out for a store in memory")
        return MemoryStore(url.split("://", 1)[1].strip("/"), environment)
    if scheme not in _CLOUDS:
        hint = f"Known schemes: {_KNOWN}; put ./ before it for a local folder of that name"
        raise _refused(url, f"unknown scheme {scheme!r}", hint)
    module_name, class_name, extra = _CLOUDS[scheme]
    module = extra_module(module_name, extra, operation="open_store", subject=url)
    store: BlobStore = getattr(module, class_name).open(url, settings, environment)
    return store


def store_options() -> frozenset[str]:
    """The names of all options of stores whose packages are installed."""
    from stateline.blob.local import LocalStoreSettings  # noqa: PLC0415 - each store loads on demand

    found = {each.name for each in fields(LocalStoreSettings)}
    for module_name, class_name, extra in set(_CLOUDS.values()):
        try:
            module = extra_module(module_name, extra, operation="open_store", subject=extra)
        except NotInstalledError:
            continue
        found |= {each.name for each in fields(getattr(module, class_name).settings_type)}
    return frozenset(found)


def store_of(where: BlobStore | str | os.PathLike[str], environment: Environment | None = None) -> BlobStore:
    """The store itself, or the one that a URL names.

    Raises:
        InvalidInputError: It is neither; or as :func:`open_store`.
    """
    if isinstance(where, str | os.PathLike):
        return open_store(where, environment=environment)
    if not hasattr(where, "put_if_absent"):
        hint = "Give text such as file:///folder, or what open_store returned"
        raise _refused(repr(where), f"expected a URL or a store, got {type(where).__name__}", hint)
    return where


def _text_of(url: str | os.PathLike[str]) -> str:
    """The URL as text, if it can be one. ``s3:/bucket`` is refused: it would be a folder of that name."""
    text = os.fspath(url) if isinstance(url, str | os.PathLike) else url
    if isinstance(text, str):
        refuse_credentials(text)  # First: the other errors show the URL.
    try:
        if not isinstance(text, str) or "\0" in unquote(text):
            raise ValueError(text)
        urlsplit(text)  # Refuses what looks like an address and is not one, such as "s3://[bucket".
    except ValueError:
        raise _refused(repr(url), "is not a URL", "Give text such as file:///folder") from None
    scheme, colon, rest = text.partition(":")
    is_ours = scheme.lower() in ("memory", *_CLOUDS)
    # "dbfs:/x" of other systems, too: on a cluster each host would have a folder of that name.
    looks_so = scheme.lower() != "file" and "/" not in scheme and (is_ours or rest.startswith("/"))
    if colon and looks_so and not rest.startswith("//"):
        shown = "..." if "@" in rest or "=" in rest else rest  # There may be a credential in it.
        known = f"Write {scheme.lower()}://{shown.lstrip('/')}" if is_ours else f"Known schemes: {_KNOWN}"
        raise _refused(
            f"{scheme}:{shown}",
            "must have '//' after the scheme; without it, it would be a local folder of that name",
            f"{known}, or put ./ before it for the folder",
        )
    return text


def refuse_credentials(url: str) -> None:
    """Refuses a URL with a password or a signature in it: URLs are stored in checkpoints, and shown.

    The error does not show it.
    """
    scheme, _, rest = url.partition("://")
    misspelt = _MISSPELT.match(url)
    if misspelt is not None:
        hint = "Write scheme://bucket/folder, and leave credentials to the SDK's own chain, or give them as options"
        raise _refused(f"{misspelt[1]}***", "must not contain a credential: URLs are stored and shown", hint)
    if _written_scheme(url) in (None, "file", "memory"):
        return
    hide_inside(url)  # Whatever else is wrong with it is reported with the URL.
    authority, query = rest.partition("/")[0], rest.partition("?")[2]
    user = rest.rpartition("@")[0].partition("/")[0]  # A password may have a slash or another @ in it.
    if (":" in user and ":" in authority) or "=" in query:
        hint = "Leave credentials to the SDK's own chain, or give them as options"
        raise _refused(f"{scheme}://***", "must not contain a credential: URLs are stored and shown", hint)


def split_cloud_url(url: str) -> tuple[str, str]:
    """Container and prefix of ``scheme://container/prefix``. Nothing is percent-decoded: object names are not URLs."""
    refuse_credentials(url)
    container, _, prefix = url.split("://", 1)[1].partition("/")
    if not container:
        raise _refused(url, "must name a bucket", "Write scheme://bucket/folder")
    return container, prefix.strip("/")


def same_service(url: str, other: str) -> bool:
    """Whether two URLs lead to the same kind of store, however their schemes are spelled: ``s3a`` is ``s3``."""
    return _scheme(url) == _scheme(other)


def absolute_url(url: str | os.PathLike[str]) -> str:
    """The same place for every process: a local path that is relative to this process's folder becomes absolute."""
    text = _text_of(url)
    return split_local_url(text) if _written_scheme(text) is None else text


def is_relative(place: str) -> bool:
    """Whether a path or a URL, of ours or of Spark's, is a path that depends on the folder of a process.

    Empty text names no place, and the callers refuse it.
    """
    if not place.strip() or _written_scheme(place) is not None or _OTHER_SCHEME.match(place):
        return False
    return not os.path.isabs(place.removeprefix("file:"))


def split_local_url(url: str) -> str:
    """The absolute path that a ``file:`` URL or a plain path names."""
    if _written_scheme(url) is None:
        path = url.removeprefix("file:")
    else:
        parts = urlsplit(url)
        if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
            raise _refused(url, "must have neither a host nor a query", "Write file:///folder")
        path = unquote(parts.path)
    if not path:
        raise _refused(repr(url), "must not be empty", "Write file:///folder, or a path")
    return os.path.abspath(path)


def relative_name(root_url: str, name_or_url: str) -> str:
    """The name, below the root of a store, that a relative name or an absolute URL (or local path) means.

    Args:
        root_url: :attr:`BlobStore.url` of the store.
        name_or_url: ``out/f.csv``, ``s3://bucket/root/out/f.csv``, ``file:///root/out/f.csv`` or ``/root/out/f.csv``.

    Raises:
        InvalidInputError: It lies outside the root, or is not a name that a store can hold.
    """
    if not isinstance(name_or_url, str):
        raise InvalidInputError(
            f"must be text, not {type(name_or_url).__name__}", subject=repr(name_or_url), hint="Give a URL or a name"
        )
    if _written_scheme(name_or_url) is None and not name_or_url.startswith(("/", "file:")):
        return check_name(name_or_url)
    if _scheme(root_url) != _scheme(name_or_url):
        raise _outside(root_url, name_or_url)
    if _scheme(root_url) == "file":
        root, path = split_local_url(root_url), split_local_url(name_or_url)
        if not path.startswith(_folder(root)):
            path = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    else:
        root, path = places_of(root_url, name_or_url)
    if not path.startswith(_folder(root)):
        raise _outside(root_url, name_or_url)
    return check_name(path.removeprefix(_folder(root)))


def _written_scheme(url: str) -> str | None:
    """What stands before ``://``, whether or not it can be a scheme; ``None`` for a path, also for ``./a://b``."""
    scheme, separator, _ = url.partition("://")
    return scheme.lower() if separator and "/" not in scheme else None


def is_local(url: str) -> bool:
    """Whether a URL or a path names a folder of the local disk."""
    return _scheme(url) == "file"


def _scheme(url: str) -> str:
    scheme = _written_scheme(url)
    return "file" if scheme is None else _ALIASES.get(scheme, scheme)


def _place(url: str) -> str:
    """Everything after the scheme. Object names are not percent-encoded, so nothing is decoded."""
    return url.split("://", 1)[1].replace(".dfs.", ".blob.", 1).strip("/")


def places_of(root_url: str, url: str) -> tuple[str, str]:
    """What follows the scheme of two cloud URLs, with the account of neither where only one tells it."""
    root, path = _place(root_url), _place(url)
    if "@" not in root.partition("/")[0]:
        return root, _without_account(path)
    return root if "@" in path.partition("/")[0] else _without_account(root), path


def _without_account(place: str) -> str:
    """``container@account/prefix`` as ``container/prefix``: the account may come from an option instead."""
    authority, slash, rest = place.partition("/")
    return authority.partition("@")[0] + slash + rest


def _folder(path: str) -> str:
    return path.rstrip("/") + "/"


def _outside(root_url: str, name_or_url: str) -> InvalidInputError:
    return InvalidInputError(
        f"is not below the store's root {root_url}",
        subject=name_or_url,
        hint="Give a URL below the root, or a relative name",
    )


def _refused(subject: str, message: str, hint: str) -> InvalidInputError:
    return InvalidInputError(message, operation="open_store", subject=subject, hint=hint)
