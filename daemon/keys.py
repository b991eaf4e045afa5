"""API keys: what each may do, how a secret is made, and how one that is sent is found again."""

from __future__ import annotations

import enum
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Mapping
from datetime import datetime
from fnmatch import fnmatchcase

from msgspec import Struct

from mlxd.registry.names import Resolved

SECRET_PREFIX = "mlxd-"  # noqa: S105 - it is no secret: it lets people and scanners tell what one is for
SECRET_BYTES = 32
HASH_PREFIX = "sha256:"
MAX_KEY_NAME = 64
MAX_PATTERN = 200

_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._@-]{{0,{MAX_KEY_NAME - 1}}}")
_HASH = re.compile(rf"{HASH_PREFIX}[0-9a-f]{{64}}")


class Scope(enum.StrEnum):
    """What a key is for: to use models, to look at the daemon, to change it."""

    INFER = "infer"
    READ = "read"
    ADMIN = "admin"


class ApiKey(Struct, frozen=True):
    """One key. `models` are patterns over names of models, none for all of them; the secret itself is nowhere kept."""

    name: str
    scopes: tuple[Scope, ...]
    hash: str
    created: datetime
    models: tuple[str, ...] = ()

    def has(self, scope: Scope) -> bool:
        """Whether it may do this: `admin` includes the other two, which include nothing else."""
        return scope in self.scopes or Scope.ADMIN in self.scopes

    def may_use(self, meaning: Resolved, names: Mapping[str, Resolved]) -> bool:
        """Whether it may use what a name means; `names` says what each exact name does.

        A pattern is matched against the name of the model and of the preset that is meant, so that no spelling of a
        request and no alias that is added later lets in more. An alias counts where it is written out as a pattern.
        """
        return not self.models or any(_covers(pattern, meaning, names) for pattern in self.models)


def _covers(pattern: str, meaning: Resolved, names: Mapping[str, Resolved]) -> bool:
    if fnmatchcase(meaning.model, pattern) or (meaning.preset is not None and fnmatchcase(meaning.preset, pattern)):
        return True
    named = names.get(pattern)
    return named is not None and named in (meaning, Resolved(meaning.model))


def new_secret() -> str:
    """A secret that nobody can guess."""
    return SECRET_PREFIX + secrets.token_urlsafe(SECRET_BYTES)


def hash_of(secret: str) -> str:
    """What is kept of a secret.

    One round of SHA-256 is enough: slow hashes make guessing dear where people choose what is guessed, and here are
    256 random bits. A slow one would only let strangers keep the daemon busy.
    """
    return HASH_PREFIX + hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def find_key(keys: Iterable[ApiKey], secret: str) -> ApiKey | None:
    """The key with this secret. Takes as long whichever it is, and if it is none."""
    sent = hash_of(secret)
    found = None
    for key in keys:
        if hmac.compare_digest(key.hash, sent):
            found = key
    return found


def key_name_complaint(name: str) -> str | None:
    """For the name of a key, which is shown with its requests and in the log."""
    if _NAME.fullmatch(name):
        return None
    return f"expected a name of 1 to {MAX_KEY_NAME} letters, digits and . _ @ -, a letter or digit first"


def hash_complaint(text: str) -> str | None:
    """For what is kept of a secret."""
    return None if _HASH.fullmatch(text) else f'expected "{HASH_PREFIX}" and 64 hexadecimal digits'


def pattern_complaint(pattern: str) -> str | None:
    """For a pattern over names of models."""
    if not pattern or len(pattern) > MAX_PATTERN:
        return f"expected a pattern of 1 to {MAX_PATTERN} characters"
    if not pattern.isprintable() or " " in pattern:
        return "expected a pattern without spaces and control characters"
    return None
