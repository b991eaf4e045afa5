"""Requests of a soak: each is sent, read to its end, left or cancelled, and held to the contract."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

import aiohttp
from daemon_process import Api, chat_body
from guides import PERSON, is_person
from soak_daemon import CALL, PASSING, RECITED, SPLIT, TEXTS
from soak_tally import Tally, Wrong, code_of

CHAT = "/v1/chat/completions"
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
FORM = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}


@dataclass
class Visitor:
    """Sends requests that its dice choose."""

    api: Api
    dice: Random
    tally: Tally
    name: str
    _numbers: Any = field(default_factory=lambda: count(1))

    async def chat(self) -> None:
        """One chat of some kind, whole or streamed."""
        form, body, allowed = self._drawn()
        headers = {"X-Request-Id": f"{self.name}-{next(self._numbers)}"}
        if self.dice.random() < 0.1:
            headers["X-Mlxd-Max-Wait"] = self.dice.choice(["0", "500ms", "3s"])
        if self.dice.random() < 0.4:
            await self.tally.take("chat", self._whole(body, headers, allowed), form=form)
        elif self.dice.random() < 0.6:
            await self.tally.take("stream", self._stream(body, headers, allowed), form=form)
        elif self.dice.random() < 0.5:
            await self.tally.take("leave", self._left({**body, "max_tokens": 1000}, headers, allowed), form=form)
        else:
            await self.tally.take("cancel", self._cancelled(body, headers, allowed), form=form)

    async def embed(self) -> None:
        """Some vectors, or tokens counted."""
        texts = [
            f"text {self.dice.randint(0, 99)} " * self.dice.randint(1, 12) for _ in range(self.dice.randint(1, 16))
        ]
        match self.dice.random():
            case chance if chance < 0.6:
                await self.tally.take("embed", self._vectors({"model": "vectors", "input": texts}), form="vectors")
            case chance if chance < 0.8:
                body = {"model": self.dice.choice(TEXTS), "prompt": texts[0]}
                await self.tally.take("tokenize", self._counted("/v1/tokenize", body), form="tokens")
            case _:
                messages = [{"role": "user", "content": texts[0]}]
                body = {"model": self.dice.choice(TEXTS), "messages": messages, "max_tokens": 1}
                await self.tally.take("count", self._counted("/v1/messages/count_tokens", body), form="count")

    def _drawn(self) -> tuple[str, dict[str, Any], tuple[str, ...]]:
        """A form, its body, and the errors that it may get besides those of a busy daemon."""
        dice = self.dice
        model = dice.choice(TEXTS)
        text = f"Say {dice.random()}"
        match dice.choice(["short"] * 4 + ["long", "n", "stop", "form", "logprobs", "tools", "passing", "huge", "bad"]):
            case "short":
                return "short", chat_body(model, text, max_tokens=dice.randint(1, 120)), ()
            case "long":
                text = " ".join(str(dice.randint(0, 9)) for _ in range(dice.randint(100, 3000)))
                return "long", chat_body(model, text, max_tokens=dice.randint(1, 20)), ()
            case "n":
                return "n", chat_body(model, text, max_tokens=20, n=dice.randint(2, 4), temperature=1), ()
            case "stop":
                return "stop", chat_body(model, text, max_tokens=100, stop=["e", " see"]), ()
            case "form":
                model = dice.choice(["one", "three", SPLIT])
                return "form", chat_body(model, text, max_tokens=200, response_format=FORM), ()
            case "logprobs":
                return "logprobs", chat_body(model, text, max_tokens=20, logprobs=True, top_logprobs=3), ()
            case "tools":
                allowed = ("unsupported_capability",) if model != "caller" else ()
                choice = dice.choice(["auto", "required", "none"])
                return "tools", chat_body(model, text, tools=[WEATHER], tool_choice=choice, max_tokens=60), allowed
            case "passing":
                return "passing", chat_body(dice.choice(PASSING), text), ("model_not_found",)
            case "huge":
                return "huge", chat_body(model, "7 " * 20_000, max_tokens=30_000), ("context_length_exceeded",)
        return "bad", chat_body(model, text, tempreature=1), ("invalid_request",)

    async def _whole(self, body: dict[str, Any], headers: dict[str, str], allowed: tuple[str, ...]) -> str:
        status, answer = await self.api.call("POST", CHAT, body, **headers)
        if status != 200:
            return code_of(status, answer, *allowed)
        said = [choice["message"] for choice in answer["choices"]]
        ends = [choice["finish_reason"] for choice in answer["choices"]]
        calls = [call["function"]["name"] for message in said for call in message.get("tool_calls") or ()]
        check(body, [message["content"] or "" for message in said], ends, calls)
        if body.get("logprobs") and not answer["choices"][0]["logprobs"]["content"]:
            raise Wrong(f"no logprobs: {answer}")
        return "ok"

    async def _stream(
        self, body: dict[str, Any], headers: dict[str, str], allowed: tuple[str, ...], *, cancelled: bool = False
    ) -> str:
        async with self.api.post(CHAT, {**body, "stream": True}, headers) as response:
            if response.status != 200:
                return code_of(response.status, await response.json(), *allowed)
            texts, ends, calls = [""] * body.get("n", 1), [None] * body.get("n", 1), []
            async for event in events(response):
                if "error" in event:
                    code = code_of(None, event, *allowed)
                    if rest := (await response.content.read()).strip():
                        raise Wrong(f"{rest!r} after the error {code}")
                    return f"{code} in the stream"
                for choice in event["choices"]:
                    texts[choice["index"]] += choice["delta"].get("content") or ""
                    ends[choice["index"]] = choice["finish_reason"] or ends[choice["index"]]
                    calls += [call["function"].get("name") for call in choice["delta"].get("tool_calls") or ()]
        check(body, texts, ends, [name for name in calls if name], cancelled=cancelled)
        return "ok"

    async def _left(self, body: dict[str, Any], headers: dict[str, str], allowed: tuple[str, ...]) -> str:
        """Leave at some time: before the status, or after some lines."""
        try:
            async with asyncio.timeout(self.dice.choice([0.01, 0.1, 0.5, 2, 10])):
                async with self.api.post(CHAT, {**body, "stream": True}, headers) as response:
                    if response.status != 200:
                        return code_of(response.status, await response.json(), *allowed)
                    for _ in range(self.dice.randint(0, 20)):
                        await response.content.readline()
                    response.close()
        except TimeoutError:
            return "left before"
        return "left"

    async def _cancelled(self, body: dict[str, Any], headers: dict[str, str], allowed: tuple[str, ...]) -> str:
        try:
            async with asyncio.TaskGroup() as group:
                reader = group.create_task(self._stream(body, headers, allowed, cancelled=True))
                deletion = group.create_task(self._delete(headers["X-Request-Id"]))
        except* (Wrong, aiohttp.ClientError) as faults:
            raise Wrong(repr(faults.exceptions)) from None
        return "ok" if reader.result() == "ok" else f"{reader.result()}, {deletion.result()}"

    async def _delete(self, request: str) -> str:
        await asyncio.sleep(self.dice.choice([0, 0.02, 0.2, 1, 4]))
        status, answer = await self.api.call("DELETE", f"/v1/requests/{request}")
        return "ended" if status == 200 else code_of(status, answer, "request_not_found")

    async def until_stopped(self, model: str) -> None:
        """A long answer under which the daemon is stopped."""
        body = chat_body(model, "Count", max_tokens=20_000)
        await self.tally.take("stopped", self._stream(body, {"X-Request-Id": model}, ("shutting_down",)))

    async def _vectors(self, body: dict[str, Any]) -> str:
        status, answer = await self.api.call("POST", "/v1/embeddings", body)
        if status != 200:
            return code_of(status, answer)
        if [len(one["embedding"]) for one in answer["data"]] != [64] * len(body["input"]):
            raise Wrong(f"vectors: {answer}")
        return "ok"

    async def _counted(self, path: str, body: dict[str, Any]) -> str:
        status, answer = await self.api.call("POST", path, body)
        if status != 200:
            return code_of(status, answer)
        if not (answer.get("count") or answer.get("input_tokens")):
            raise Wrong(f"tokens: {answer}")
        return "ok"


async def events(response: aiohttp.ClientResponse) -> Any:
    """The objects of a stream; it ends with an error, or with its mark. Raises Wrong where it is cut."""
    async for line in response.content:
        if line.startswith(b"data: {"):
            yield json.loads(line.removeprefix(b"data: "))
        elif line == b"data: [DONE]\n":
            return
    raise Wrong("the stream was cut")


def check(
    body: dict[str, Any], texts: list[str], ends: list[Any], calls: list[str], *, cancelled: bool = False
) -> None:
    """Hold an answer to what was asked. Raises Wrong."""
    said = (body["model"], texts, ends, calls)
    if len(texts) != body.get("n", 1) or not set(ends) <= {"stop", "length", "tool_calls"}:
        raise Wrong(f"{said}")
    if body["model"] == "caller" and not body.get("n") and "form" not in body:
        whole = RECITED.split("<tool_call>")[0] if calls else RECITED
        required = body.get("tool_choice") == "required"
        if not whole.startswith(texts[0]) and not required:
            raise Wrong(f"not what it recites: {said}")
    if not cancelled and "response_format" in body and ends == ["stop"] and not is_person(json.loads(texts[0])):
        raise Wrong(f"not the form: {said}")
    may_call = body["model"] == "caller" and body.get("tool_choice", "none") != "none"
    if not cancelled and may_call and calls != ["weather"] and ends != ["length"]:
        raise Wrong(f"no call like {CALL}: {said}")
    if "stop" in body and any("e" in text for text in texts):
        raise Wrong(f"a stop string: {said}")
