"""More long answers at once than there is memory for, measured for real: everybody is served or told why not."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from daemon_process import Api, daemon
from memory_daemon import EXCESS, MB, SERVED, Watched, outcomes, resting_bytes, wide_model
from tiny_models import place_models

REQUESTS = 24
# What the footprint may be above the ceiling between two measurements.
MOST_OVER = 0.05


@dataclass(frozen=True)
class Rush:
    """Requests that come all at once, for these models in turn; `extra` is what the ceiling leaves them, in bytes.

    The first `long` of them have prompts of 1500 tokens.
    """

    models: tuple[str, ...]
    extra: int
    tokens: int
    long: int = 0

    @property
    def requests(self) -> list[tuple[str, str, int]]:
        words = ["word " * 490 if number < self.long else "" for number in range(REQUESTS)]
        names = [self.models[number % len(self.models)] for number in range(REQUESTS)]
        numbered = enumerate(zip(names, words, strict=True))
        return [(name, f"{number} {text}", self.tokens) for number, (name, text) in numbered]


ONE = Rush(("a",), 120 * MB, 260)
TWO = Rush(("a", "b"), 200 * MB, 260, long=4)
MORE = Rush(("a",), 250 * MB, 2000)
MOST = Rush(("a", "b"), 300 * MB, 1200, long=12)


@pytest.mark.parametrize(
    "rush",
    [
        pytest.param(ONE, id="one-model", marks=pytest.mark.soak),
        pytest.param(TWO, id="two-models-and-long-prompts"),
        pytest.param(MORE, id="one-model-long-answers", marks=pytest.mark.soak),
        pytest.param(MOST, id="two-models-long-answers-and-prompts", marks=pytest.mark.soak),
    ],
)
async def test_everybody_is_served_in_full_and_the_ceiling_is_kept(tmp_path, rush):
    models = place_models(tmp_path / "models", {name: wide_model(seed) for seed, name in enumerate(rush.models)})
    ceiling = rush.extra + await resting_bytes(tmp_path / "resting", models, rush.models)
    with daemon(tmp_path / "d", models, f"[memory]\nceiling = {ceiling}\n") as running:
        async with Api(running.url) as api:
            for name in rush.models:
                await api.text(name)
            with Watched(running.process.pid) as watched:
                counts = await outcomes(running.url, rush.requests)
            interrupted = [event for event in running.events() if event["event"] == "engine.preempted"]
            print(f"{dict(counts)}, {len(interrupted)} preempted, peak {watched.over(ceiling):+.1%}")  # noqa: T201
            assert set(counts) <= {SERVED, *EXCESS}
            assert counts[SERVED] == REQUESTS, counts
            assert watched.over(ceiling) < MOST_OVER
            # it was tight
            assert interrupted
            for name in rush.models:
                assert await api.text(name)
                model = await api.get(f"/admin/models/{name}")
                assert (model["leases"], model["engine"]["running"], model["engine"]["waiting"]) == (0, 0, 0)
