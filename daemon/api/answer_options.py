"""How an answer is made and sent, in no facade's words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mlxd.daemon.api.wanted_guide import WantedGuide
from mlxd.daemon.settings import SamplingSettings

SEED_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """Unset sampling values are left to the model's own.

    `n` answers are made of each prompt. `logprobs` is how many of the likeliest tokens are reported beside each one,
    None for no report.
    """

    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    stream: bool = False
    include_usage: bool = False
    n: int = 1
    min_tokens: int = 0
    ignore_eos: bool = False
    logprobs: int | None = None
    guide: WantedGuide | None = None
