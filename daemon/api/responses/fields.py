"""Fields of the Responses API: which are served, which change nothing by design, and which are refused."""

from __future__ import annotations

from collections.abc import Mapping

from mlxd.daemon.api.fields import FieldTable, Harmless
from mlxd.daemon.api.responses.bodies import CreateBody, PromptBody

# What many clients always send, and what changes nothing here.
_IGNORED = frozenset(
    {
        "user",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "service_tier",
        "client_metadata",
    }
)

# Values beside null with which a field changes nothing; every other value asks for what is not there.
_REFUSED: Mapping[str, Harmless] = {
    "access_programs": (),
    "background": (False,),
    "background_options": (),
    "context_management": ([],),
    "conversation": (),
    "image": (),
    "max_tool_calls": (),
    "moderation": (),
    "prompt": (),
}

CREATE = FieldTable(CreateBody.__struct_fields__, _IGNORED, _REFUSED)
COUNT = FieldTable(PromptBody.__struct_fields__, frozenset(), {"conversation": (), "personality": ()})
