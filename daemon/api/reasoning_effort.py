"""How much a model is to think before it answers, in the words of its chat template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlxd.daemon.api.refusals import UnsupportedCapability
from mlxd.engines.tokenizer import Tokenizer

# Efforts that are no thinking for templates that know only on and off.
OFF = frozenset({"none", "minimal"})


def effort_variables(tokenizer: Tokenizer, effort: str | None, param: str = "reasoning_effort") -> Mapping[str, Any]:
    """Template variables for an effort; `param` is the field that asks for it.

    Raises UnsupportedCapability when the template would not read any, but for "none": it does not think anyway.
    """
    if effort is None:
        return {}
    if tokenizer.template_reads("reasoning_effort"):
        return {"reasoning_effort": effort}
    if tokenizer.template_reads("enable_thinking"):
        return {"enable_thinking": effort not in OFF}
    if effort == "none":
        return {}
    raise UnsupportedCapability(f"{param}: this model's chat template knows no reasoning effort; leave it out", param)
