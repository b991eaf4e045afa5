"""Reads GET /metrics as Prometheus does."""

from __future__ import annotations

from collections.abc import Mapping

from daemon_process import Api
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]
Samples = Mapping[tuple[str, Labels], float]


async def families(api: Api) -> list[Metric]:
    async with api._session.get("/metrics") as response:
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/plain; version=")
        return list(text_string_to_metric_families(await response.text()))


async def scrape(api: Api) -> Samples:
    """Every sample by its name and labels."""
    samples = [each for family in await families(api) for each in family.samples]
    return {(each.name, frozenset(each.labels.items())): each.value for each in samples}


def sample(found: Samples, name: str, **labels: str) -> float:
    """One of them. Raises KeyError for one that is not there."""
    return found[name, frozenset(labels.items())]


def delta(before: Samples, after: Samples, name: str, **labels: str) -> float:
    """By how much a sample has grown; one that is not there is 0."""
    key = name, frozenset(labels.items())
    return after.get(key, 0) - before.get(key, 0)
