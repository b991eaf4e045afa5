"""EmbeddingEngine: one loaded encoder behind the face of every engine. It makes vectors, or scores of pairs."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from mlxd.engines.embedding import Embedding
from mlxd.engines.embedding_loop import EmbeddingLoop
from mlxd.engines.embedding_types import EmbeddingRequest
from mlxd.engines.engine_base import EngineBase
from mlxd.engines.errors import InputTooLong, InvalidRequest, PrefillMemoryExceeded
from mlxd.engines.imported_later import later
from mlxd.engines.transients import Transients

if TYPE_CHECKING:
    import numpy as np
else:
    np = later("numpy")


class EmbeddingEngine(EngineBase):
    """An encoder: `embed` is what it is for. `max_running` and `max_waiting` count requests, whatever is in them."""

    @classmethod
    def _loop_type(cls) -> type[EmbeddingLoop]:
        return EmbeddingLoop

    def embed(self, request: EmbeddingRequest) -> Embedding:
        """Admit a request and return its answer, to be used in `async with`.

        Raises EngineClosed, EngineDead, EngineQueueFull, InputTooLong, InvalidRequest (token ids that the model does
        not have, or none), PrefillMemoryExceeded or ModelOwnershipError (an id that is in use) at once; what goes
        wrong later is raised to the reader.
        """
        self._check_place(request.id)
        self._check_inputs(request)
        self._check_memory(request)
        embedding = Embedding(request, self._leave)
        self._admit(embedding)
        return embedding

    def _check_inputs(self, request: EmbeddingRequest) -> None:
        info = self.info
        assert info.encoder is not None, "an encoder was loaded"
        for number, each in enumerate(request.inputs):
            if not len(each):
                raise InvalidRequest("there is nothing in an input", "input")
            if len(each) > info.encoder.max_length:
                raise InputTooLong(number, len(each), info.encoder.max_length)
            if _highest(each.tokens) >= info.vocab_size:
                raise InvalidRequest(f"expected token ids from 0 to {info.vocab_size - 1}", "input")

    def _check_memory(self, request: EmbeddingRequest) -> None:
        """What no eviction and no wait could help is refused before anything is done for it."""
        most = self._memory.most()
        if most is None:
            return
        longest = max(map(len, request.inputs))
        price: Transients = self._run.price
        needed = price.estimate(1, longest, longest)
        if needed > most:
            self._refuse(PrefillMemoryExceeded(request.id, needed, max(0, most), self._memory.limit))


def _highest(tokens: array[int]) -> int:
    """The highest id; a negative one counts as higher than any. There may be millions, and this is the event loop."""
    return int(np.frombuffer(tokens, np.uintc).max())
