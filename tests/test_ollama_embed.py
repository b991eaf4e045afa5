"""Vectors over Ollama's calls, of a real encoder that a real daemon has loaded."""

import math

import ollama
import pytest
import pytest_asyncio
from api_calls import until
from ollama_calls import client_of
from test_api_daemon import running
from tiny_encoders import build_encoder

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXTS = ["A man eats.", "The girl plays the violin.", "A man eats."]
LONG = "word " * 500


class Reached:
    def __init__(self, served):
        self.url = f"http://127.0.0.1:{served.port}"
        self.registry = served.daemon.registry


@pytest.fixture(scope="module")
def encoders(tmp_path_factory, tiny_model):
    folder = tmp_path_factory.mktemp("models")
    build_encoder(folder / "embed", unit=False, max_seq_length=32)
    (folder / "tiny").symlink_to(tiny_model)
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(encoders):
    async with running(encoders) as served:
        yield Reached(served)


def length(vector):
    return math.sqrt(sum(number * number for number in vector))


async def test_each_input_has_a_vector_of_length_one(served):
    client = client_of(served)
    answer = await client.embed("embed", TEXTS)
    assert answer.model == "embed"
    assert [round(length(vector), 4) for vector in answer.embeddings] == [1.0] * 3
    assert answer.embeddings[0] == pytest.approx(answer.embeddings[2], abs=1e-5)
    assert answer.embeddings[0] != pytest.approx(answer.embeddings[1], abs=1e-3)
    assert answer.prompt_eval_count > 3
    assert 0 < answer.load_duration <= answer.total_duration
    alone = await client.embed("embed", TEXTS[0], options={"num_ctx": 512, "temperature": 0})
    assert alone.embeddings[0] == pytest.approx(answer.embeddings[0], abs=1e-5)


async def test_the_older_call_gives_the_vector_as_the_model_makes_it(served):
    client = client_of(served)
    old = (await client.embeddings("embed", TEXTS[0])).embedding
    [new] = (await client.embed("embed", TEXTS[0])).embeddings
    assert length(old) != pytest.approx(1.0, abs=1e-3)
    assert [number / length(old) for number in old] == pytest.approx(new, abs=1e-5)


async def test_fewer_dimensions_are_the_first_of_all_at_length_one(served):
    client = client_of(served)
    [whole] = (await client.embed("embed", TEXTS[0])).embeddings
    [cut] = (await client.embed("embed", TEXTS[0], dimensions=4)).embeddings
    assert [number / length(whole[:4]) for number in whole[:4]] == pytest.approx(cut, abs=1e-5)
    with pytest.raises(ollama.ResponseError) as refused:
        await client.embed("embed", TEXTS[0], dimensions=len(whole) + 1)
    assert refused.value.status_code == 400


async def test_a_long_input_is_cut_unless_it_must_not_be(served):
    client = client_of(served)
    assert (await client.embed("embed", LONG)).prompt_eval_count == 32
    with pytest.raises(ollama.ResponseError) as refused:
        await client.embed("embed", [TEXTS[0], LONG], truncate=False)
    assert refused.value.status_code == 400


async def test_keep_alive_loads_keeps_and_unloads_an_encoder(served):
    client = client_of(served)
    loaded = await client.embed("embed", "", keep_alive="5m")
    assert (loaded.embeddings, served.registry.model("embed").state) == ([], "ready")
    assert served.registry.model("embed").ttl == 300.0
    assert (await client.embeddings("embed", "", keep_alive=-1)).embedding == []
    assert served.registry.model("embed").ttl is None
    assert (await client.embed("embed", [], keep_alive=0)).embeddings == []
    assert served.registry.model("embed").state == "unloaded"
    assert len((await client.embed("embed", TEXTS, keep_alive=0)).embeddings) == 3
    await until(lambda: served.registry.model("embed").state == "unloaded")


async def test_a_model_of_vectors_says_so_and_generates_nothing(served):
    client = client_of(served)
    assert (await client.show("embed")).capabilities == ["embedding"]
    with pytest.raises(ollama.ResponseError, match="makes embeddings") as refused:
        await client.chat("embed", [{"role": "user", "content": "hi"}])
    assert refused.value.status_code == 400
