"""Bodies of the embedding calls, what they answer with, and which fields are passed over or refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Generic, Literal, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType

from mlxd.daemon.api.fields import FieldTable
from mlxd.daemon.api.vendor import Vendor

MAX_INPUTS = 2048
MAX_COUNT = 2**31 - 1

Text = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=1, le=MAX_COUNT)]


class EmbeddingsBody(Struct, frozen=True, kw_only=True):
    """POST /v1/embeddings. Null means the default."""

    model: str | None = None
    input: Text | Annotated[list[str | int | list[int]], Meta(min_length=1)]
    dimensions: Count | None = None
    encoding_format: Literal["float", "base64"] | None = None
    prompt_name: Text | None = None
    user: str | None = None


class Document(Struct, frozen=True, forbid_unknown_fields=True):
    """A text to be ranked, wrapped."""

    text: str


class RerankBody(Struct, frozen=True, kw_only=True):
    """POST /v1/rerank. Null means the default."""

    model: str | None = None
    query: Text
    documents: Annotated[list[str | Document], Meta(min_length=1, max_length=MAX_INPUTS)]
    top_n: Count | None = None
    return_documents: bool | None = None
    truncate: bool | None = None
    user: str | None = None


class TokensRead(Struct, frozen=True):
    """Tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingObject(Struct, frozen=True):
    """One vector: numbers, or base64 of them as little-endian float32."""

    index: int
    embedding: list[float] | str
    object: str = "embedding"


Item = TypeVar("Item")


class Embeddings(Struct, Generic[Item], frozen=True):
    """The vectors in the order of their inputs."""

    data: Sequence[Item]
    model: str
    usage: TokensRead
    mlxd: Vendor
    object: str = "list"


class Ranked(Struct, frozen=True):
    """A document by its number, and how well it answers the query."""

    index: int
    relevance_score: float
    document: Document | UnsetType = UNSET


class Ranking(Struct, Generic[Item], frozen=True):
    """The documents, the most relevant first."""

    id: str
    model: str
    results: Sequence[Item]
    usage: TokensRead
    mlxd: Vendor


_IGNORED = frozenset({"user"})

EMBEDDINGS = FieldTable(
    EmbeddingsBody.__struct_fields__,
    _IGNORED,
    {
        "add_special_tokens": (True,),
        "input_type": (),
        "instruction": (),
        "keep_alive": (),
        "late_chunking": (False,),
        "messages": (),
        "normalize": (),
        "options": ({},),
        "priority": (0,),
        "task": (),
        "truncate": (False,),
        "truncate_prompt_tokens": (),
    },
)
RERANK = FieldTable(
    RerankBody.__struct_fields__,
    _IGNORED,
    {
        "activation": (True,),
        "instruction": (),
        "max_chunks_per_doc": (1,),
        "max_tokens_per_doc": (),
        "priority": (0,),
        "rank_fields": (["text"],),
        "raw_scores": (False,),
        "truncate_prompt_tokens": (),
    },
)
