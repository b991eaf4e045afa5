"""The files of stored prefixes: one with arrays and one beside it that says what they are. No MLX here.

`<key>.safetensors` is written first and `<key>.json` last; an entry is there when both are. Each is written under
another name and renamed when it is whole, so a crash leaves an entry or garbage that `stored_files` removes.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from mlxd.engines.imported_later import later

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    np = later("numpy")

# A name of 16 bytes in hexadecimal: of a model's folder, and of an entry in it.
NAME = re.compile(r"[0-9a-f]{32}")
DATA, SIDECAR, PARTIAL = ".safetensors", ".json", ".partial"
# Bytes between two looks at whether the work is still wanted.
PIECE_BYTES = 4 * 2**20
MOST_SIDECAR_BYTES = 64 * 2**20
_MOST = 2**62


class BadEntry(Exception):
    """An entry's file is missing, damaged or none of ours."""


class Abandoned(Exception):
    """The work is not wanted any more."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredPrefix:
    """What is known of an entry without its arrays. `nbytes` is their size in memory, `size` that of their file."""

    key: str
    tokens: npt.NDArray[np.int32]
    nbytes: int
    size: int
    trimmable: bool
    checksum: str


# negative ones are the keys of images
_Token = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]
_Size = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]


class _Sidecar(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tokens: list[_Token]
    nbytes: _Size
    size: _Size
    trimmable: bool
    checksum: str
    format: Literal[1] = 1
    seal: str = ""


def prefix_key(tokens: npt.NDArray[np.int32]) -> str:
    """The name of the entry of these tokens."""
    return hashlib.blake2b(tokens.astype("<i4").tobytes(), digest_size=16).hexdigest()


def encode_sidecar(stored: StoredPrefix) -> bytes:
    """The content of an entry's sidecar, sealed by a checksum of its own."""
    sidecar = _Sidecar(stored.tokens.tolist(), stored.nbytes, stored.size, stored.trimmable, stored.checksum)
    return msgspec.json.encode(msgspec.structs.replace(sidecar, seal=_seal(sidecar)))


def decode_sidecar(key: str, content: bytes) -> StoredPrefix:
    """Raises BadEntry when this is not what `encode_sidecar` wrote for that key."""
    try:
        sidecar = msgspec.json.decode(content, type=_Sidecar)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise BadEntry(f"{key}{SIDECAR}: {error}") from error
    tokens = np.asarray(sidecar.tokens, dtype=np.int32)
    if sidecar.seal != _seal(sidecar) or prefix_key(tokens) != key:
        raise BadEntry(f"{key}{SIDECAR} was changed")
    return StoredPrefix(key, tokens, sidecar.nbytes, sidecar.size, sidecar.trimmable, sidecar.checksum)


def _seal(sidecar: _Sidecar) -> str:
    return hashlib.blake2b(msgspec.json.encode(msgspec.structs.replace(sidecar, seal="")), digest_size=16).hexdigest()


class PieceWriter:
    """A file for writing from start to end, as `mx.save_safetensors` does: counts and hashes what passes."""

    closed = False

    def __init__(self, file: io.FileIO, abandoned: Callable[[], bool]) -> None:
        self._file = file
        self._abandoned = abandoned
        self._hash = hashlib.blake2b()
        self.size = 0

    @property
    def checksum(self) -> str:
        return self._hash.hexdigest()

    def write(self, data: bytes | memoryview) -> int:
        """Write all of it. Raises OSError, and Abandoned when the work is not wanted any more."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), PIECE_BYTES):
            if self._abandoned():
                raise Abandoned
            piece = view[start : start + PIECE_BYTES]
            self._hash.update(piece)
            _write_all(self._file, piece)
        self.size += len(view)
        return len(view)

    def tell(self) -> int:
        return self.size

    def seek(self, *_: int) -> int:
        """Never: the checksum is of bytes in their order."""
        raise io.UnsupportedOperation("this file is written from start to end")


def _write_all(file: io.FileIO, piece: memoryview) -> None:
    while piece:
        piece = piece[file.write(piece) :]


@contextlib.contextmanager
def whole_file(path: Path, abandoned: Callable[[], bool] = lambda: False) -> Iterator[PieceWriter]:
    """A writer whose bytes become `path` at the end, on the disk and all at once; after an error nothing is left."""
    # mlx-lm adds a suffix to names without it, so the mark goes before it
    partial = path.with_name(f"{path.stem}{PARTIAL}{path.suffix}")
    with contextlib.suppress(FileNotFoundError):
        partial.unlink()
    try:
        with io.FileIO(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as file:
            yield PieceWriter(file, abandoned)
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):  # the next start removes it
            partial.unlink()
        raise


def sync_folder(folder: Path) -> None:
    """Put the folder's names on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # some file systems cannot; a name that is lost is an entry that is lost, and no more
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_data(path: Path, stored: StoredPrefix, abandoned: Callable[[], bool] = lambda: False) -> None:
    """Compare the file with its checksum. Raises BadEntry, OSError, and Abandoned."""
    digest = hashlib.blake2b()
    with _open_regular(path) as file:
        if os.fstat(file.fileno()).st_size != stored.size:
            raise BadEntry(f"{path.name} does not have its size")
        while piece := file.read(PIECE_BYTES):
            if abandoned():
                raise Abandoned
            digest.update(piece)
    if digest.hexdigest() != stored.checksum:
        raise BadEntry(f"{path.name} does not have its checksum")


def read_sidecar(folder: Path, key: str) -> StoredPrefix:
    """What is known of an entry whose data file has the size it should have. Raises BadEntry and OSError."""
    with _open_regular(folder / f"{key}{SIDECAR}") as file:
        if os.fstat(file.fileno()).st_size > MOST_SIDECAR_BYTES:
            raise BadEntry(f"{key}{SIDECAR} is too big")
        stored = decode_sidecar(key, file.readall())
    if (folder / f"{key}{DATA}").lstat().st_size != stored.size:
        raise BadEntry(f"{key}{DATA} does not have its size")
    return stored


def _open_regular(path: Path) -> io.FileIO:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise BadEntry(f"{path.name} is missing") from error
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise BadEntry(f"{path.name} is a link") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BadEntry(f"{path.name} is not a regular file")
    return io.FileIO(descriptor, "r")


@dataclass(frozen=True, slots=True)
class StoredFiles:
    """Both files of one entry: bytes together, and when they were used last in nanoseconds since 1970."""

    key: str
    nbytes: int
    used_ns: int


def stored_files(folder: Path) -> list[StoredFiles]:
    """The entries of a model's folder; what is no whole entry is removed, but for other folders. Raises OSError."""
    found: dict[str, dict[str, os.stat_result]] = {}
    for item in list(folder.iterdir()):
        status = item.lstat()
        if NAME.fullmatch(item.stem) and item.suffix in (DATA, SIDECAR) and stat.S_ISREG(status.st_mode):
            found.setdefault(item.stem, {})[item.suffix] = status
        elif not stat.S_ISDIR(status.st_mode):
            item.unlink()
    for key in [key for key, files in found.items() if files.keys() != {DATA, SIDECAR}]:
        del found[key]
        remove_files(folder, key)
    return [
        StoredFiles(key, files[DATA].st_size + files[SIDECAR].st_size, files[SIDECAR].st_mtime_ns)
        for key, files in found.items()
    ]


def remove_files(folder: Path, key: str) -> None:
    """Remove an entry, the sidecar first. Raises OSError, but not for what is gone already."""
    for suffix in (SIDECAR, DATA):
        with contextlib.suppress(FileNotFoundError):
            (folder / f"{key}{suffix}").unlink()
