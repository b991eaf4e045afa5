"""Calls of a daemon beside its page, without an event loop: Playwright has one of its own."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from daemon_process import chat_body

# Seconds that a call may take.
PATIENCE = 60


class Calls:
    """JSON over HTTP, a connection for each call."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self._address = urlsplit(url).netloc
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """The decoded answer; its status must be good."""
        with self._sent(method, path, body) as connection:
            response = connection.getresponse()
            answer = json.loads(response.read())
        assert response.status < 400, answer
        return answer

    def chat(self, model: str, **options: Any) -> Any:
        """A short greedy answer."""
        return self.call("POST", "/v1/chat/completions", chat_body(model, "hello", **{"max_tokens": 4, **options}))

    @contextmanager
    def asking(self, model: str, request_id: str | None = None, **options: Any) -> Iterator[None]:
        """A chat that was sent, whose answer nobody waits for; its client leaves at the end."""
        with self._sent("POST", "/v1/chat/completions", chat_body(model, "hello", **options), request_id):
            yield

    @contextmanager
    def streaming(
        self, model: str, request_id: str | None = None, **options: Any
    ) -> Iterator[http.client.HTTPResponse]:
        """A streamed chat that has begun to answer and goes on until its end or the block's."""
        body = chat_body(model, "hello", stream=True, **options)
        with self._sent("POST", "/v1/chat/completions", body, request_id) as connection:
            response = connection.getresponse()
            assert response.status == 200
            while b"content" not in response.readline():
                pass
            yield response

    @contextmanager
    def _sent(
        self, method: str, path: str, body: Any, request_id: str | None = None
    ) -> Iterator[http.client.HTTPConnection]:
        named = {} if request_id is None else {"X-Request-Id": request_id}
        connection = http.client.HTTPConnection(self._address, timeout=PATIENCE)
        try:
            sent = None if body is None else json.dumps(body)
            connection.request(method, path, sent, {"Content-Type": "application/json", **self._headers, **named})
            yield connection
        finally:
            connection.close()
