"""LangChain's OpenAI classes against a real daemon."""

import openai
import pytest
import tiktoken
from clients_daemon import ARGUMENTS, MESSAGES, QUESTION, SAID, THOUGHT, TOOL, snippets
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel

SENTENCE = "".join(SAID)


class get_weather(BaseModel):  # noqa: N801 - the name of the tool is that of the class
    """The weather."""

    city: str
    days: int


@pytest.fixture
def served(clients_daemon):
    return clients_daemon


@pytest.fixture
def model(served):
    def make(name, **options):
        return ChatOpenAI(model=name, base_url=served.v1, api_key=served.key, max_retries=0, **options)

    return make


def test_a_chat_is_answered_whole_with_its_usage(model):
    answer = model("gpt-4o").invoke(QUESTION)
    assert (answer.content, answer.response_metadata["finish_reason"]) == (SENTENCE, "stop")
    assert answer.response_metadata["model_name"] == "gpt-4o"
    assert answer.usage_metadata["output_tokens"] == len(SAID) + 1


def test_a_chat_is_answered_in_pieces(model):
    whole = sum(model("speaker", stream_usage=True).stream(QUESTION), AIMessageChunk(""))
    assert (whole.content, whole.usage_metadata["output_tokens"]) == (SENTENCE, len(SAID) + 1)


async def test_a_batch_is_answered_by_an_async_client(model):
    answers = await model("speaker").abatch([QUESTION] * 8)
    assert {answer.content for answer in answers} == {SENTENCE}


def test_a_completion_goes_on_from_text(served):
    completions = OpenAI(model="speaker", base_url=served.v1, api_key=served.key, max_retries=0)
    assert completions.invoke(QUESTION) == SENTENCE
    assert [answer[0].text for answer in completions.generate([QUESTION, "Hi"]).generations] == [SENTENCE] * 2


@pytest.mark.parametrize("tool", [TOOL, get_weather], ids=["schema", "class"])
def test_a_bound_tool_is_called_and_its_result_goes_back(model, tool):
    asked = [HumanMessage(QUESTION)]
    answer = model("caller").bind_tools([tool]).invoke(asked)
    [call] = answer.tool_calls
    assert (call["name"], call["args"], answer.invalid_tool_calls) == ("get_weather", ARGUMENTS, [])
    result = ToolMessage("Sunny.", tool_call_id=call["id"])
    again = model("thinker").bind_tools([tool]).invoke([*asked, answer, result])
    assert again.content == SENTENCE


def test_a_streamed_call_is_put_together(model):
    bound = model("caller").bind_tools([get_weather], tool_choice="any", parallel_tool_calls=False)
    whole = sum(bound.stream(QUESTION), AIMessageChunk(""))
    assert [(call["name"], call["args"]) for call in whole.tool_calls] == [("get_weather", ARGUMENTS)]


@pytest.mark.parametrize(
    ("name", "method"),
    [("former", "json_schema"), ("former", "json_mode"), ("caller", "function_calling")],
)
def test_an_answer_is_a_type(model, name, method):
    answer = model(name).with_structured_output(get_weather, method=method).invoke(QUESTION)
    assert answer == get_weather(**ARGUMENTS)


def test_a_streamed_answer_is_a_type_in_the_end(model):
    *_, answer = model("former").with_structured_output(get_weather).stream(QUESTION)
    assert answer == get_weather(**ARGUMENTS)


def test_an_answer_that_was_cut_off_is_no_type(model):
    with pytest.raises(openai.LengthFinishReasonError):
        model("former", max_tokens=2).with_structured_output(get_weather).invoke(QUESTION)


def test_logprobs_come_with_the_answer(model):
    answer = model("speaker", logprobs=True, top_logprobs=2).invoke(QUESTION)
    told = answer.response_metadata["logprobs"]["content"]
    assert [token["token"] for token in told][: len(SAID)] == SAID


def test_a_stop_string_ends_an_answer(model):
    assert model("speaker").invoke(QUESTION, stop=[" is"]).content == "The capital"


def test_what_goes_wrong_is_an_error_of_the_openai_client(model, served):
    with pytest.raises(openai.NotFoundError):
        model("speakr").invoke(QUESTION)
    with pytest.raises(openai.BadRequestError):
        model("speaker", temperature=3).invoke(QUESTION)
    with pytest.raises(openai.AuthenticationError):
        ChatOpenAI(model="speaker", base_url=served.v1, api_key="wrong", max_retries=0).invoke(QUESTION)
    with pytest.raises(openai.APITimeoutError):
        model("busy", timeout=0.2).invoke(QUESTION)
    with pytest.raises(openai.NotFoundError):
        list(model("speakr").stream(MESSAGES))


@pytest.fixture
def embeddings(served):
    def make(**options):
        at = {"model": "text-embedding-3-small", "base_url": served.v1, "api_key": served.key, "max_retries": 0}
        return OpenAIEmbeddings(**at, **options)

    return make


def test_texts_are_embedded(embeddings):
    as_text = embeddings(check_embedding_ctx_length=False)
    one, two = as_text.embed_documents(["one", "two"])
    assert as_text.embed_query("one") == pytest.approx(one, abs=1e-5)
    assert one != pytest.approx(two, abs=1e-3)


def test_texts_that_arrive_as_tokens_are_embedded(embeddings, monkeypatch):
    one_token_a_byte = tiktoken.Encoding(
        "bytes", pat_str=".", mergeable_ranks={bytes([n]): n for n in range(256)}, special_tokens={}
    )
    monkeypatch.setattr(tiktoken, "encoding_for_model", lambda _: one_token_a_byte)  # the real ones are downloaded
    one, two, again = embeddings().embed_documents(["one", "two", "one"])
    assert one == pytest.approx(again, abs=1e-5)
    assert one != pytest.approx(two, abs=1e-3)


def test_reasoning_is_no_part_of_the_text(model):
    assert "".join(THOUGHT[:-2]) not in model("thinker").invoke(QUESTION).content


def test_the_snippet_of_the_document_prints_an_answer(served, capsys):
    names = {}
    [text] = snippets(served, "LangChain", "python")
    exec(text, names)
    assert capsys.readouterr().out == f"{SENTENCE}\n"
    assert len(names["vectors"]) == 2
