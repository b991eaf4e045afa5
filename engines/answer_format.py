"""How a model writes its answers: states, and the markers that lead from one to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlx_lm.generate import TextStateMachine

from mlxd.engines.tokenizer import Tokenizer

# mlx-lm's names. Text in any other state, like the header of a message, is not for readers.
TEXT = "normal"
REASONING = "reasoning"
CALL = "tool"

Edges = Mapping[str, Sequence[tuple[str, str]]]


def answer_edges(tokenizer: Tokenizer, *, calls: bool) -> Edges:
    """State → (marker, next state) of a model's answers, empty when they are plain text.

    Without `calls` the markers of calls are text, except where a model's own format decides that a call begins.
    A call may also begin inside reasoning, which it ends.
    """
    edges: dict[str, list[tuple[str, str]]] = {}
    own = tokenizer.answer_transitions
    format_has_calls = any(target == CALL for pairs in own.values() for _, target in pairs)
    if tokenizer.think_start is not None and tokenizer.think_end is not None:
        edges[TEXT] = [(tokenizer.think_start, REASONING)]
        edges[REASONING] = [(tokenizer.think_end, TEXT)]
    markers = tokenizer.tool_markers if calls or format_has_calls else None
    if markers is not None:
        start, end = markers
        before = [state for state in (TEXT, REASONING) if state == TEXT or state in edges]
        for state in () if format_has_calls else before:
            edges.setdefault(state, []).append((start, CALL))
        edges[CALL] = [(end, TEXT)] if end else []
    for marker in tokenizer.hidden_markers:
        edges.setdefault(TEXT, []).append((marker, TEXT))
    for state, pairs in own.items():
        edges.setdefault(state, []).extend(pair for pair in pairs if pair[1] != CALL or markers is not None)
    return edges


class MarkerScan:
    """Walks through text that comes in pieces, from marker to marker; a possible beginning of one is held back."""

    def __init__(self, edges: Edges, state: str) -> None:
        # A marker leads to a state without markers, where the machine leaves the rest of the text alone.
        arrivals = {target: f"to {target}" for pairs in edges.values() for _, target in pairs}
        self._targets = {name: target for target, name in arrivals.items()}
        states = {state: [(marker, arrivals[target]) for marker, target in pairs] for state, pairs in edges.items()}
        self._machine = TextStateMachine({**states, **{name: [] for name in self._targets}})
        self._first = {state: frozenset(marker[0] for marker, _ in pairs) for state, pairs in edges.items()}
        self.enter(state)

    def enter(self, state: str) -> None:
        """Go on in another state, with nothing held back."""
        self._at = self._machine.make_state(state)
        self._begins = self._first.get(state, frozenset())

    def feed(self, text: str) -> tuple[str, str | None, str]:
        """Text of this state; then, if a marker was found, the state it leads to and the text after it."""
        nothing_is_held = not self._at[3]
        if nothing_is_held and self._begins.isdisjoint(text):
            return text, None, ""
        self._at, segments = TextStateMachine.split(self._at, text)
        shown = str(segments[0][1])
        if len(segments) == 1:
            return shown, None, ""
        return shown, self._targets[self._at[0]], str(segments[1][1])

    def flush(self) -> str:
        """What was held back."""
        self._at, held, _ = TextStateMachine.flush(self._at)
        return str(held)
