"""Bugs of the cloud stores, planted in the real adapters, which run over simulated services."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Sequence
from typing import Any, Final

from stateline.blob import cloud as cloud_module
from stateline.blob.api import BlobStore, Buffer, ObjectInfo
from stateline.blob.outcome import Fingerprint
from stateline.handles import Part
from tests.kit import cloud_network
from tests.kit.planted.bugs import PlantedBug, register_bug, replaced

__all__: list[str] = []

# A replacement has the arguments of what it replaces, wanted or not, and reaches what is private.

_CLOUDS: Final = ("s3", "gcs", "azure")


def _bug(
    name: str,
    description: str,
    site: str,
    plant: Callable[[], contextlib.AbstractContextManager[None]],
    suite: str,
    *scenarios: str,
) -> None:
    register_bug(
        PlantedBug(name=name, description=description, site=site, plant=plant, scenarios=scenarios, suites=(suite,))
    )


def _adapter(cloud: str, class_name: str) -> Any:
    """A store's class; its module needs the SDK, so it is loaded when the bug is planted."""
    return getattr(importlib.import_module(f"stateline.blob.{cloud}"), class_name)


def _put_instead(self: Any, name: str, data: Buffer, ours: Fingerprint) -> ObjectInfo:
    made: ObjectInfo = self._put(name, data, ours)
    return made


def _whatever_is_there(found: ObjectInfo, ours: Fingerprint) -> bool:
    return True


def _by_bytes_alone(found: ObjectInfo, ours: Fingerprint) -> bool:
    return found.size == ours.length


def _by_an_upload_of_its_own(self: Any, target: str, parts: Sequence[Part], ours: Fingerprint) -> ObjectInfo:
    pieces = [part for part in parts if part.length]
    made: ObjectInfo = self._assemble_anew(target, pieces, ours)
    return made


def _unheard() -> None:
    """Forgets that a try had no answer."""


for _cloud, _class in (("s3", "S3Store"), ("gcs", "GcsStore"), ("azure", "AzureStore")):
    _bug(
        f"{_cloud}_creates_by_plain_put",
        "a creation is sent without its condition",
        f"stateline.blob.{_cloud}.{_class}._create",
        lambda cloud=_cloud, owner=_class: replaced(_adapter(cloud, owner), "_create", _put_instead),  # type: ignore[misc]
        "zombies",
        f"create_race_{_cloud}",
    )
_bug(
    "s3_upload_of_its_own",
    "a publication begins an upload of its own, though the point names one",
    "stateline.blob.s3_uploads.S3Uploads._assemble",
    lambda: replaced(_adapter("s3_uploads", "S3Uploads"), "_assemble", _by_an_upload_of_its_own),
    "zombies",
    "publish_once_s3",
)
for _cloud, _class, _what in (
    ("azure", "AzureStore", "puts short pieces as blocks"),
    ("gcs", "GcsStore", "joins pieces until one request can join the rest"),
):
    _bug(
        f"{_cloud}_prepares_nothing",
        f"it is the publication that {_what}, not the end of the file",
        f"stateline.blob.{_cloud}.{_class}.prepare",
        lambda cloud=_cloud, owner=_class: replaced(_adapter(cloud, owner), "prepare", BlobStore.prepare),  # type: ignore[misc]
        "zombies",
        f"publish_once_{_cloud}",
    )
_bug(
    "cloud_trusts_existence",
    "after a lost answer, whatever is there counts as ours",
    "stateline.blob.cloud._is_ours",
    lambda: replaced(cloud_module, "_is_ours", _whatever_is_there),
    "single",
    *(f"store_publish_{cloud}" for cloud in _CLOUDS),
)
_bug(
    "cloud_compares_lengths",
    "after a lost answer, an object of the right length counts as ours",
    "stateline.blob.cloud._is_ours",
    lambda: replaced(cloud_module, "_is_ours", _by_bytes_alone),
    "single",
    *(f"store_publish_{cloud}" for cloud in _CLOUDS),
)
_bug(
    "cloud_last_answer_counts",
    "a refusal counts as proof, though an earlier try had no answer",
    "stateline.blob.answers.try_unanswered",
    lambda: replaced(cloud_network, "try_unanswered", _unheard),
    "sim",
    "create_race_gcs",
)
