#!/usr/bin/env python3
"""The inside of raw_mlx.py: work comes in, and figures go out, as JSON lines.

usage: raw_worker.py
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from mlx_lm import load, stream_generate
from mlx_lm.generate import BatchGenerator


class Worker:
    """One method for each kind of work."""

    def __init__(self) -> None:
        self._models: dict[str, tuple[Any, Any]] = {}

    def nothing(self, _: dict[str, Any]) -> dict[str, Any]:
        """Ready."""
        return {}

    def load(self, work: dict[str, Any]) -> dict[str, Any]:
        """A model that is kept, or a fresh one's load and first token."""
        started = time.perf_counter()
        model, tokenizer = load(work["model"])
        if work["fresh"]:
            next(stream_generate(model, tokenizer, self._encoded(tokenizer, "Hello"), max_tokens=1))
        else:
            self._models[work["model"]] = model, tokenizer
        return {"seconds": time.perf_counter() - started}

    def single(self, work: dict[str, Any]) -> dict[str, Any]:
        """One prompt, with the text made too."""
        model, tokenizer = self._models[work["model"]]
        started = time.perf_counter()
        prompt = self._encoded(tokenizer, work["prompts"][0])
        first, tokens = None, 0
        for response in stream_generate(model, tokenizer, prompt, max_tokens=work["max_tokens"][0]):
            first = first or time.perf_counter()
            tokens = response.generation_tokens
        assert first is not None
        return {"seconds": time.perf_counter() - started, "ttft": first - started, "tokens": tokens}

    def batch(self, work: dict[str, Any]) -> dict[str, Any]:
        """Prompts at once, tokens only."""
        model, tokenizer = self._models[work["model"]]
        started = time.perf_counter()
        batch = BatchGenerator(model, stop_tokens=[[token] for token in tokenizer.eos_token_ids])
        prompts = [self._encoded(tokenizer, prompt) for prompt in work["prompts"]]
        left = set(batch.insert(prompts, max_tokens=work["max_tokens"]))
        tokens = 0
        while left:
            responses = batch.next_generated()
            tokens += len(responses)
            left -= {response.uid for response in responses if response.finish_reason is not None}
        seconds = time.perf_counter() - started
        batch.close()
        return {"seconds": seconds, "tokens": tokens}

    @staticmethod
    def _encoded(tokenizer: Any, prompt: str) -> list[int]:
        chat = [{"role": "user", "content": prompt}]
        encoded: list[int] = tokenizer.apply_chat_template(chat, add_generation_prompt=True)
        return encoded


def main() -> None:
    worker = Worker()
    for line in sys.stdin:
        work = json.loads(line)
        print(json.dumps(getattr(worker, work["work"])(work)), flush=True)


if __name__ == "__main__":
    main()
