"""Blocks of quantised weights decode as ggml decodes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mlxd.engines.gguf_file import TENSOR_TYPES, TensorInfo
from mlxd.engines.gguf_tensors import dense, read_tensor

# type: where its half-precision numbers are, every eighth weight, the sum; from ggml's own implementation
DECODED = {
    "Q4_0": ([0], [-1.5, 0.5, 2.5, -3.5, -1.5, -1.5, -2.5, -4.0], -5.0),
    "Q4_1": ([0, 2], [5.25, 7.25, 1.25, 3.25, 1.25, 4.75, -0.25, 1.25], 109.0),
    "Q5_0": ([0], [-3.5, -1.5, -7.5, 2.5, -5.5, 1.5, -8.0, -3.0], 19.0),
    "Q5_1": ([0, 2], [7.25, 9.25, 3.25, 5.25, 4.75, 7.75, 9.25, 1.75], 261.0),
    "Q8_0": ([0], [42.5, 44.5, 30.5, 0.5, -45.5, 20.5, -57.5, -23.5], 96.0),
    "Q2_K": ([80, 82], [16.5, 4.0, 14.25, 3.0, 7.5, 10.25, 9.0, 4.75], 2096.0),
    "Q3_K": ([108], [40.5, -5.5, -0.0, -8.5, -5.0, -4.0, 7.0, -27.0], 654.0),
    "Q4_K": ([0, 2], [193.25, 37.75, 18.75, 159.25, 234.0, 106.25, 211.75, 21.5], 37984.0),
    "Q5_K": ([0, 2], [633.25, 226.75, 26.75, 218.25, 738.0, 367.25, 211.75, 24.5], 82392.0),
    "Q6_K": ([208], [862.5, 409.5, 275.0, -10.0, 34.5, -274.5, 729.0, -712.0], 3600.0),
}


@pytest.mark.parametrize("name", DECODED)
def test_a_quantised_block_decodes_as_ggml_does(tmp_path: Path, name: str):
    halves, expected, total = DECODED[name]
    block, size = next((block, size) for label, block, size in TENSOR_TYPES.values() if label == name)
    raw = bytearray((i * i * 7 + i * 31 + 11) % 256 for i in range(size))
    for index, at in enumerate(halves):
        raw[at : at + 2] = np.float16(0.5 - index * 0.75).tobytes()
    (tmp_path / "block").write_bytes(raw)
    info = TensorInfo("t", (1, block), name, 0, size)
    weights = dense(read_tensor(tmp_path / "block", info), info)
    assert weights.shape == (1, block)
    assert weights[0, 3 :: block // 8].tolist() == expected
    assert weights.astype(np.float64).sum() == total
