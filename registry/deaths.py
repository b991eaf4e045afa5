"""Deaths of a model's engines in a row: how many, what is known of the last one, and which requests were there.

Pure functions; times are monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

# Why a load failed, or a model is in trouble, when its engine died.
CRASHED = "crashed"
# Seconds in memory, over all loads since the last death, after which the deaths before are forgotten.
STABLE = 600.0
# After so many deaths in a row a model is not started by itself any more.
QUARANTINE = 5

# Fingerprints that are kept, and that a decision and a message name.
_KEPT, _LISTED, _NAMED = 256, 16, 3
# Seconds of a step that are worth telling.
_LONG = 0.1


@dataclass(frozen=True, slots=True)
class Deaths:
    """`count` of them, the last one at `last`; the model was in memory for `served` seconds since then.

    `facts` are of the last one. `suspects` are the fingerprints of the requests that an engine was at work on, each
    with the number of these deaths that it was there for; the highest first, then the latest.
    """

    count: int = 0
    last: float = 0.0
    served: float = 0.0
    facts: Mapping[str, object] = field(default_factory=dict)
    suspects: tuple[tuple[str, int], ...] = ()

    @property
    def quarantined(self) -> bool:
        return self.count >= QUARANTINE


def one_more(known: Deaths | None, facts: Mapping[str, object], suspects: Sequence[str], now: float) -> Deaths:
    """An engine died, with these requests."""
    before = known or Deaths()
    seen = dict(before.suspects)
    there = {name: seen.pop(name, 0) + 1 for name in suspects}
    ranked = sorted((there | seen).items(), key=lambda suspect: -suspect[1])
    return Deaths(before.count + 1, now, facts=facts, suspects=tuple(ranked[:_KEPT]))


def outlived(known: Deaths | None, loaded_at: float, now: float) -> Deaths | None:
    """What is left of the deaths when a load that was ready at `loaded_at` leaves memory; None once all went well for
    long enough.
    """
    if known is None:
        return None
    served = known.served + max(0.0, now - max(loaded_at, known.last))
    return replace(known, served=served) if served < STABLE else None


def told(deaths: Deaths) -> dict[str, object]:
    """What a decision says of them."""
    return {"deaths": deaths.count, "facts": dict(deaths.facts), "suspects": dict(deaths.suspects[:_LISTED])}


def describe(model: str, deaths: Deaths, said: str) -> str:
    """For people: what the last one `said`, how it ended, how often, who is suspected, and what can be done."""
    parts = [said, *(words for words in _end(deaths.facts) if words not in said)]
    if deaths.count > 1:
        parts.append(f"died {deaths.count} times in a row")
    if deaths.suspects:
        parts.append(f"suspect requests: {_suspects(deaths)}")
    if deaths.quarantined:
        parts.append(f"it is not started again by itself; `mlxd load {model}` tries again at once")
    return "; ".join(parts)


def _end(facts: Mapping[str, object]) -> list[str]:
    words = []
    if (signal := facts.get("signal")) is not None:
        words.append(f"killed by {signal}")
    elif (code := facts.get("exit_code")) is not None:
        words.append(f"exit code {code}")
    if isinstance(age := facts.get("step_age_s"), float) and age >= _LONG:
        words.append(f"{round(age, 1):g} s after its last sign of life")
    return words


def _suspects(deaths: Deaths) -> str:
    named = [f"{name} (in {times} of {deaths.count})" for name, times in deaths.suspects[:_NAMED]]
    more = len(deaths.suspects) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")
