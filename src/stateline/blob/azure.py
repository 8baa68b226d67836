"""A store on Azure Blob Storage.

Facts (Azure Storage REST reference, "Put Block", "Put Block List"):
- A block is put on the blob it will belong to and stays invisible. All block ids of a blob have equal length.
- Put Block List makes the blob of exactly the blocks it names, all or nothing, and **drops every other uncommitted
  block** of that blob. With ``If-None-Match: *`` it is create-if-absent.
- Uncommitted blocks are dropped a week after the last block was put on the blob, or when the blob is written whole.
  They cannot be read or listed as objects.
- A blob has at most 50,000 blocks.

So only the list of a finished file is ever put, once, with the blocks that its parts name. Writers that share a target
put blocks side by side, under ids that nobody else has, and take nothing from each other before one of them has won.

Layout: a long piece is an uncommitted block of its target. A short one is a blob ``.inprogress/<uuid>`` below the root,
so that it can be read back and merged into the next piece. When the file ends, ``prepare`` puts what is left of them as
blocks, too, and keeps the short pieces as parts without bytes, which say how long they were. The nonce and the CRC32C
of a blob are kept as its metadata.

So the publication of a prepared file is one Put Block List. After it the blocks are gone, and somebody who wakes up
late inside ``publish`` can create nothing, whatever became of the file meanwhile. If the blocks have expired, the
target is absent **and** all pieces are still there as blobs, then nobody has published the file (pieces go before the
file may be moved), and it is published from the blobs, as parts that were never prepared are: with blocks, or one Put
Blob, of the caller's own. Somebody who sleeps inside that may create the file once more. So may one who publishes an
empty file: no block has no bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from azure.core import MatchConditions
from azure.core import exceptions as sdk
from azure.identity import DefaultAzureCredential
from azure.storage.blob import BlobBlock, BlobServiceClient, ContainerClient, ExponentialRetry

from stateline.blob.answers import Answer, Refusal, answer_of_status, try_unanswered
from stateline.blob.api import Buffer, ObjectInfo
from stateline.blob.arguments import checked_names, checked_parts, own_bytes
from stateline.blob.azure_blocks import check_count, fits_one_put, is_block, recalled, remembered, runs_of
from stateline.blob.checksum import crc32c
from stateline.blob.cloud import CloudStore
from stateline.blob.cloud_settings import CloudSettings, parse_endpoint, parse_secret
from stateline.blob.outcome import Fingerprint, PieceError, damaged_part, parts_missing
from stateline.blob.urls import split_cloud_url
from stateline.environment import Environment
from stateline.errors import InvalidInputError
from stateline.handles import Part
from stateline.options import Secret, parse_bool, parse_size, setting, settings_from_options
from stateline.redaction import redacted

__all__ = ["AzureStore", "AzureStoreSettings"]

_NONCE: Final = "stateline_nonce"
_CHECKSUM: Final = "stateline_crc32c"
_FOLDER_MARK: Final = "hdi_isfolder"
_DELAY_SECONDS_MAX: Final = 8.0
_SINGLE_PUT_BYTES_MAX: Final = 5000 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureStoreSettings(CloudSettings):
    """Options of an ``az:`` store.

    The account is that of the URL, and credentials come from the SDK's own chain, by default. A store with a secret
    cannot be sent to another process. Pieces of at least ``block_size_min`` are blocks of their target and need no
    further transfer; shorter ones are blobs of their own, which do not expire.
    """

    account: str = setting("", lambda value, _: str(value), help="Name or host of the storage account")
    endpoint: str = setting("", parse_endpoint, help="URL of the service")
    checksums: bool = setting(True, parse_bool, help="Let the service compare MD5 sums")
    block_size_min: int = setting("5MiB", parse_size, help="Shorter pieces are blobs of their own")
    connection_string: Secret | None = setting(None, parse_secret, help="Account and key in one")  # noqa: RUF009
    account_key: Secret | None = setting(None, parse_secret, help="Key of the account")  # noqa: RUF009
    sas_token: Secret | None = setting(None, parse_secret, help="Shared access signature")  # noqa: RUF009


class AzureStore(CloudStore[ContainerClient, AzureStoreSettings]):
    """Blobs in a container, below a prefix."""

    scheme = "az"
    settings_type = AzureStoreSettings

    @classmethod
    def open(cls, url: str, options: Mapping[str, str], environment: Environment | None) -> Self:
        """Opens ``az://container/prefix`` or ``az://container@account/prefix``; see :func:`open_store`."""
        authority, prefix = split_cloud_url(url)
        container, _, account = authority.partition("@")
        settings = settings_from_options(AzureStoreSettings, options)
        if account:
            settings = replace(settings, account=account.replace(".dfs.", ".blob.", 1))
        return cls(container, prefix, settings, environment)

    @property
    def url(self) -> str:
        account = f"@{self._settings.account}" if "." in self._settings.account else ""
        return f"az://{self._container}{account}/{self._prefix}".rstrip("/")

    # -- whole objects --------------------------------------------------------------------------------------------

    def head(self, name: str) -> ObjectInfo:
        key = self._key(name)
        return self._reading("head", name, lambda: _info(name, self._client.get_blob_client(key).get_blob_properties()))

    def delete(self, names: Iterable[str]) -> None:
        keys = [self._key(name) for name in checked_names(names)]
        with self._telling("delete", ""):
            self._each(self._delete_one, keys)

    # -- staging --------------------------------------------------------------------------------------------------

    def stage(self, target: str, data: Buffer) -> Part:
        key, data = self._key(target), own_bytes(data, "stage", target)
        if len(data) >= max(self._settings.block_size_min, 1):
            with self._telling("stage", target):
                return self._block(key, data)
        return Part(name=self._stage_object(data).name, length=len(data), crc32c=crc32c(data))

    def read_staged(self, part: Part) -> bytes | None:
        """The bytes of a piece that is a blob. A block cannot be read before it is published."""
        if is_block(part):
            self._check_open()
            return None
        key = self._staged_key(part)
        return self._reading("read_staged", part.name, lambda: self._read(key))

    def prepare(self, target: str, parts: Sequence[Part], nonce: str) -> tuple[Part, ...]:  # noqa: ARG002
        """Puts what is left of short pieces as blocks of the target."""
        key = self._key(target)
        blobs = [part for part in parts if not is_block(part)]
        runs = runs_of([part for part in parts if part.length])
        if not blobs or not runs:
            return tuple(parts)
        check_count("prepare", target, runs)
        with self._telling("prepare", target):
            try:
                blocks = self._each(lambda run: self._block_of(target, key, run), runs)
            except PieceError as error:
                raise error.meaning from error
        return (*blocks, *map(remembered, blobs))

    def discard(self, parts: Iterable[Part]) -> None:
        """Deletes pieces that are blobs. Blocks that no blob names vanish by themselves."""
        keys = [self._staged_key(part) for part in checked_parts(parts, "discard") if not is_block(part)]
        with self._telling("discard", ""):
            self._each(self._delete_one, keys)

    def _create(self, name: str, data: bytes, ours: Fingerprint) -> ObjectInfo:
        return self._send(name, data, ours, replacing=False)

    def _assemble(self, target: str, parts: Sequence[Part], ours: Fingerprint) -> ObjectInfo:
        try:
            return self._assemble_pieces(target, [part for part in parts if part.length], ours)
        except PieceError as error:
            blobs = [recalled(part) for part in parts if part.version]
            if Fingerprint.of_parts(blobs, ours.nonce) != ours:
                raise
            if self._present(lambda: self.head(target), Refusal(Answer.ABSENT, error)) is not None:
                raise
            return self._assemble_pieces(target, blobs, ours)

    def _assemble_pieces(self, target: str, pieces: Sequence[Part], ours: Fingerprint) -> ObjectInfo:
        if fits_one_put(pieces):
            data = b"".join(self._each(lambda part: self._piece(target, part), pieces))
            return self._create_over_blocks(target, data, ours)
        key = self._key(target)
        self._check_blocks(target, key, [part for part in pieces if is_block(part)])
        runs = runs_of(pieces)
        check_count("publish", target, runs)
        blocks = self._each(lambda run: self._block_of(target, key, run), runs)
        return self._commit(target, pieces, [block.name for block in blocks], ours)

    # -- blocks ---------------------------------------------------------------------------------------------------

    def _create_over_blocks(self, target: str, data: bytes, ours: Fingerprint) -> ObjectInfo:
        """Creates a blob, also where an earlier life of the file left blocks: Azurite takes these for a blob."""
        try:
            return self._create(target, data, ours)
        except Refusal as refusal:
            if refusal.answer is not Answer.TAKEN or self._present(lambda: self.head(target), refusal):
                raise
        blocks = [self._block(self._key(target), data).name] if data else []
        return self._commit(target, (), blocks, ours)

    def _commit(self, target: str, pieces: Sequence[Part], blocks: Sequence[str], ours: Fingerprint) -> ObjectInfo:
        try:
            with self._asking():
                made = self._client.get_blob_client(self._key(target)).commit_block_list(
                    [BlobBlock(block_id=block) for block in blocks],
                    metadata=_metadata(ours),
                    match_condition=MatchConditions.IfMissing,
                )
                return self._made(target, ours, made["etag"])
        except Refusal as refusal:
            if getattr(refusal.error, "error_code", None) == "InvalidBlockList":
                gone = next((part.name for part in pieces if is_block(part)), pieces[0].name if pieces else "")
                raise PieceError(parts_missing(target, gone)) from refusal
            raise

    def _check_blocks(self, target: str, key: str, blocks: Sequence[Part]) -> None:
        """Every block must be there, as long as it was. Their bytes cannot be read, but nobody else has their ids."""
        if not blocks:
            return
        with self._meeting(target, blocks[0]), self._asking():
            _, uncommitted = self._client.get_blob_client(key).get_block_list("uncommitted")
        sizes = {block.id: block.size for block in uncommitted}
        for part in blocks:
            if part.name not in sizes:
                raise PieceError(parts_missing(target, part.name))
            if sizes[part.name] != part.length:
                raise PieceError(damaged_part(target, part))

    def _block_of(self, target: str, key: str, run: Sequence[Part]) -> Part:
        """The block that holds a run: one already, or one that is made of short pieces."""
        if is_block(run[0]):
            return run[0]
        return self._block(key, b"".join(self._piece(target, part) for part in run))

    def _block(self, key: str, data: bytes) -> Part:
        """A new block."""
        block = Part(name=self._environment.ids.new_id(), length=len(data), crc32c=crc32c(data))
        with self._asking():
            self._client.get_blob_client(key).stage_block(
                block.name, data, length=len(data), validate_content=self._settings.checksums
            )
        return block

    def _piece(self, target: str, part: Part) -> bytes:
        key = self._staged_key(part)
        with self._meeting(target, part):
            data = self._read_whole(lambda: self._read(key))
        return self._check_piece(target, part, data)

    # -- requests -------------------------------------------------------------------------------------------------

    def _send(self, name: str, data: bytes, ours: Fingerprint, *, replacing: bool) -> ObjectInfo:
        with self._asking():
            made = self._client.get_blob_client(self._key(name)).upload_blob(
                data,
                length=len(data),
                overwrite=replacing,
                metadata=_metadata(ours),
                validate_content=self._settings.checksums,
            )
            return self._made(name, ours, made["etag"])

    def _put(self, name: str, data: bytes, ours: Fingerprint) -> ObjectInfo:
        return self._send(name, data, ours, replacing=True)

    def _read(self, key: str, bounds: tuple[int, int] | None = None, **pin: str) -> bytes:
        extent = {} if bounds is None else {"offset": bounds[0], "length": bounds[1] - bounds[0]}
        data: bytes = self._client.get_blob_client(key).download_blob(**extent, **pin).readall()
        return data

    def _page(self, prefix: str, token: str | None) -> tuple[Sequence[ObjectInfo], str | None]:
        listing = self._client.list_blobs(
            name_starts_with=prefix, include=["metadata"], results_per_page=self._settings.page_size
        )
        pages = listing.by_page(token)
        blobs = [_info(blob.name, blob) for blob in next(pages) if _FOLDER_MARK not in (blob.metadata or {})]
        return blobs, pages.continuation_token

    def _is_beyond_end(self, error: Exception) -> bool:
        return isinstance(error, sdk.HttpResponseError) and error.status_code == 416

    def _delete_one(self, key: str) -> None:
        self._if_there(lambda: self._client.get_blob_client(key).delete_blob(delete_snapshots="include"), Answer.ABSENT)

    # -- the SDK --------------------------------------------------------------------------------------------------

    def _connect(self) -> ContainerClient:
        settings = self._settings
        patience: dict[str, Any] = {
            "retry_policy": _Retry(settings.attempts - 1),
            "connection_timeout": settings.connect_timeout,
            "read_timeout": settings.read_timeout,
            "max_single_put_size": _SINGLE_PUT_BYTES_MAX,
        }
        text = settings.connection_string and settings.connection_string.reveal()
        if text is None and not (settings.account or settings.endpoint):
            text = os.environ.get("AZURE_STORAGE_CONNECTION_STRING")
        try:
            if text is not None:
                service = BlobServiceClient.from_connection_string(text, **patience)
            else:
                service = BlobServiceClient(self._account_url(), credential=self._credential(), **patience)
        except InvalidInputError:
            raise
        except ValueError as error:
            raise InvalidInputError(
                redacted(str(error)), operation="connect", subject=self.url, hint="Check account, endpoint and key"
            ) from None
        return service.get_container_client(self._container)

    def _account_url(self) -> str:
        if self._settings.endpoint:
            return self._settings.endpoint
        account = self._settings.account or os.environ.get("AZURE_STORAGE_ACCOUNT", "")
        if not account:
            raise InvalidInputError(
                "no storage account is given",
                operation="connect",
                subject=self.url,
                hint="Write az://container@account/folder, or set the option account",
            )
        return f"https://{account}" if "." in account else f"https://{account}.blob.core.windows.net"

    def _credential(self) -> Any:
        given = self._settings.account_key or self._settings.sas_token
        if given is not None:
            return given.reveal()
        known = os.environ.get("AZURE_STORAGE_KEY") or os.environ.get("AZURE_STORAGE_SAS_TOKEN")
        return known or DefaultAzureCredential(
            connection_timeout=self._settings.connect_timeout,
            read_timeout=self._settings.read_timeout,
            retry_total=self._settings.attempts - 1,
        )

    def _disconnect(self, client: ContainerClient) -> None:
        client.close()

    def _answer(self, error: BaseException) -> Answer | None:
        if isinstance(error, sdk.ClientAuthenticationError):
            return Answer.DENIED
        if isinstance(error, sdk.HttpResponseError) and error.status_code is not None:
            if getattr(error, "error_code", None) in ("ContainerNotFound", "ContainerBeingDeleted"):
                return Answer.REFUSED
            return answer_of_status(error.status_code)
        if isinstance(error, sdk.IncompleteReadError | sdk.HttpResponseError):
            timed_out = isinstance(error.inner_exception, sdk.ServiceResponseTimeoutError)
            return Answer.SILENT if timed_out else Answer.CUT
        if isinstance(error, sdk.AzureError):
            return Answer.SILENT
        return None


