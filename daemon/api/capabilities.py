"""What a model can do, told from its files without loading it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mlxd.registry.spec import ModelKind

REASONING = "reasoning"

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


def capabilities(kind: ModelKind, template: str, *, takes_images: bool) -> list[str]:
    """Ollama's words for what a model can do here."""
    known = capability_names(kind, template_capabilities(template), takes_images=takes_images)
    return ["thinking" if name == REASONING else name for name in known]


def capability_names(kind: ModelKind, of_template: Iterable[str], *, takes_images: bool) -> list[str]:
    """What a model can do here: completion, vision, and what its chat template shows; or embedding alone."""
    if kind is ModelKind.EMBEDDING:
        return ["embedding"]
    return ["completion", *(["vision"] if takes_images else []), *of_template]


def template_capabilities(template: str) -> tuple[str, ...]:
    """What the text of a chat template shows that a model can do."""
    return tuple(_of_template(template))


def _of_template(template: str) -> Iterator[str]:
    if "tools" in template and calls_can_be_read(template):
        yield "tools"
    if any(marker in template for marker in _THOUGHT_MARKERS):
        yield REASONING


def calls_can_be_read(template: str) -> bool:
    """Whether mlx-lm knows the calls of models with this template."""
    return any(all(text in template for text in texts) for texts in _CALL_MARKERS)
