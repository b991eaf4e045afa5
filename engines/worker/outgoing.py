"""An engine's messages on their way to its worker."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import msgspec

from mlxd.engines.embedding_types import EmbeddingRequest
from mlxd.engines.messages import Abort, AbortAll, Add, Cancel, Close, Message, Retune, RoomMade, Trim
from mlxd.engines.prompt_images import PromptImages
from mlxd.engines.types import Guide, Request, SamplingParams
from mlxd.engines.worker import to_worker
from mlxd.engines.worker.frames import sayable, to_bytes, to_json
from mlxd.engines.worker.image_outlines import OutlinedImages

AnyRequest = Request | EmbeddingRequest


class Outgoing:
    """Numbers requests, so that what comes late for one is not taken for another's with the same id, and errors."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._order_numbers = count(1)
        self._requests: dict[int, AnyRequest] = {}
        self._by_id: dict[str, int] = {}
        self._orders: dict[int, Exception] = {}

    def request(self, number: int) -> AnyRequest | None:
        """The request of this number, None for one that is over."""
        return self._requests.get(number)

    def ordered(self, number: int) -> Exception:
        """The error of this number, with which requests were ended. Those before it have been carried out."""
        for earlier in [each for each in self._orders if each < number]:
            del self._orders[earlier]
        return self._orders[number]

    def over(self, number: int) -> None:
        """Nothing more comes for a request."""
        request = self._requests.pop(number, None)
        if request is not None and self._by_id.get(request.id) == number:
            del self._by_id[request.id]

    def form(self, message: Message) -> msgspec.Struct:
        """A message as it crosses. Raises TypeError for one that is only for a loop of this process."""
        match message:
            case Add(request, arrived):
                return self._add(request, arrived)
            case Abort(request_id, at):
                self.over(self._by_id.get(request_id, 0))
                return to_worker.GiveUp(request_id, at)
            case Cancel(request_id, at):
                return to_worker.GiveUp(request_id, at, cancel=True)
            case AbortAll(error):
                return to_worker.EndAll(self._order(error))
            case Close(error):
                return to_worker.EndAll(self._order(error), close=True)
            case RoomMade(request_id):
                return to_worker.RoomMadeFor(request_id)
            case Trim(max_bytes):
                return to_worker.TrimTo(max_bytes)
            case Retune(limits):
                return to_worker.RetuneTo(limits)
        raise TypeError(f"{type(message).__name__} does not cross")

    def _add(self, request: AnyRequest, arrived: float) -> msgspec.Struct:
        number = next(self._numbers)
        form = _form(number, request, arrived)
        self._requests[number] = request
        self._by_id[request.id] = number
        return form

    def _order(self, error: Exception) -> int:
        number = next(self._order_numbers)
        self._orders[number] = error
        return number


def _form(number: int, request: AnyRequest, arrived: float) -> msgspec.Struct:
    if isinstance(request, EmbeddingRequest):
        inputs = [(to_bytes(each.tokens), each.second) for each in request.inputs]
        return to_worker.AddInputs(number, request.id, inputs, arrived, request.alone)
    chat = request.chat
    return to_worker.AddText(
        number,
        request.id,
        to_bytes(request.prompt),
        _numbered(request.sampling),
        arrived,
        request.continues_text,
        None if chat is None else to_json(chat.tools),
        None if chat is None else chat.max_calls,
        _held_number(request.images),
        request.alone,
    )


def _held_number(images: PromptImages | None) -> int | None:
    if images is None:
        return None
    assert isinstance(images, OutlinedImages), "the worker's tokenizer prepared them"
    number: int = images.held.number
    return number


def _numbered(sampling: SamplingParams) -> SamplingParams:
    """With the number of what its guide compiled to, which the worker holds."""
    guide = sampling.guide
    if guide is not None and guide.compiled is not None:
        guide = Guide(guide.kind, "", guide.compiled.number)
    # no text that is generated has a lone surrogate in it
    stop = tuple(each for each in sampling.stop if sayable(each) == each)
    return replace(sampling, guide=guide, stop=stop)
