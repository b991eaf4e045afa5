"""Chat templates and tokens, on any thread: what is here touches no MLX array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from mlxd.engines.errors import InvalidRequest


class Detokenizer(Protocol):
    """mlx-lm's streaming detokenizer: tokens in, text out, incomplete characters held back."""

    @property
    def last_segment(self) -> str:
        """Text that became complete since the last read."""

    def add_token(self, token: int) -> None: ...

    def finalize(self) -> None: ...


class Tokenizer:
    """A model's tokenizer and chat template; `wrapper` is mlx-lm's TokenizerWrapper."""

    def __init__(self, wrapper: Any) -> None:
        self._wrapper = wrapper

    @property
    def end_tokens(self) -> frozenset[int]:
        """Ids that end a sequence."""
        return frozenset(self._wrapper.eos_token_ids)

    @property
    def has_chat_template(self) -> bool:
        return bool(self._wrapper.has_chat_template)

    def encode(self, text: str) -> list[int]:
        """Token ids of a raw prompt, with the special tokens that the model starts with."""
        return list(self._wrapper.encode(text, add_special_tokens=True))

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], template: Mapping[str, Any] | None = None
    ) -> list[int]:
        """Token ids of a rendered chat, ready for the assistant's answer.

        `template` holds extra variables for the chat template. Raises InvalidRequest when the template
        refuses the messages (an unknown role, wrong order) or the model has none.
        """
        return list(self._wrapper.encode(self.render_chat(messages, template), add_special_tokens=False))

    def render_chat(self, messages: Sequence[Mapping[str, Any]], template: Mapping[str, Any] | None = None) -> str:
        """The chat as the model's template writes it. Raises InvalidRequest."""
        if not self.has_chat_template:
            raise InvalidRequest("this model has no chat template; use /v1/completions", "messages")
        try:
            rendered = self._wrapper.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True, **(template or {})
            )
        # A template is a program that came with the model: what it raises on odd messages is open.
        except Exception as error:
            raise InvalidRequest(f"the chat template refused the messages: {error}", "messages") from error
        return str(rendered)

    def detokenizer(self) -> Detokenizer:
        """A fresh streaming detokenizer for one sequence."""
        detokenizer: Detokenizer = self._wrapper.detokenizer
        return detokenizer
