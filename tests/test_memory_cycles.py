"""Models that come and go a hundred times leave nothing behind."""

from __future__ import annotations

import time

import pytest
from daemon_process import Api, daemon
from memory_daemon import MB, metrics

# so that what the daemon says of its memory is never older than this
CONFIG = '[memory]\npoll_interval = "20ms"\n'
WEIGHTS = 'mlxd_memory_bytes{kind="weights"}'
FOOTPRINT = 'mlxd_memory_bytes{kind="footprint"}'
ACTIVE = 'mlxd_memory_bytes{kind="mlx_active"}'
# Bytes of MLX's own: random keys of its streams, and what the last command of a stream has not let go of, which is gone
# with the next one. One to three bytes of those were seen in one of ten cycles.
MLX_ITSELF = 64


async def one_cycle(api: Api) -> tuple[float, float]:
    """Load, ask and unload two models; then what MLX still holds and the footprint, in bytes."""
    for name in ("one", "two"):
        assert (await api.call("POST", f"/admin/models/{name}/load"))[0] == 200
        await api.text(name, max_tokens=4)
    for name in ("one", "two"):
        assert (await api.call("POST", f"/admin/models/{name}/unload"))[0] == 200
    end = time.monotonic() + 10
    while (figures := await metrics(api))[WEIGHTS] or figures[ACTIVE] > MLX_ITSELF:
        assert time.monotonic() < end, figures
    return figures[ACTIVE], figures[FOOTPRINT]


@pytest.mark.parametrize("cycles", [20, pytest.param(100, marks=pytest.mark.soak)])
async def test_loads_and_unloads_leave_the_footprint_and_every_byte_of_mlx_as_they_were(
    tmp_path, models_dir, tiny_model, other_tiny_model, cycles
):
    models = models_dir({"one": tiny_model, "two": other_tiny_model})
    with daemon(tmp_path / "d", models, CONFIG) as running:
        async with Api(running.url) as api:
            seen = [await one_cycle(api) for _ in range(cycles)]
    active, footprints = zip(*seen, strict=True)
    print(f"{footprints[0]} -> {footprints[-1]}, at most {max(footprints)}; {min(active)} of MLX")  # noqa: T201
    assert max(footprints) <= footprints[0] * 1.02 + 20 * MB, footprints
    assert min(active[:10]) == min(active[-10:]), active
