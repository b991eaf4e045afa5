"""The file of API keys: read whole or not at all, and replaced at one go by one writer at a time."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mlxd.daemon.config_errors import ConfigError, KeyPath, Report
from mlxd.daemon.config_file import MAX_BYTES, parse, read_text
from mlxd.daemon.config_rules import Base, Rule, Unexpected, choice, list_of, text
from mlxd.daemon.config_tables import TableReader
from mlxd.daemon.keys import ApiKey, Scope, hash_complaint, key_name_complaint, pattern_complaint
from mlxd.daemon.whole_file import replace_file

MAX_KEYS = 1000

_HEADER = (
    "# API keys of mlxd, kept by `mlxd key`, which rewrites the whole file. Only hashes of the secrets are here.\n"
)
_TABLE = "key"


class KeyNameTaken(Exception):
    """There is a key of this name already."""


class TooManyKeys(Exception):
    """With one more key the file would be larger than any that is read."""


class NoSuchKey(Exception):
    """There is no key of this name."""


def read_keys(path: Path) -> tuple[ApiKey, ...]:
    """All keys in a file, none if there is no file. Raises ConfigError with everything that is wrong."""
    written = read_text(path, private=True)
    if written is None:
        return ()
    document, lines = parse(path, written)
    report = Report(str(path), lines)
    keys = _read(document, report)
    if report.problems:
        raise ConfigError(*report.problems)
    return keys


def add_key(path: Path, key: ApiKey) -> tuple[ApiKey, ...]:
    """Put a key into a file, which is made if it is not there; all keys that are now in it.

    Raises KeyNameTaken, TooManyKeys, ConfigError for a file that is not right already, and OSError; nothing is changed
    then.
    """
    with _locked(path) as file:
        keys = read_keys(file)
        if any(other.name == key.name for other in keys):
            raise KeyNameTaken(key.name)
        if len(keys) >= MAX_KEYS:
            raise TooManyKeys(f"{file} has {MAX_KEYS} keys, which is as many as there may be; remove one")
        return _write(file, (*keys, key))


def remove_key(path: Path, name: str) -> tuple[ApiKey, ...]:
    """Take a key out of a file; the keys that are left. Raises NoSuchKey, ConfigError and OSError."""
    if not path.exists():
        raise NoSuchKey(name)
    with _locked(path) as file:
        keys = read_keys(file)
        kept = tuple(key for key in keys if key.name != name)
        if len(kept) == len(keys):
            raise NoSuchKey(name)
        return _write(file, kept)


# -- reading -----------------------------------------------------------------------------------------------------


def _moment() -> Rule:
    def read(value: object, _base: Base) -> datetime:
        if not isinstance(value, datetime):
            raise Unexpected("expected a date and time")
        return value if value.tzinfo is not None else value.replace(tzinfo=UTC)

    return Rule(read)


_RULES = {
    "name": text(key_name_complaint),
    "scopes": list_of(choice(*Scope)),
    "models": list_of(text(pattern_complaint)),
    "created": _moment(),
}
_HASH = "hash"


def _read(document: dict[str, Any], report: Report) -> tuple[ApiKey, ...]:
    for name in document:
        if name != _TABLE:
            report.unknown((name,), [_TABLE])
    entries = document.get(_TABLE, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        report.add((_TABLE,), "expected [[key]] entries")
        return ()
    if len(entries) > MAX_KEYS:
        report.add((_TABLE,), f"expected at most {MAX_KEYS} keys, got {len(entries)}")
        return ()
    keys = [_key(entry, (_TABLE, index), report) for index, entry in enumerate(entries)]
    _note_repeated([key for key in keys if key is not None], report)
    return tuple(key for key in keys if key is not None)


def _key(entry: dict[str, Any], at: KeyPath, report: Report) -> ApiKey | None:
    """The key of one entry, None when something is wrong with it."""
    known = len(report.problems)
    base = Base(Path(), Path())  # there are no paths
    values = TableReader(report, base).keys(entry, at, _RULES, tables=[_HASH])
    for name in ("name", "scopes", "created", _HASH):
        if name not in entry:
            report.add(at, f"expected the key {name} in every entry")
    for name in ("scopes", "models"):
        if values.get(name) == ():
            report.add((*at, name), "expected at least one entry" + (", or not this key" if name == "models" else ""))
    # What is wrong with it is not shown: it may be a secret that somebody put there.
    hashed = entry.get(_HASH, "")
    if _HASH in entry and (complaint := hash_complaint(hashed) if isinstance(hashed, str) else "expected a string"):
        report.add((*at, _HASH), complaint)
    if len(report.problems) > known:
        return None
    scopes = tuple(map(Scope, values["scopes"]))
    return ApiKey(values["name"], scopes, hashed, values["created"], values.get("models", ()))


def _note_repeated(keys: Sequence[ApiKey], report: Report) -> None:
    names, hashes = set[str](), set[str]()
    for key in keys:
        if key.name in names:
            report.add((_TABLE,), f"expected every name once, got {key.name} twice")
        elif key.hash in hashes:
            report.add((_TABLE,), f"expected every hash once, but {key.name} has that of another key")
        names.add(key.name)
        hashes.add(key.hash)


# -- writing -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[Path]:
    """Keep other writers out; gives the file itself where `path` is a link to it."""
    file = path.resolve()
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield file
    finally:
        os.close(folder)


def _write(file: Path, keys: tuple[ApiKey, ...]) -> tuple[ApiKey, ...]:
    """Replace the file as a whole: whoever reads it sees all of the old one or all of the new one."""
    text = (_HEADER + "".join(map(_entry, keys))).encode()
    if len(text) > MAX_BYTES:
        raise TooManyKeys(f"{file} would have {len(text)} bytes, at most {MAX_BYTES} are read; remove keys or patterns")
    replace_file(file, text)
    return keys


def _entry(key: ApiKey) -> str:
    lines = [
        f"[[{_TABLE}]]",
        f"name = {_quoted(key.name)}",
        f"scopes = [{', '.join(map(_quoted, key.scopes))}]",
        *([f"models = [{', '.join(map(_quoted, key.models))}]"] if key.models else []),
        f"hash = {_quoted(key.hash)}",
        f"created = {key.created.isoformat(timespec='seconds')}",
    ]
    return "\n" + "\n".join(lines) + "\n"


def _quoted(written: str) -> str:
    """A TOML string; what is printable needs no more than JSON's escapes."""
    return json.dumps(written, ensure_ascii=False)
