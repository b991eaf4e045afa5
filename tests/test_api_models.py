"""GET /v1/models: every name that a request may use."""

import aiohttp
import pytest
from api_fakes import serving


async def fetch(served, path):
    async with aiohttp.ClientSession() as http:
        answer = await http.get(served.url + path)
        return answer.status, await answer.json()


async def test_models_aliases_and_presets_are_listed_under_their_names():
    async with serving() as served:
        _, listed = await fetch(served, "/v1/models")
    by_id = {model["id"]: model for model in listed["data"]}
    assert listed["object"] == "list"
    assert set(by_id) == {"m", "gpt-4o", "m-cold", "org/embed"}
    assert {model["object"] for model in by_id.values()} == {"model"}
    assert (by_id["gpt-4o"]["root"], by_id["m-cold"]["root"], by_id["m-cold"]["preset"]) == ("m", "m", "m-cold")
    assert (by_id["m"]["state"], by_id["m"]["kind"], by_id["m"]["context_length"]) == ("unloaded", "text", 100)
    assert by_id["org/embed"]["kind"] == "embedding"
    assert isinstance(by_id["m"]["created"], int)


@pytest.mark.parametrize("path", ["/v1/models/org/embed", "/v1/models/org%2Fembed", "/v1/models/embed"])
async def test_a_model_is_found_under_an_id_with_slashes(path):
    async with serving() as served:
        status, model = await fetch(served, path)
    assert status == 200
    assert model["root"] == "org/embed"


async def test_an_unknown_model_id_is_not_found():
    async with serving() as served:
        status, body = await fetch(served, "/v1/models/org/embad")
    assert (status, body["error"]["code"]) == (404, "model_not_found")
    assert "org/embed" in body["error"]["details"]["suggestions"]
