"""POST /v1/rerank: documents in the order in which they answer a query, in the shape of Cohere's, Jina's and vLLM's."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from aiohttp import web
from msgspec import UNSET

from mlxd.daemon.api.body import convert, read_as
from mlxd.daemon.api.embeddings.bodies import RERANK, Document, Ranked, Ranking, RerankBody, TokensRead
from mlxd.daemon.api.encoding import Caller, Encoded, Encoder, Task, encode
from mlxd.daemon.api.middleware import note_ignored, request_id_of
from mlxd.daemon.api.routes import Route, Scope
from mlxd.daemon.api.services import services_of
from mlxd.engines.embedding_types import EncoderHead, EncoderInfo, EncoderInput
from mlxd.engines.errors import InputTooLong
from mlxd.engines.imported_later import later

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    np = later("numpy")

Numbers: TypeAlias = "npt.NDArray[np.float64]"

EXAMPLE = {
    "model": "minilm",
    "query": "Who eats?",
    "documents": ["The girl plays the violin.", "A man is eating food."],
    "top_n": 1,
}
# What models with prompts call the one for a query, and the one for what is looked through.
_OF_QUERY = ("query",)
_OF_DOCUMENTS = ("document", "passage")


@dataclass(frozen=True, slots=True)
class Search:
    """What is looked for, and where. With `truncate` documents that are too long are cut, else they are refused."""

    query: str
    documents: Sequence[str]
    truncate: bool

    def place(self, number: int) -> str:
        """The name of an input: the documents come first, and the query stands before or behind them."""
        return f"documents[{number}]" if 0 <= number < len(self.documents) else "query"


def routes() -> list[Route]:
    """This module's part of the API."""
    return [Route("POST", "/v1/rerank", rerank, Scope.INFER, body=RerankBody, answer=Ranking[Ranked], example=EXAMPLE)]


async def rerank(request: web.Request) -> web.Response:
    """Score each document and sort them."""
    ignored, (body, search) = await read_as(request, lambda raw: (list(RERANK.passed_over(raw)), parse_rerank(raw)))
    note_ignored(request, ignored)
    caller = Caller.of(request, body.model, "rerank")
    task = Task(lambda encoder: _inputs(search, encoder), search.place)
    encoded = await encode(services_of(request), caller, task)
    # off the event loop: millions of numbers, or documents that go back, take their time
    results = await asyncio.to_thread(_results, body, search.documents, encoded)
    usage = TokensRead(encoded.prompt_tokens, encoded.prompt_tokens)
    name = body.model or caller.resolved.model
    answer = Ranking(f"rerank-{request_id_of(request)}", name, results, usage, encoded.vendor)
    return web.Response(body=msgspec.json.encode(answer), content_type="application/json")


def parse_rerank(raw: Mapping[str, Any]) -> tuple[RerankBody, Search]:
    """Check a body. Raises InvalidField."""
    RERANK.check(raw)
    body = convert(raw, RerankBody)
    documents = [each if isinstance(each, str) else each.text for each in body.documents]
    return body, Search(body.query, documents, body.truncate is not False)


def _inputs(search: Search, encoder: Encoder) -> list[EncoderInput]:
    tokenizer, info = encoder.tokenizer, encoder.info
    if info.head is EncoderHead.SCORES:
        return tokenizer.pairs(search.query, search.documents, truncate=search.truncate)
    before = _prompt(info, _OF_DOCUMENTS)
    documents = tokenizer.inputs([before + text for text in search.documents], truncate=search.truncate)
    try:
        return [*documents, *tokenizer.inputs([_prompt(info, _OF_QUERY) + search.query], truncate=False)]
    except InputTooLong as error:
        raise InputTooLong(-1, error.prompt_tokens, error.context_length) from None


def _prompt(info: EncoderInfo, names: Sequence[str]) -> str:
    """What the model has to go before such a text; its default where it has nothing of its own."""
    name = next((name for name in names if name in info.prompts), info.default_prompt)
    return "" if name is None else info.prompts[name]


def _results(body: RerankBody, documents: Sequence[str], encoded: Encoded) -> list[msgspec.Raw]:
    """The results as JSON, one by one: others get their turn between two."""
    scores = scores_of(encoded)
    ranked = sorted(scores, key=lambda index: (-scores[index], index))[: body.top_n]
    shown = (Document(documents[index]) if body.return_documents else UNSET for index in ranked)
    results = (Ranked(index, scores[index], document) for index, document in zip(ranked, shown, strict=True))
    return [msgspec.Raw(msgspec.json.encode(result)) for result in results]


def scores_of(encoded: Encoded) -> dict[int, float]:
    """The score of each document, by its number, as far as there are any."""
    made = {index: vector for index, vector in enumerate(encoded.vectors) if vector is not None}
    if encoded.info is None or not made:
        return {}
    numbers = np.frombuffer(b"".join(made.values()), "<f4").astype(float).reshape(len(made), -1)
    if encoded.info.head is EncoderHead.SCORES:
        return dict(zip(made, map(_sigmoid, numbers[:, 0].tolist()), strict=True))
    query = len(encoded.vectors) - 1
    if query not in made:
        return {}
    # the query is the last one
    del made[query]
    return dict(zip(made, _cosines(numbers[-1], numbers[:-1]), strict=True))


def _sigmoid(logit: float) -> float:
    small = math.exp(-abs(logit))
    return 1 / (1 + small) if logit >= 0 else small / (1 + small)


def _cosines(one: Numbers, others: Numbers) -> list[float]:
    """0 for vectors of length 0."""
    lengths = np.linalg.norm(others, axis=1) * np.linalg.norm(one)
    cosines: list[float] = np.divide(others @ one, lengths, out=np.zeros(len(others)), where=lengths > 0).tolist()
    return cosines
