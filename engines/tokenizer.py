"""Chat templates and tokens, on any thread: what is here touches no MLX array."""

from __future__ import annotations

import enum
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol, TypeVar

from mlxd.engines.call_parser import CallParser
from mlxd.engines.errors import InvalidRequest
from mlxd.engines.prompt_images import EncodedPrompt
from mlxd.engines.token_bytes import TokenBytes
from mlxd.engines.types import Guide

T = TypeVar("T")
Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]]

# A tool that a template has to name in the prompt, if it knows tools.
_PROBE_NAME = "probe_of_the_template"
_PROBE: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": _PROBE_NAME,
        "description": "None.",
        "parameters": {
            "type": "object",
            "properties": {"value": {"type": "string", "description": "None."}},
            "required": ["value"],
        },
    },
}


class Thought(enum.Enum):
    """How a prompt may leave the model's reasoning."""

    OPEN = enum.auto()
    CLOSED = enum.auto()


class Detokenizer(Protocol):
    """mlx-lm's streaming detokenizer: tokens in, text out, incomplete characters held back."""

    @property
    def last_segment(self) -> str:
        """Text that became complete since the last read."""

    def add_token(self, token: int) -> None: ...

    def finalize(self) -> None: ...


class Tokenizer:
    """A model's tokenizer and chat template; `wrapper` is mlx-lm's TokenizerWrapper.

    What the wrapper knows of a model's answers (where reasoning and calls begin and end) comes from the model's
    vocabulary, template and configuration.
    """

    def __init__(self, wrapper: Any) -> None:
        self._wrapper = wrapper
        self._lock = threading.Lock()
        self._built: dict[type, Any] = {}

    def once(self, kind: type[T], build: Callable[[Any], T]) -> T:
        """What `build` makes of mlx-lm's TokenizerWrapper: made by the first caller, for every thread.

        Raises what `build` raises; the next caller tries again.
        """
        with self._lock:
            if kind not in self._built:
                self._built[kind] = build(self._wrapper)
            built: T = self._built[kind]
        return built

    @property
    def end_tokens(self) -> frozenset[int]:
        """Ids that end a sequence."""
        return frozenset(self._wrapper.eos_token_ids)

    @property
    def has_chat_template(self) -> bool:
        return bool(self._wrapper.has_chat_template)

    def template_reads(self, variable: str) -> bool:
        """Whether the text of the chat template has this variable in it; False for a template that is no text."""
        template = self._wrapper.chat_template
        texts = template.values() if isinstance(template, dict) else [template or ""]
        return any(re.search(rf"\b{re.escape(variable)}\b", text) for text in texts)

    @cached_property
    def size(self) -> int:
        """How many tokens there are; a model's logits may have more places than that."""
        return len(self._wrapper)

    def has_vocabulary_of(self, other: Tokenizer) -> bool:
        """Whether every token means the same to both."""
        vocabulary: dict[str, int] = self._wrapper.get_vocab()
        return bool(vocabulary == other._wrapper.get_vocab())

    @cached_property
    def has_tools(self) -> bool:
        """Whether the model can call tools: mlx-lm reads its calls, and its chat template names the tools offered."""
        if self._wrapper.tool_parser is None or not self.has_chat_template:
            return False
        messages = [{"role": "user", "content": "Hi"}]
        try:
            return _PROBE_NAME in self._render(messages, {"tools": [_PROBE]})
        except InvalidRequest:
            return False

    @property
    def tool_markers(self) -> tuple[str, str] | None:
        """What stands before and after a call, None without tools; "" after it: the call ends with the answer."""
        return (self._wrapper.tool_call_start, self._wrapper.tool_call_end) if self.has_tools else None

    @cached_property
    def call_parser(self) -> CallParser | None:
        """Reads the text between the tool markers; None without tools."""
        return CallParser(self._wrapper.tool_parser) if self.has_tools else None

    @property
    def has_reasoning(self) -> bool:
        """Whether the model's reasoning is marked in its answers."""
        return bool(self._wrapper.has_thinking)

    @property
    def think_start(self) -> str | None:
        """What stands before reasoning."""
        return self._wrapper.think_start if self.has_reasoning else None

    @property
    def think_end(self) -> str | None:
        """What stands after reasoning."""
        return self._wrapper.think_end if self.has_reasoning else None

    @property
    def hidden_markers(self) -> tuple[str, ...]:
        """Markers of the answer's own text, which mean nothing to a reader."""
        return tuple(self._wrapper.structural_markers)

    @property
    def answer_transitions(self) -> Mapping[str, Sequence[tuple[str, str]]]:
        """State → (marker, next state) of a model whose answers have a format of their own; mlx-lm's names."""
        transitions: Mapping[str, Sequence[tuple[str, str]]] = self._wrapper.response_transitions
        return transitions

    def answer_state(self, prompt: Sequence[int], *, continues: bool = False) -> str:
        """The state in which an answer to `prompt` begins: "reasoning" if the prompt ends with an open thought.

        Only what the template wrote at the end counts, and not a marker in somebody's message. What `continues` an
        answer that is begun has its header behind it.
        """
        initial: str | None = self._wrapper.response_initial_state
        if initial is not None:
            return "normal" if continues else initial
        return "reasoning" if self.thought_at_end(prompt) is Thought.OPEN else "normal"

    def thought_at_end(self, prompt: Sequence[int]) -> Thought | None:
        """The marker of reasoning that is the prompt's last text; None for any other ending."""
        start, end = self.think_start, self.think_end
        if start is None or end is None:
            return None
        tail = b"".join(self.token_bytes(token) for token in prompt[-2 * max(len(start), len(end)) :]).rstrip()
        if tail.endswith(end.encode()):
            return Thought.CLOSED
        return Thought.OPEN if tail.endswith(start.encode()) else None

    @cached_property
    def _token_bytes(self) -> TokenBytes:
        return TokenBytes(self._wrapper)

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token's text, special tokens as they are written; b"" for an id that is no token."""
        return self._token_bytes(token)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of a raw prompt; with `special` with the special tokens that the model starts with."""
        return list(self._wrapper.encode(text, add_special_tokens=special))

    def encode_chat(
        self, messages: Messages, template: Mapping[str, Any] | None = None, tools: Tools | None = None
    ) -> list[int]:
        """Token ids of a rendered chat, ready for the assistant's answer unless `template` says otherwise.

        `template` holds extra variables for the chat template, `tools` OpenAI's tool objects. Raises InvalidRequest
        when the template refuses the messages (an unknown role, wrong order), the model has none, or it knows no tools.
        """
        return list(self._wrapper.encode(self.render_chat(messages, template, tools), add_special_tokens=False))

    @property
    def takes_images(self) -> bool:
        """Whether messages may hold images."""
        return False

    def encode_prompt(
        self, messages: Messages, template: Mapping[str, Any] | None = None, tools: Tools | None = None
    ) -> EncodedPrompt:
        """As `encode_chat`, for messages that may hold an ImageInput. Raises InvalidRequest, for a broken image too."""
        return EncodedPrompt(self.encode_chat(messages, template, tools))

    def render_chat(
        self, messages: Messages, template: Mapping[str, Any] | None = None, tools: Tools | None = None
    ) -> str:
        """The chat as the model's template writes it. Raises InvalidRequest."""
        if not self.has_chat_template:
            raise InvalidRequest("this model has no chat template; use /v1/completions", "messages")
        if not tools:
            return self._render(messages, template or {})
        if not self.has_tools:
            raise InvalidRequest("this model makes no tool calls; leave tools out", "tools")
        return self._render(messages, {**(template or {}), "tools": list(tools)})

    def _render(self, messages: Messages, variables: Mapping[str, Any]) -> str:
        try:
            rendered = self._wrapper.apply_chat_template(
                list(messages), tokenize=False, **{"add_generation_prompt": True, **variables}
            )
        # A template is a program that came with the model: what it raises on odd messages is open.
        except Exception as error:
            reason = str(error).partition("Final message to continue:")[0]  # the whole chat would follow
            raise InvalidRequest(f"the chat template refused the messages: {reason}", "messages") from error
        text = str(rendered)
        if variables.get("continue_final_message") and not text.endswith(_text_of(messages[-1]).strip()):
            raise InvalidRequest("the chat template cannot end with a message that is begun; let a user's be the last")
        return text

    def detokenizer(self) -> Detokenizer:
        """A fresh streaming detokenizer for one sequence."""
        detokenizer: Detokenizer = self._wrapper.detokenizer
        return detokenizer


class GuideKeeper(ABC):
    """A tokenizer that makes and checks guides itself, for a model in another process."""

    @abstractmethod
    def check_guide(self, guide: Guide) -> Guide:
        """See `guidance.check_guide`."""

    @abstractmethod
    def guide_for_tools(
        self, tools: Sequence[Mapping[str, Any]], name: str | None, *, parallel: bool, form: Guide | None
    ) -> Guide:
        """See `guide_tools.guide_for_tools`."""


def _text_of(message: Mapping[str, Any]) -> str:
    """The text at the end of a message."""
    content = message["content"]
    return str(content[-1].get("text", "")) if isinstance(content, list) else str(content)
