"""Who may import what: the rooms' graph and the libraries of each room, read from the source."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = {
    "memory": {"memory"},
    "engines": {"engines"},
    "registry": {"registry", "engines", "memory"},
    "daemon": {"daemon", "registry", "engines", "memory"},
}
# Files that run on a lane, or in the import command; everything else must start without MLX.
MLX_FILES = {
    "engines/cache_sizes.py",
    "engines/embedding_runner.py",
    "engines/encoder_bert.py",
    "engines/encoder_causal.py",
    "engines/encoder_loader.py",
    "engines/first_look.py",
    "engines/gguf.py",
    "engines/gguf_weights.py",
    "engines/guide_processor.py",
    "engines/loader.py",
    "engines/logprobs.py",
    "engines/mlx_backend.py",
    "engines/row_faults.py",
    "engines/sampling.py",
    "engines/sampling_filters.py",
    "engines/cache_layers.py",
    "engines/kept_prefixes.py",
    "engines/mlx_limits.py",
    "engines/peak_meter.py",
    "engines/prefix_cache.py",
    "engines/prefix_disk.py",
    "engines/prompt_batch.py",
    "engines/row_group.py",
    "engines/runner_base.py",
    "engines/speculative_runner.py",
    "engines/sentence_head.py",
    "engines/serial_vision_inputs.py",
    "engines/serial_vision_look.py",
    "engines/serial_vision_row.py",
    "engines/serial_vision_runner.py",
    "engines/serial_vision_sequence.py",
    "engines/text_runner.py",
    "engines/sharded/agreed_model.py",
    "engines/sharded/follower_load.py",
    "engines/sharded/mirror.py",
    "engines/sharded/sharded_loader.py",
    "engines/answer_format.py",
    "engines/stop_text.py",
    "engines/vision_backend.py",
    "engines/vision_blocks.py",
    "engines/vision_encoder.py",
    "engines/vision_loader.py",
    "engines/vision_model.py",
    "engines/vision_processor.py",
    "engines/vision_rows.py",
}
# Whoever compiles guides; they must start without MLX, as the API calls them.
GUIDE_FILES = {"engines/guidance.py", "engines/guide_follower.py"}
HEAVY = {"mlx", "mlx_lm", "mlx_vlm", "transformers"}
FILES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""


def test_there_is_something_to_check():
    assert len(FILES) > 20
    assert {path.relative_to(ROOT).parts[0] for path in FILES} == set(ROOMS)
    assert {str(path.relative_to(ROOT)) for path in FILES} >= MLX_FILES


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_imports_only_what_its_room_may(path):
    name = str(path.relative_to(ROOT))
    room = path.relative_to(ROOT).parts[0]
    for module in imports(path):
        top, _, rest = module.partition(".")
        assert top not in ROOMS, f"{name} imports the bare name {module}"
        if top == "mlxd":
            assert rest.split(".")[0] in ROOMS[room], f"{name} may not import {module}"
        if top == "aiohttp":
            assert room == "daemon", f"{name} imports aiohttp"
        if top in HEAVY:
            assert name in MLX_FILES, f"{name} imports {module}"
        if top == "llguidance":
            assert name in GUIDE_FILES, f"{name} imports {module}"
        if top == "huggingface_hub":
            assert name == "daemon/downloads/hub.py", f"{name} imports huggingface_hub"
        if top == "psutil":
            assert name == "memory/probe.py", f"{name} imports psutil"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_keeps_no_mutable_state(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Global)], f"{path} uses global"
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List | ast.Set | ast.ListComp):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            assert names == ["__all__"], f"{path}:{node.lineno} is a module-level list or set; make it a tuple"


# What a facade may use of another: only what is the same on the wire.
FACADES = {
    "anthropic": set(),
    "embeddings": set(),
    "ollama": set(),
    "openai": set(),
    "responses": {"openai"},
    "routers": {"openai"},
}


def facade_of(module: str) -> str | None:
    """The facade that a module belongs to."""
    parts = module.split(".")
    return parts[3] if parts[:3] == ["mlxd", "daemon", "api"] and len(parts) > 3 and parts[3] in FACADES else None


def test_every_facade_is_known():
    assert {path.parent.name for path in (ROOT / "daemon" / "api").glob("*/__init__.py")} == FACADES.keys()


@pytest.mark.parametrize("facade", FACADES)
def test_a_facade_uses_no_other(facade):
    used = {facade_of(module) for path in (ROOT / "daemon" / "api" / facade).glob("*.py") for module in imports(path)}
    assert used - {None, facade} <= FACADES[facade]
