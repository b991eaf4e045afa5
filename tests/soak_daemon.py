"""Five small models for a soak, most of them in processes of their own, and what a reload may change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from sharded_harness import TWO
from tiny_encoders import build_encoder
from tiny_models import ANSWER_MARKERS, TOOL_TEMPLATE, build_reciting_model, build_tiny_model, cached, place_models

# On two ranks.
SPLIT = "split"
TEXTS = ("one", "caller", "three", SPLIT)
NAMES = (*TEXTS, "vectors")
# Names that come and go with reloads.
PASSING = ("gpt", "cold")
CALL = '{"name": "weather", "arguments": {"city": "Paris"}}'
PIECES = (
    "Let me",
    " see",
    ".",
    "<tool_call>",
    '{"name": "weather",',
    ' "arguments": {"city": ',
    '"Paris"}}',
    "</tool_call>",
)
RECITED = "".join(PIECES)
# Bytes of a process with MLX and its libraries, as loads are planned. With room for two and a half beside the daemon
# the five models do not fit together.
PROCESS = 112_600_000
ROOM = 2.5

# A request waits at most for its model, and once more for memory; then it may be at work, be stopped with its process
# and wait for an unload.
QUEUE, ANSWER, UNLOAD = 20, 5, 10
# A process that was stopped before its first word counts as silent after 30 seconds; a load that only stalls is wrong.
STALL = 40
# Bytes of prompt prefixes on the disk, for each model in a process and for all others together.
DISK = 8_000_000
# Seconds within which everything that was asked for ends on a machine that does other things, too.
PATIENCE = 2 * QUEUE + ANSWER + UNLOAD + STALL + 25

_FIXED = f"""
[server]
drain_timeout = "10s"
keepalive_interval = "1s"

[residency]
queue_timeout = "{QUEUE}s"
unload_timeout = "{UNLOAD}s"
load_stall_timeout = "{STALL}s"
retry_backoff = "500ms"
max_wait = "MAX_WAIT"
max_loaded = MAX_LOADED
queue_size = QUEUE_SIZE

[supervision]
answer_timeout = "{ANSWER}s"
hang_timeout = "20s"
loop_timeout = "10s"

[engine]
max_tokens = 100
prefix_cache_disk = {DISK}
max_running = MAX_RUNNING
"""


@dataclass(frozen=True)
class Variant:
    """What a reload may change."""

    room: float = ROOM
    max_wait: str = "2s"
    max_loaded: int = 0
    queue_size: int = 256
    max_running: int = 8
    alias_of: str = "one"
    ttl: str = "never"
    isolation: str = "thread"

    @classmethod
    def drawn(cls, dice: Random) -> Variant:
        return cls(
            dice.choice([ROOM, ROOM, ROOM, 1.5, 4]),
            dice.choice(["500ms", "2s", "5s"]),
            dice.choice([0, 0, 0, 1, 3]),
            dice.choice([4, 256, 256, 256]),
            dice.choice([1, 4, 8]),
            dice.choice(TEXTS),
            dice.choice(["never", "1s"]),
            dice.choice(["thread", "thread", "process"]),
        )

    def text(self, base: int | None) -> str:
        """The file; without the daemon's own bytes there is no ceiling."""
        text = _FIXED
        for name in ("max_wait", "max_loaded", "queue_size", "max_running"):
            text = text.replace(name.upper(), str(getattr(self, name)))
        memory = "" if base is None else f"[memory]\nceiling = {int((base + self.room * PROCESS) / 0.9)}\n"
        return text + memory + "".join(map(self._entry, NAMES))

    def _entry(self, name: str) -> str:
        isolation = self.isolation if name == "three" else "process"
        passing = 'aliases = ["gpt"]\npresets = [{ name = "cold", sampling = { max_tokens = 3 } }]\n'
        lines = [f'[[model]]\nname = "{name}"', f'engine = {{ isolation = "{isolation}" }}', f'ttl = "{self.ttl}"']
        if name == SPLIT:
            lines.append('hosts = ["localhost", "localhost"]')
        return "\n".join(lines) + "\n" + (passing if name == self.alias_of else "")


def soak_models(folder: Path) -> Path:
    """The five models, in a folder of models."""
    caller = partial(build_reciting_model, pieces=PIECES, template=TOOL_TEMPLATE, added=ANSWER_MARKERS)
    built: Sequence[Path] = (
        cached("tiny", build_tiny_model),
        caller(folder / "caller"),
        cached("other", partial(build_tiny_model, seed=1)),
        TWO.folder,
        build_encoder(folder / "vectors"),
    )
    return place_models(folder / "models", dict(zip(NAMES, built, strict=True)))
