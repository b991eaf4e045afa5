"""The blocks of an image encoder, each evaluated by itself.

What is put off is put into the queue of MLX's stream as a whole. The CPU backend lets nobody add to any queue while
there is a lot in all of them together, so that one encoder would hold up every engine; and nothing could be left in
the middle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
from mlx import nn


class EvaluatedBlock:
    """A block that is evaluated as it is called; `after` is called then. All else is the block's."""

    def __init__(self, block: Any, after: Callable[[], None]) -> None:
        self._block = block
        self._after = after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._block, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        made = self._block(*args, **kwargs)
        mx.eval(made)
        self._after()
        return made


def evaluate_blocks(model: Any, after: Callable[[], None]) -> int:
    """Have every block outside of the language model evaluated by itself; how many there are. Weights are read
    already: a model that is changed like this has no parameters to load.
    """
    count = 0
    for name, part in model.children().items():
        if name == "language_model":
            continue
        for owner, key, blocks in _stacks(part):
            owner[key] = [EvaluatedBlock(block, after) for block in blocks]
            count += len(blocks)
    return count


def _stacks(part: Any) -> Iterator[tuple[Any, str, list[Any]]]:
    """The lists of two or more modules of one class, with the module that they are in."""
    modules = part if isinstance(part, list) else [part]
    for module in [each for each in modules if isinstance(each, nn.Module)]:
        for key, child in list(module.items()):
            if _is_stack(child):
                yield module, key, child
            elif isinstance(child, nn.Module | list):
                yield from _stacks(child)


def _is_stack(child: Any) -> bool:
    if not isinstance(child, list) or len(child) < 2:  # noqa: PLR2004
        return False
    return isinstance(child[0], nn.Module) and len({type(block) for block in child}) == 1
