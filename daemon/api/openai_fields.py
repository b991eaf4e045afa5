"""Fields of OpenAI requests that are not served: each is refused, but for values that change nothing."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from mlxd.daemon.api.refusals import InvalidField

Harmless = tuple[Any, ...]

_SHOWN = 60

# Values beside null with which a field changes nothing; every other value asks for what is not there.
SHARED: Mapping[str, Harmless] = {
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

CHAT: Mapping[str, Harmless] = {
    **SHARED,
    "add_generation_prompt": (True,),
    "audio": (),
    "chat_template": (),
    "continue_final_message": (False,),
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

COMPLETIONS: Mapping[str, Harmless] = {
    **SHARED,
    "best_of": (1,),
    "suffix": ("",),
}


def check_fields(body: Mapping[str, Any], supported: Collection[str], refused: Mapping[str, Harmless]) -> None:
    """Refuse fields that ask for what is not there, and fields that nobody knows. Raises InvalidField."""
    for name, value in body.items():
        if name in supported:
            continue
        if name not in refused:
            raise InvalidField(_unknown(name, (*supported, *refused)), name[:_SHOWN])
        if value is not None and not any(_same(value, harmless) for harmless in refused[name]):
            raise InvalidField(_unsupported(name, refused[name]), name)


def _same(value: object, harmless: object) -> bool:
    return type(value) is type(harmless) and value == harmless


def _unsupported(name: str, harmless: Harmless) -> str:
    if not harmless:
        return f"{name} is not supported here; leave it out"
    return f"{name} is not supported here; leave it out or send {msgspec.json.encode(harmless[0]).decode()}"


def _unknown(name: str, known: Collection[str]) -> str:
    shown = name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…"
    near = difflib.get_close_matches(name.lower()[:_SHOWN], known, n=1)
    return f"{shown} is not a field of this request; " + (f"did you mean {near[0]}?" if near else "leave it out")
