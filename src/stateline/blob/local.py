"""A store on the local disk that keeps what it acknowledged through power loss.

Facts (POSIX and Linux, ``fsync(2)``, ``link(2)``, ``rename(2)``):
- ``fsync`` of a file makes its bytes durable, not its name; the name needs an ``fsync`` of the folder, and a new folder
  needs one of its parent.
- A failed ``fsync`` may have dropped the dirty pages: a second ``fsync`` that succeeds proves nothing. So the file is
  given up, and a retry writes a new one under a new name.
- A call that gives or takes a name and fails with an I/O error may have had its effect: its outcome is unknown.
- ``link`` fails if the target exists, ``rename`` replaces it silently. So creation is always by ``link``.

Layout: objects are plain files under the root; pieces and temporary files are ``.inprogress/<uuid>``, and several
pieces are joined in the folder ``.inprogress/<uuid of the first>.join``.

Safety: every path is walked from the root by folder descriptor with ``O_NOFOLLOW``, so no link inside the root leads
out of it. The root itself is resolved once, when the store is opened.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from stateline.blob.api import BlobStore, Buffer, ObjectInfo
from stateline.blob.arguments import check_range, checked_names, plain_bytes, staged_parts
from stateline.blob.checksum import crc32c
from stateline.blob.file_bytes import read_once, write_all, write_pieces
from stateline.blob.folders import CREATION_ATTEMPTS, Folders, vanishing
from stateline.blob.names import STAGING_PREFIX, check_name, check_prefix
from stateline.blob.outcome import Fingerprint, PieceError, already_exists, damaged_part, parts_missing, too_short
from stateline.blob.system_errors import SURELY_NOT_DONE, error_of_system
from stateline.blob.translation import Translated
from stateline.environment import Environment, system_environment
from stateline.errors import InvalidInputError, NotFoundError, OutcomeUnknownError, StatelineError
from stateline.handles import Part
from stateline.options import normalise_settings, parse_bool, parse_choice, setting, settings_from_options

__all__ = ["LocalStore", "LocalStoreSettings"]

T = TypeVar("T")

_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalStoreSettings:
    """Options of a ``file:`` store.

    Without ``fsync`` an acknowledged write may be lost with the power: for throw-away runs only. Private permissions
    are 0700 for folders and 0600 for files; ``umask`` leaves them to the process's umask, for output that other users
    read. Folders whose name starts with a dot are always private.
    """

    fsync: bool = setting(True, parse_bool, help="fsync files and folders before acknowledging")
    permissions: str = setting(
        "private", lambda value, name: parse_choice(value, ("private", "umask"), name), help="private or umask"
    )

    def __post_init__(self) -> None:
        normalise_settings(self)


class LocalStore(BlobStore):
    """Files under one folder, which is made on the first write."""

    def __init__(
        self, root: str | Path, settings: LocalStoreSettings | None = None, environment: Environment | None = None
    ) -> None:
        self._root = os.path.realpath(root)
        self._settings = settings or LocalStoreSettings()
        self._environment = environment or system_environment()
        self._folders = Folders(self._root, sync=self._settings.fsync, private=self._settings.permissions == "private")

    @classmethod
    def open(cls, path: str, options: Mapping[str, str], environment: Environment | None) -> Self:
        """Opens a store from string options; see :func:`stateline.blob.open_store`."""
        return cls(path, settings_from_options(LocalStoreSettings, options), environment)

    def __repr__(self) -> str:
        return f"LocalStore({self._root!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return LocalStore, (self._root, self._settings, self._environment)

    @property
    def url(self) -> str:
        return Path(self._root).as_uri()

    def put(self, name: str, data: Buffer) -> ObjectInfo:
        folders, leaf = _split(name)
        data = plain_bytes(data, "put", name)

        def rename(temporary: str, staging: int, folder: int) -> None:
            os.rename(temporary, leaf, src_dir_fd=staging, dst_dir_fd=folder)

        with self._translated("put", name):
            self._with_temporary([data], folders, rename)
        return self._info(name, len(data), crc32c(data))

    def put_if_absent(self, name: str, data: Buffer) -> ObjectInfo:
        data = plain_bytes(data, "put_if_absent", name)
        self._put_new(name, [data])
        return self._info(name, len(data), crc32c(data))

    def put_all_if_absent(self, name: str, pieces: Sequence[Buffer], *, read_soon: bool = False) -> ObjectInfo:
        """Creates an object from pieces; a long one that nobody reads soon goes past the page cache where possible."""
        size = sum(map(len, pieces))
        self._put_new(name, pieces, unread_bytes=0 if read_soon else size)
        return self._info(name, size, None)

    def get(self, name: str) -> bytes:
        with self._translated("get", name), self._opened(name) as descriptor:
            return b"".join(_chunks(descriptor))

    def get_range(self, name: str, start: int, end: int) -> bytes:
        check_range(name, start, end)
        with self._translated("get_range", name), self._opened(name) as descriptor:
            size = os.fstat(descriptor).st_size
            if end > size:  # Before any buffer is allocated: the range may come from a damaged handle.
                raise too_short(name, end, size)
            pieces = []
            position = start
            while position < end:
                piece = os.pread(descriptor, end - position, position)
                if not piece:
                    raise too_short(name, end, os.fstat(descriptor).st_size)
                pieces.append(piece)
                position += len(piece)
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def head(self, name: str) -> ObjectInfo:
        with self._translated("head", name), self._opened(name) as descriptor:
            status = os.fstat(descriptor)
        return ObjectInfo(name=name, size=status.st_size, modified_at=status.st_mtime)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        folder = prefix.rpartition("/")[0]
        with self._translated("list", prefix):
            yield from self._walk(folder, prefix)

    def delete(self, names: Iterable[str]) -> None:
        """Deletes objects, and the folders that become empty."""
        by_folder: dict[tuple[str, ...], list[str]] = {}
        for name in checked_names(names):
            folders, leaf = _split(name)
            by_folder.setdefault(folders, []).append(leaf)
        removed: set[str] = set()
        for folders, leaves in by_folder.items():
            name = "/".join((*folders, leaves[0]))
            with self._translated("delete", name):
                try:
                    self._unlink(folders, leaves, removed)
                except OSError as error:
                    if removed or error.errno not in SURELY_NOT_DONE:
                        raise _perhaps_done("delete", name, error) from error
                    raise

    @property
    def copies_cheaply(self) -> bool:
        return True

    def copy(self, source: str, target: str) -> ObjectInfo:
        """Makes a second link to the same file: objects never change, so it is as good as a copy."""
        source_folders, source_leaf = _split(source)
        folders, leaf = _split(target)
        size = self.head(source).size
        with self._translated("copy", f"{source} to {target}"), self._folder(source_folders) as folder:
            try:
                self._placed(source_leaf, folder, folders, self._link_to(leaf))
            except FileExistsError:
                ours = self._examined(source)
                if ours is None or not Fingerprint(ours.size, ours.crc32c or 0).matches(self._examined(target)):
                    raise already_exists(target) from None
                self._sync_entry(folders)
        return ObjectInfo(name=target, size=size, modified_at=self._environment.clock.now())

    def stage(self, target: str, data: Buffer) -> Part:
        data = plain_bytes(data, "stage", check_name(target))
        leaf = self._environment.ids.new_id()
        name = STAGING_PREFIX + leaf
        with self._translated("stage", name), self._staged(leaf, [data], len(data)) as staging:
            self._fsync(staging)
        return Part(name=name, length=len(data), crc32c=crc32c(data))

    def publish(self, target: str, parts: Sequence[Part], nonce: str) -> ObjectInfo:  # noqa: ARG002
        """Creates ``target`` from its pieces.

        A file has no place for ``nonce``: here the content decides, by length and CRC32C, which is as strong because
        the names of published files carry a UUID of their writer.
        """
        folders, leaf = _split(target)
        parts = staged_parts(parts, "publish")
        ours = Fingerprint.of_parts(parts)
        with self._translated("publish", target):
            if self._examined(target) is None:
                try:
                    self._create_from(target, folders, leaf, parts)
                    return self._info(target, ours.length, ours.crc32c)
                except FileExistsError:
                    pass  # Somebody was faster; whether it was for us is decided below.
                except PieceError as missing:
                    if self._examined(target) is None:
                        raise missing.meaning from missing
            found = self._examined(target)
            if found is None:
                raise _moved_away("publish", target)
            if not ours.matches(found):
                raise ours.conflict(target, found)
            self._sync_entry(folders)
        return found

    def discard(self, parts: Iterable[Part]) -> None:
        names = [part.name for part in staged_parts(parts, "discard")]
        self.delete(names)
        for name in names:
            with self._translated("discard", name):
                try:
                    self._remove_joint(name)
                except OSError as error:
                    raise _perhaps_done("discard", name, error) from error

    def close(self) -> None:
        self._folders.close()

    def local_path(self, name: str) -> Path | None:
        check_name(name)
        self._folders.check_open()
        return Path(self._root, name)

    # -- publishing -----------------------------------------------------------------------------------------------

    def _create_from(self, target: str, folders: tuple[str, ...], leaf: str, parts: Sequence[Part]) -> None:
        """Creates the target from its pieces; ``FileExistsError`` where it exists already."""
        if not parts:
            self._with_temporary([], folders, self._link_to(leaf))
            return
        if len(parts) > 1:
            self._join(target, folders, leaf, parts)
            return
        (part,) = parts
        self._check_piece(target, part)
        staging_folders, staged = _split(part.name)
        try:
            with self._folder(staging_folders) as staging:
                self._placed(staged, staging, folders, self._link_to(leaf))
        except FileNotFoundError as error:
            raise PieceError(parts_missing(target, part.name)) from error

    def _join(self, target: str, folders: tuple[str, ...], leaf: str, parts: Sequence[Part]) -> None:
        """Creates the target from several pieces, in a folder of their own that dies with them.

        The folder is opened before any piece is, and ``discard`` removes it after it has removed the pieces. So a
        publisher that was asleep meanwhile has nothing to link from, even if it had copied all pieces before: what was
        published, discarded and moved away is not published again.
        """
        first = parts[0].name
        staging_folders, staged = _split(first)
        temporary = self._environment.ids.new_id()
        try:
            with self._folder(staging_folders) as staging, contextlib.suppress(FileExistsError):
                os.mkdir(staged + _JOINT, 0o700, dir_fd=staging)
            with (
                self._folder((*staging_folders, staged + _JOINT)) as joint,
                contextlib.closing(self._chunks_of_pieces(target, parts)) as chunks,
            ):
                self._fill(joint, temporary, self._create(joint, temporary), chunks, sum(part.length for part in parts))
                try:
                    self._placed(temporary, joint, folders, self._link_to(leaf))
                finally:
                    with contextlib.suppress(OSError):
                        os.unlink(temporary, dir_fd=joint)
        except FileNotFoundError as error:
            raise PieceError(parts_missing(target, first)) from error

    def _remove_joint(self, name: str) -> None:
        """Ends every unfinished publication of a piece that was discarded."""
        folders, leaf = _split(name + _JOINT)
        for _ in range(CREATION_ATTEMPTS):
            try:
                with self._folder(folders) as folder:
                    os.rmdir(leaf, dir_fd=folder)
                self._remove_if_empty(folders)
            except FileNotFoundError:
                return
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                with contextlib.suppress(FileNotFoundError), self._folder((*folders, leaf)) as joint:
                    for temporary in os.listdir(joint):
                        with contextlib.suppress(FileNotFoundError):
                            os.unlink(temporary, dir_fd=joint)
        raise vanishing(name)

    def _chunks_of_pieces(self, target: str, parts: Sequence[Part]) -> Generator[Buffer]:
        for part in parts:
            yield from self._piece_chunks(target, part)

    def _check_piece(self, target: str, part: Part) -> None:
        for _ in self._piece_chunks(target, part):
            pass

    def _piece_chunks(self, target: str, part: Part) -> Iterator[Buffer]:
        """The bytes of a piece, checked against what was staged before the last chunk is handed out.

        A chunk is good until the next one is asked for.
        """
        length = checksum = 0
        try:
            with self._opened(part.name) as descriptor:
                for chunk in read_once(descriptor, part.length):
                    length += len(chunk)
                    checksum = crc32c(chunk, checksum)
                    if length >= part.length and (length, checksum) != (part.length, part.crc32c):
                        raise damaged_part(target, part)
                    yield chunk
        except FileNotFoundError as error:
            raise PieceError(parts_missing(target, part.name)) from error
        if length != part.length:
            raise damaged_part(target, part)

    def _examined(self, name: str) -> ObjectInfo | None:
        """Size and CRC32C of what is there, read anew; ``None`` if nothing is."""
        try:
            with self._opened(name) as descriptor:
                checksum = size = 0
                for chunk in _chunks(descriptor):
                    checksum = crc32c(chunk, checksum)
                    size += len(chunk)
                modified_at = os.fstat(descriptor).st_mtime
        except FileNotFoundError:
            return None
        return ObjectInfo(name=name, size=size, modified_at=modified_at, crc32c=checksum)

    def _present(self, name: str) -> bytes | None:
        try:
            return self.get(name)
        except NotFoundError:
            return None

    # -- writing --------------------------------------------------------------------------------------------------

    def _put_new(self, name: str, pieces: Sequence[Buffer], *, unread_bytes: int = 0) -> None:
        """Creates an object, or finds exactly these bytes."""
        folders, leaf = _split(name)
        found = self._present(name)
        with self._translated("put_if_absent", name):
            if found is None:
                with contextlib.suppress(FileExistsError):
                    self._with_temporary(pieces, folders, self._link_to(leaf), unread_bytes=unread_bytes)
                    return
                found = self._present(name)
                if found is None:
                    raise _moved_away("put_if_absent", name)
            if found != b"".join(pieces):
                raise already_exists(name)
            self._sync_entry(folders)

    def _with_temporary(
        self,
        chunks: Iterable[Buffer],
        folders: tuple[str, ...],
        place: Callable[[str, int, int], None],
        *,
        unread_bytes: int = 0,
    ) -> None:
        """Writes a durable temporary file, lets ``place`` give it its name, makes the name durable."""
        temporary = self._environment.ids.new_id()
        with self._staged(temporary, chunks, unread_bytes) as staging:
            try:
                self._placed(temporary, staging, folders, place)
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=staging)

    def _placed(
        self, source: str, staging: int, folders: tuple[str, ...], place: Callable[[str, int, int], None]
    ) -> None:
        """Lets ``place`` give a file its name in a folder that others remove whenever it is empty.

        Raises:
            FileNotFoundError: The file itself is gone.
        """
        for _ in range(CREATION_ATTEMPTS):
            with self._folder(folders, create=True) as folder:
                try:
                    place(source, staging, folder)
                except FileNotFoundError:
                    os.stat(source, dir_fd=staging, follow_symlinks=False)
                    continue  # The folder was empty and somebody removed it between our opening and our naming.
                except OSError as error:
                    if error.errno not in SURELY_NOT_DONE:
                        raise _perhaps_done("link", self._root, error) from error
                    raise
                self._fsync_entry(folder)
                return
        raise vanishing("/".join(folders))

    def _link_to(self, leaf: str) -> Callable[[str, int, int], None]:
        def link(temporary: str, staging: int, folder: int) -> None:
            try:
                os.link(temporary, leaf, src_dir_fd=staging, dst_dir_fd=folder, follow_symlinks=False)
            except OSError as error:
                if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV):
                    raise InvalidInputError(
                        f"this file system cannot make hard links here ({error.strerror})",
                        operation="link",
                        subject=self._root,
                        hint="Create-if-absent needs them: keep the root on one local file system",
                    ) from error
                raise

        return link

    @contextlib.contextmanager
    def _staged(self, leaf: str, chunks: Iterable[Buffer], unread_bytes: int) -> Iterator[int]:
        """Writes a new file into the staging folder, which others remove whenever it is empty; yields the folder."""
        for _ in range(CREATION_ATTEMPTS):
            with self._folder(_STAGING_FOLDERS, create=True) as staging:
                try:
                    descriptor = self._create(staging, leaf)
                except FileNotFoundError:
                    continue
                self._fill(staging, leaf, descriptor, chunks, unread_bytes)
                yield staging
                return
        raise vanishing(_STAGING_FOLDERS[0])

    def _create(self, folder: int, leaf: str) -> int:
        mode = 0o600 if self._settings.permissions == "private" else 0o666
        return os.open(leaf, _CREATE, mode, dir_fd=folder)

    def _fill(self, folder: int, leaf: str, descriptor: int, chunks: Iterable[Buffer], unread_bytes: int = 0) -> None:
        """Writes a new file whole and syncs it. On any error the file is removed and never named again.

        Args:
            folder: Where it is.
            leaf: Its name there.
            descriptor: Of the file; closed here.
            chunks: Its bytes.
            unread_bytes: How many they are, if nobody reads them soon.
        """
        try:
            try:
                if unread_bytes:
                    write_pieces(descriptor, chunks, unread_bytes)
                else:
                    for chunk in chunks:
                        write_all(descriptor, chunk)
                self._fsync(descriptor)
            finally:
                os.close(descriptor)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(leaf, dir_fd=folder)
            raise

    def _unlink(self, folders: tuple[str, ...], leaves: Sequence[str], removed: set[str]) -> None:
        try:
            with self._folder(folders) as folder:
                for leaf in leaves:
                    # A folder holds other objects: no object has its name.
                    with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                        os.unlink(leaf, dir_fd=folder)
                        removed.add(leaf)
                self._fsync(folder)
        except FileNotFoundError:
            return
        self._remove_if_empty(folders)

    def _remove_if_empty(self, folders: tuple[str, ...]) -> None:
        for depth in range(len(folders), 0, -1):
            try:
                with self._folder(folders[:depth]) as folder, contextlib.suppress(OSError):
                    os.rmdir(_STAGING_FOLDERS[0], dir_fd=folder)  # Of a store whose root was here.
                with self._folder(folders[: depth - 1]) as parent:
                    os.rmdir(folders[depth - 1], dir_fd=parent)
            except OSError:
                return  # Not empty, or gone: nothing that a later call would miss.

    # -- folders --------------------------------------------------------------------------------------------------

    def _folder(self, folders: tuple[str, ...], *, create: bool = False) -> contextlib.AbstractContextManager[int]:
        """A descriptor of a folder below the root, reached without following links."""
        return self._folders.opened(folders, create=create)

    def _sync_entry(self, folders: tuple[str, ...]) -> None:
        """Makes a name durable that somebody else may have made a moment ago."""
        with self._folder(folders, create=True) as folder:
            self._fsync_entry(folder)

    def _fsync_entry(self, folder: int) -> None:
        try:
            self._fsync(folder)
        except OSError as error:
            raise OutcomeUnknownError(
                f"the file has its name, but the folder could not be synced ({error.strerror})",
                operation="fsync",
                subject=self._root,
                hint="It may be gone after a power loss: repeat the call",
            ) from error

    def _fsync(self, descriptor: int) -> None:
        self._folders.fsync(descriptor)

    # -- reading --------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        folders, leaf = _split(name)
        with self._folder(folders) as folder:
            descriptor = os.open(leaf, _READ, dir_fd=folder)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise InvalidInputError(
                    "is not a regular file",
                    operation="open",
                    subject=f"{self.url}/{name}",
                    hint="Name an object: a folder, a link or a device is not one",
                )
            yield descriptor
        finally:
            os.close(descriptor)

    def _walk(self, folder: str, prefix: str) -> Iterator[ObjectInfo]:
        segments = tuple(folder.split("/")) if folder else ()
        try:
            with self._folder(segments) as descriptor, os.scandir(descriptor) as entries:
                found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
                infos = []
                for leaf, is_folder in found:
                    if not is_folder:
                        with contextlib.suppress(FileNotFoundError):
                            infos.append((leaf, os.stat(leaf, dir_fd=descriptor, follow_symlinks=False)))
        except FileNotFoundError:
            return
        except NotADirectoryError:
            if os.path.exists(self._root) and not os.path.isdir(self._root):
                raise  # Not an empty root: none.
            return
        base = f"{folder}/" if folder else ""
        for leaf, status in infos:
            name = base + leaf
            if name.startswith(prefix) and stat.S_ISREG(status.st_mode):
                yield ObjectInfo(name=name, size=status.st_size, modified_at=status.st_mtime)
        for leaf, is_folder in found:
            name = base + leaf
            if is_folder and (f"{name}/".startswith(prefix) or prefix.startswith(f"{name}/")):
                yield from self._walk(name, prefix)

    def _info(self, name: str, size: int, checksum: int | None) -> ObjectInfo:
        return ObjectInfo(name=name, size=size, modified_at=self._environment.clock.now(), crc32c=checksum)

    def _translated(self, operation: str, name: str) -> Translated:
        """Around one call: an ``OSError`` leaves as one of :mod:`stateline.errors`; our own errors pass."""

        def typed(error: Exception) -> StatelineError | None:
            if isinstance(error, StatelineError) or not isinstance(error, OSError):
                return None
            return error_of_system(error, operation, f"{self.url}/{name}")

        return Translated(typed)


_JOINT: Final = ".join"
"""What the folder is called, after the first piece, in which several pieces become one file."""

_STAGING_FOLDERS: Final = (STAGING_PREFIX.rstrip("/"),)


def _split(name: str) -> tuple[tuple[str, ...], str]:
    *folders, leaf = check_name(name).split("/")
    return tuple(folders), leaf


def _chunks(descriptor: int) -> Iterator[bytes]:
    while chunk := os.read(descriptor, _CHUNK_BYTES):
        yield chunk


def _moved_away(operation: str, name: str) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        "the name was taken a moment ago and is free now",
        operation=operation,
        subject=name,
        hint="Somebody moves files away while they are made; repeat the call",
    )


def _perhaps_done(operation: str, name: str, error: OSError) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"the call failed half-way ({error.strerror})",
        operation=operation,
        subject=name,
        hint="Check the disk, then repeat the call",
    )
