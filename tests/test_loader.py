"""What a load leaves behind once its model is gone."""

import mlx.core as mx

from mlxd.engines.loader import load_text_model
from mlxd.engines.types import EngineConfig


def test_a_load_leaves_no_random_draws_that_nobody_will_ever_evaluate(tmp_path, micro_model):
    load_text_model(EngineConfig("micro", micro_model, 1000), lambda _: None, lambda: False)
    graph = tmp_path / "graph.dot"
    mx.export_to_dot(str(graph), mx.random.state[0])
    assert "label" not in graph.read_text(), "the random key waits for operations"
