"""How much a model is to think before it answers, in the words of its chat template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlxd.daemon.api.refusals import UnsupportedCapability
from mlxd.engines.tokenizer import Tokenizer

# Efforts that are no thinking for templates that know only on and off.
OFF = frozenset({"none", "minimal"})
# Not an effort of OpenAI's: the model thinks, as much as it does by itself.
ON = "on"


def effort_variables(
    tokenizer: Tokenizer, effort: str | None, param: str = "reasoning_effort", *, is_wish: bool = False
) -> Mapping[str, Any]:
    """Template variables for an effort; `param` is the field that asks for it.

    Raises UnsupportedCapability when the template would not read any, but for "none" (it does not think anyway) and for
    "on" where the model marks its reasoning unasked. What `is_wish` is passed over then.
    """
    if effort is None or (effort == ON and _thinks_unasked(tokenizer)):
        return {}
    if tokenizer.template_reads("reasoning_effort"):
        return {"reasoning_effort": effort}
    if tokenizer.template_reads("enable_thinking"):
        return {"enable_thinking": effort not in OFF}
    if effort == "none" or is_wish:
        return {}
    raise UnsupportedCapability(f"{param}: this model's chat template knows no reasoning effort; leave it out", param)


def _thinks_unasked(tokenizer: Tokenizer) -> bool:
    """Whether nothing has to be said for the model to think."""
    if tokenizer.template_reads("reasoning_effort"):
        return True
    return tokenizer.has_reasoning and not tokenizer.template_reads("enable_thinking")