class _Retry(ExponentialRetry):
    """The SDK's own policy, which also tells of tries that got no answer.

    Args:
        retries: Tries after the first; by itself the SDK makes no more than 3 for each cause.
    """

    def __init__(self, retries: int) -> None:
        causes = dict.fromkeys(("retry_connect", "retry_read", "retry_status"), retries)
        super().__init__(0.2, 2, retries, random_jitter_range=0.2, **causes)

    def get_backoff_time(self, settings: dict[str, Any]) -> float:
        """Seconds until the next try."""
        return min(float(super().get_backoff_time(settings)), _DELAY_SECONDS_MAX)

    def increment(self, settings: dict[str, Any], request: Any, response: Any = None, error: Any = None) -> bool:
        """Counts a try that failed; whether there is another."""
        if error is not None:
            try_unanswered()
        return bool(super().increment(settings, request, response, error))


def _info(name: str, found: Any) -> ObjectInfo:
    metadata = found.metadata or {}
    return ObjectInfo(
        name=name,
        size=found.size,
        modified_at=found.last_modified.timestamp(),
        crc32c=int(metadata[_CHECKSUM], 16) if _CHECKSUM in metadata else None,
        version=found.etag,
        nonce=metadata.get(_NONCE, ""),
    )


def _metadata(ours: Fingerprint) -> dict[str, str]:
    return {_CHECKSUM: f"{ours.crc32c:08x}", **({_NONCE: ours.nonce} if ours.nonce else {})}
