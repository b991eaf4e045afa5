"""What a request is known by where its text must not be: after a crash, in files, logs and messages."""

from __future__ import annotations

from array import array
from hashlib import blake2b
from itertools import chain

from mlxd.engines.embedding_types import EmbeddingRequest
from mlxd.engines.types import Request

_BYTES = 6


def fingerprint(request: Request | EmbeddingRequest) -> str:
    """12 hexadecimal digits that are the same for the same token ids. Images and sampling are not in it."""
    if isinstance(request, EmbeddingRequest):
        tokens = array("q", chain.from_iterable(each.tokens for each in request.inputs))
    else:
        tokens = array("q", request.prompt)
    return blake2b(tokens, digest_size=_BYTES).hexdigest()
