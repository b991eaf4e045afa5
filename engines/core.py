"""EngineCore: one loaded text model behind an async face. The work happens in `TextLoop`, where its host runs that."""

from __future__ import annotations

from mlxd.engines.engine_base import EngineBase, EngineState, PrefillEvictionCallback
from mlxd.engines.errors import ContextLengthExceeded, PrefillMemoryExceeded
from mlxd.engines.generation import Generation
from mlxd.engines.pacer import FIRST_CHUNK
from mlxd.engines.prompt_price import PromptPrice, RowNeed
from mlxd.engines.text_loop import TextLoop
from mlxd.engines.types import Request

__all__ = ["EngineCore", "EngineState", "PrefillEvictionCallback"]


class EngineCore(EngineBase):
    """A text model: `generate` is what it is for."""

    @classmethod
    def _loop_type(cls) -> type[TextLoop]:
        return TextLoop

    def generate(self, request: Request) -> Generation:
        """Admit a request and return its outputs, to be used in `async with`.

        Raises EngineClosed, EngineDead, EngineQueueFull, ContextLengthExceeded, PrefillMemoryExceeded or
        ModelOwnershipError (an id that is in use) at once; what goes wrong later is raised to the reader.
        """
        self._check(request)
        generation = Generation(request, self._leave)
        self._admit(generation)
        return generation

    def _most_running(self) -> int:
        # more than max_running may still run after a retune
        return max(self._config.max_running, self._run.stats.running)

    def _check(self, request: Request) -> None:
        self._check_place(request.id)
        wanted = request.sampling.max_tokens
        if len(request.prompt) + (wanted or 1) > self._config.context_length:
            raise ContextLengthExceeded(len(request.prompt), wanted or 1, self._config.context_length)
        self._check_memory(request)

    def _check_memory(self, request: Request) -> None:
        """What no eviction and no wait could help is refused before anything is done for it."""
        most = self._memory.most()
        if most is None:
            return
        least = min(FIRST_CHUNK, self._config.prefill_chunk)
        price: PromptPrice = self._run.price
        needed = price.alone(RowNeed(len(request.prompt), 1, images=price.images.of(request.images)), least)
        if needed > most:
            self._refuse(PrefillMemoryExceeded(request.id, needed, max(0, most), self._memory.limit))
