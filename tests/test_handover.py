"""What steps have for the event loop: at once where it matters, a few short steps together where it does not."""

from mlxd.engines.errors import EngineDead, StepFailed
from mlxd.engines.handover import HOLD, Handover
from mlxd.engines.step_result import StepResult
from mlxd.engines.types import (
    FinishReason,
    PrefillEvictionRequest,
    Request,
    RequestOutput,
    SamplingParams,
    ToolCall,
    Usage,
)


def request(name):
    return Request(name, (1,), SamplingParams())


A, B = request("a"), request("b")


def text(asked, tokens, shown="x", **fields):
    return asked, RequestOutput(shown, Usage(1, tokens), **fields)


class Steps:
    """A handover with a clock; each step takes `takes` seconds."""

    def __init__(self, takes):
        self.now = 100.0
        self.posts = []
        self._takes = takes
        self.handover = Handover(self.posts.append, lambda: self.now)

    def step(self, *deliveries, **fields):
        self.now += self._takes
        self.handover.put(StepResult(list(deliveries), **fields))

    @property
    def texts(self):
        """The text of each post, by request."""
        return [[(asked.id, output.text) for asked, output in post.deliveries] for post in self.posts]


def test_the_text_of_short_steps_goes_together_and_is_held_no_longer_than_it_may_be():
    steps = Steps(HOLD / 4)
    for tokens in range(1, 10):
        steps.step(text(A, tokens, f"{tokens}"), text(B, tokens, f"-{tokens}"))
    assert steps.texts == [
        [("a", "1"), ("b", "-1")],
        [("a", "2345"), ("b", "-2-3-4-5")],
        [("a", "6789"), ("b", "-6-7-8-9")],
    ]
    assert [output.usage.completion_tokens for _, output in steps.posts[1].deliveries] == [5, 5]


def test_each_of_longer_steps_is_handed_on_at_once():
    steps = Steps(HOLD)
    for tokens in range(1, 4):
        steps.step(text(A, tokens))
        assert len(steps.posts) == tokens


def test_firsts_and_ends_and_all_that_is_no_text_take_along_what_is_held():
    dead, wish = EngineDead("it broke"), PrefillEvictionRequest("b", 2, 1, "prefill")
    urgent = [
        ((text(B, 1, "first"),), {}),
        ((text(B, 9, "end", finish_reason=FinishReason.STOP),), {}),
        (((B, StepFailed("no")),), {}),
        ((), {"freed": (0.1,)}),
        ((), {"eviction": wish}),
        ((), {"dead": dead}),
    ]
    for deliveries, fields in urgent:
        steps = Steps(HOLD / 100)
        steps.step(text(A, 1, "begins"))
        steps.step(text(A, 2, "held"))
        assert len(steps.posts) == 1
        steps.step(*deliveries, **fields)
        assert len(steps.posts) == 2
        assert steps.posts[1].deliveries == [text(A, 2, "held"), *deliveries]
        for name, value in fields.items():
            assert getattr(steps.posts[1], name) == value


def test_an_error_comes_after_the_text_before_it():
    steps, error = Steps(0), StepFailed("no")
    steps.step(text(A, 1, "begins"))
    steps.step(text(A, 2, "o"), text(B, 2, "w"))
    steps.step(text(A, 3, "n"))
    steps.step((A, error))
    assert steps.posts[1].deliveries == [text(A, 3, "on"), (A, error), text(B, 2, "w")]


def test_what_is_held_is_handed_on_when_it_is_asked_for_and_nothing_twice():
    steps = Steps(0)
    steps.step(text(A, 1, "begins"))
    steps.step(text(A, 2, "held"))
    for _ in range(2):
        steps.handover.flush()
    assert steps.texts == [[("a", "begins")], [("a", "held")]]
    steps.step()
    assert len(steps.posts) == 2


def test_reasoning_text_and_calls_stay_in_their_order():
    steps = Steps(0)
    steps.step(text(A, 1, "begins"))
    call = ToolCall("look", "{}")
    for delivery in (
        text(A, 2, "", reasoning="Hm"),
        text(A, 3, "I "),
        text(A, 4, "look."),
        text(A, 5, "", tool_calls=(call,)),
        text(A, 6, "Well"),
    ):
        steps.step(delivery)
    steps.handover.flush()
    parts = [(output.reasoning, output.text, output.tool_calls) for _, output in steps.posts[1].deliveries]
    assert parts == [("Hm", "I look.", (call,)), ("", "Well", ())]


def test_two_requests_of_one_id_are_two():
    again = Request("a", (1,), SamplingParams(), continues_text=True)
    steps = Steps(0)
    steps.step(text(A, 1, "begins"))
    steps.step(text(A, 2, "old"))
    steps.step(text(again, 3, "new"))
    steps.handover.flush()
    assert steps.posts[1].deliveries == [text(A, 2, "old"), text(again, 3, "new")]
