"""The `options` of an Ollama request: how tokens are sampled, and much about machines that means nothing here."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from mlxd.daemon.api.answer_options import SEED_MASK
from mlxd.daemon.api.refusals import InvalidField
from mlxd.daemon.settings import SamplingSettings

MAX_COUNT = 2**53
MAX_STOPS = 16
MAX_STOP_LENGTH = 1000
MAX_REPEAT_PENALTY = 10.0
RANDOM_SEED = -1
NO_LIMIT = (-1, -2)

Share = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Stop = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_LENGTH)]


class Options(Struct, frozen=True, kw_only=True):
    """What is sampled how; those without a reader have no effect on purpose."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Meta(ge=-1, le=MAX_COUNT)] | None = None
    min_p: Share | None = None
    seed: int | None = None
    num_predict: Annotated[int, Meta(ge=-2, le=MAX_COUNT)] | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=MAX_STOPS)] | None = None
    repeat_penalty: Annotated[float, Meta(ge=0, le=MAX_REPEAT_PENALTY)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    num_ctx: int | None = None
    num_batch: int | None = None
    num_keep: int | None = None
    num_gpu: int | None = None
    num_gqa: int | None = None
    num_thread: int | None = None
    main_gpu: int | None = None
    draft_num_predict: int | None = None
    use_mmap: bool | None = None
    use_mlock: bool | None = None
    low_vram: bool | None = None
    f16_kv: bool | None = None
    numa: bool | None = None
    logits_all: bool | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    new_topic_penalty: float | None = None


SERVED = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "num_predict",
        "stop",
        "repeat_penalty",
        "presence_penalty",
        "frequency_penalty",
    }
)


def sampling(options: Options) -> SamplingSettings:
    """The sampling values that a request names. Raises InvalidField."""
    return SamplingSettings(
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=None if options.top_k is None else max(0, options.top_k),
        min_p=options.min_p,
        seed=_seed(options.seed),
        max_tokens=_limit(options.num_predict),
        stop=(options.stop,) if isinstance(options.stop, str) else _tuple(options.stop),
        repetition_penalty=options.repeat_penalty if options.repeat_penalty != 0 else 1.0,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
    )


def _limit(num_predict: int | None) -> int | None:
    if num_predict == 0:
        where = "options.num_predict"
        raise InvalidField(f"{where}: expected 1 or more, or -1 for no limit; no prompt at all only loads", where)
    return None if num_predict in NO_LIMIT else num_predict


def _seed(seed: int | None) -> int | None:
    if seed is None or seed == RANDOM_SEED:
        return None
    if not -(2**63) <= seed <= SEED_MASK:
        raise InvalidField("options.seed: expected an integer of at most 64 bits", "options.seed")
    return seed & SEED_MASK


def _tuple(values: list[str] | None) -> tuple[str, ...] | None:
    return None if values is None else tuple(values)
