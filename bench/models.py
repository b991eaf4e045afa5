"""Models to measure and what they are asked."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from smollm2 import smollm2_folder
from tiny_models import build_tiny_model, cached

TEXT = "the quick brown fox jumps over the lazy dog and runs away from the big bad wolf"


def model_path(name: str) -> Path:
    """The folder of micro, tiny, mid or smollm2, made if it is not there."""
    if name == "smollm2":
        return smollm2_folder()
    return cached(name, lambda out: build_tiny_model(out, size=name))


def prompt_of(words: int, name: str = "tiny") -> str:
    """A prompt of some words, about a token each; SmolLM2 gives a long answer to it."""
    text = TEXT.split()
    body = " ".join(text[number % len(text)] for number in range(words))
    return f"Write a long story about this: {body}." if name == "smollm2" else body


def salted(prompt: str, salt: object) -> str:
    """The same prompt, of which no server has kept anything: another beginning."""
    return f"[{salt}] {prompt}"
