"""What a model can do, told from its kind and the text of its chat template, without loading it."""

from __future__ import annotations

from collections.abc import Iterator

from mlxd.registry.spec import ModelKind

# Each set of texts stands in the templates of models whose calls mlx-lm can read.
_CALL_MARKERS = (
    ("<minimax:tool_call>",),
    ("<|tool_call>", "<tool_call|>"),
    ("<start_function_call>",),
    ("<longcat_tool_call>",),
    ("<arg_key>",),
    ("<|tool_list_start|>",),
    ("<|tool_call_start|>",),
    ("<tool_call>\\n<function=",),
    ("<tool_call>\n<function=",),
    ("<|tool_calls_section_begin|>",),
    ('<function name="', '<param name="'),
    ("[TOOL_CALLS]",),
    ("<atem:function_calls>",),
    ("<tool_call>", "tool_call.name"),
)
_THOUGHT_MARKERS = (
    *("enable_thinking", "reasoning_effort"),
    *("<think>", "<longcat_think>", "<|think:start|>", "<|channel>", "<|channel|>"),
)


def capabilities(kind: ModelKind, template: str) -> list[str]:
    """Ollama's words for what a model can do here. Images are not among it: all that is served is text."""
    if kind is ModelKind.EMBEDDING:
        return ["embedding"]
    return ["completion", *_of_template(template)]


def _of_template(template: str) -> Iterator[str]:
    if "tools" in template and calls_can_be_read(template):
        yield "tools"
    if any(marker in template for marker in _THOUGHT_MARKERS):
        yield "thinking"


def calls_can_be_read(template: str) -> bool:
    """Whether mlx-lm knows the calls of models with this template."""
    return any(all(text in template for text in texts) for texts in _CALL_MARKERS)
