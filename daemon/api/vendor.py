"""How an answer came about, under the key `mlxd` of every facade's answers."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from mlxd.daemon.api.inference import Inference
from mlxd.engines.types import RequestOutput


class Vendor(Struct, frozen=True):
    """Seconds, and tokens per second. `ttft_s` counts from the request's arrival."""

    queue_s: float
    load_s: float
    prefill_s: float | None
    ttft_s: float | None
    decode_tps: float | None
    cancelled: bool


def vendor_of(inference: Inference, first: RequestOutput, others: Iterable[RequestOutput] = ()) -> Vendor:
    """What there is to say of an answer from the last outputs of its choices; times are those of the first."""
    timing = first.timing
    return Vendor(
        queue_s=round(inference.queue_s, 4),
        load_s=round(inference.load_s, 4),
        prefill_s=_rounded(timing.prefill_s),
        ttft_s=_rounded(inference.ttft_s(timing)),
        decode_tps=_rounded(timing.decode_tps),
        cancelled=first.cancelled or any(output.cancelled for output in others),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
