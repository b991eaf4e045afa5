"""What a slow reader gets of a generation."""

import pytest

from mlxd.engines.collector import OutputCollector
from mlxd.engines.types import FinishReason, RequestOutput, ToolCall, Usage

CALL = ToolCall("weather", "{}")


def output(tokens, *, text="", reasoning="", calls=0, ended=False):
    reason = FinishReason.STOP if ended else None
    return RequestOutput(text, Usage(1, tokens), finish_reason=reason, reasoning=reasoning, tool_calls=(CALL,) * calls)


async def read(*items):
    """What is read when all items have come before."""
    collector = OutputCollector()
    for item in items:
        collector.put(item)
    given = [await collector.get()]
    while given[-1].finish_reason is None:
        given.append(await collector.get())
    return given


async def test_outputs_that_were_not_read_are_one():
    pieces = [output(number, text="ab"[number % 2]) for number in range(50)]
    [whole] = await read(output(0, reasoning="Hm"), *pieces, output(50, calls=1), output(51, calls=2, ended=True))
    assert (whole.reasoning, whole.text, len(whole.tool_calls)) == ("Hm", "ab" * 25, 3)
    assert whole.usage.completion_tokens == 51


async def test_what_comes_after_a_call_or_a_text_is_never_put_before_it():
    given = await read(
        output(1, text="a"),
        output(2, text="b"),
        output(3, calls=1),
        output(4, text="c"),
        output(5, reasoning="d"),
        output(6, reasoning="e"),
        output(7, calls=1),
        output(8, reasoning="f"),
        output(9, ended=True),
    )
    parts = [(each.reasoning, each.text, len(each.tool_calls)) for each in given]
    assert parts == [("", "ab", 1), ("", "c", 0), ("de", "", 1), ("f", "", 0)]
    assert [each.usage.completion_tokens for each in given] == [3, 4, 7, 9]


async def test_an_error_comes_after_all_that_came_before_it():
    collector = OutputCollector()
    for item in (output(1, calls=1), output(2, text="a"), MemoryError("no more"), output(3, text="b")):
        collector.put(item)
    assert collector.finished
    assert [(await collector.get()).text for _ in range(2)] == ["", "a"]
    for _ in range(2):
        with pytest.raises(MemoryError):
            await collector.get()
