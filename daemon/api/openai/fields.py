"""Fields of OpenAI requests that are not served: each is refused, but for values that change nothing."""

from __future__ import annotations

from collections.abc import Mapping

from mlxd.daemon.api.fields import FieldTable, Harmless
from mlxd.daemon.api.openai.bodies import ChatBody, CompletionBody

# What many clients always send, and what changes nothing here.
_IGNORED = frozenset(
    {
        "user",
        "metadata",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "cache_prompt",
    }
)

# Values beside null with which a field changes nothing; every other value asks for what is not there.
_SHARED: Mapping[str, Harmless] = {
    "add_special_tokens": (),
    "adapter": (),
    "adapters": (),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "beam_width": (1,),
    "draft_model": (),
    "dry_multiplier": (0, 0.0),
    "dynatemp_range": (0, 0.0),
    "grammar": (),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
    "include_stop_str_in_output": (False,),
    "json_schema": (),
    "keep_alive": (),
    "length_penalty": (1, 1.0),
    "lora": ([],),
    "mirostat": (0,),
    "num_draft_tokens": (0,),
    "priority": (0,),
    "prompt_logprobs": (0, False),
    "repetition_context_size": (),
    "return_token_ids": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "stop_token_ids": ([],),
    "truncate_prompt_tokens": (),
    "typical_p": (1, 1.0),
    "use_beam_search": (False,),
}

_CHAT: Mapping[str, Harmless] = {
    **_SHARED,
    "audio": (),
    "chat_template": (),
    "documents": ([],),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "reasoning": (),
    "verbosity": ("medium",),
    "web_search_options": (),
}

_COMPLETIONS: Mapping[str, Harmless] = {
    **_SHARED,
    "best_of": (1,),
    "suffix": ("",),
}

CHAT = FieldTable(ChatBody.__struct_fields__, _IGNORED | {"store", "prompt_cache_options"}, _CHAT)
COMPLETIONS = FieldTable(CompletionBody.__struct_fields__, _IGNORED, _COMPLETIONS)
