"""What a load leaves behind once its model is gone, and files that it cannot read."""

import mlx.core as mx
import pytest

from mlxd.engines.errors import LoadError, LoadFailure
from mlxd.engines.loader import check_config, load_text_model
from mlxd.engines.types import EngineConfig


def test_a_load_leaves_no_random_draws_that_nobody_will_ever_evaluate(tmp_path, micro_model):
    load_text_model(EngineConfig("micro", micro_model, 1000), lambda _: None, lambda: False)
    graph = tmp_path / "graph.dot"
    mx.export_to_dot(str(graph), mx.random.state[0])
    assert "label" not in graph.read_text(), "the random key waits for operations"


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "{", "[]", '{"model_type": 1}', "\ud800".encode("utf-8", "surrogatepass")]
)
def test_a_config_that_cannot_be_read_is_a_bad_file(tmp_path, text):
    (tmp_path / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(LoadError) as refused:
        check_config(tmp_path)
    assert refused.value.reason is LoadFailure.BAD_FILES
    assert "config.json" in str(refused.value)
