"""MLX's own limits, which are the process's and not an engine's: set here and nowhere else."""

from __future__ import annotations

import mlx.core as mx

# Of the ceiling, for free buffers that MLX keeps on an accelerator. What a step frees the next one wants again; more
# than that only makes a model that left stay in part.
CACHE_SHARE = 1 / 8


def apply_limits(ceiling_bytes: int) -> None:
    """Bound what MLX allocates, keeps and wires on an accelerator. On the CPU the C library is the cache, and MLX's
    defaults stay.

    Wired memory gets the device's recommended working set, which is what each of mlx-lm's generators sets again: it
    must not change while anything is evaluated.
    """
    if mx.default_device().type == mx.DeviceType.cpu:
        return
    mx.set_memory_limit(ceiling_bytes)
    mx.set_cache_limit(int(ceiling_bytes * CACHE_SHARE))
    recommended = mx.device_info().get("max_recommended_working_set_size")
    if isinstance(recommended, int):
        mx.set_wired_limit(recommended)
