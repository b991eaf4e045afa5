"""Shows an answer on a terminal as formatted Markdown while it comes."""

# rich is imported when an answer is formatted: what shows none starts without it.
# ruff: noqa: PLC0415

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from mlxd.daemon.cli.plain import printable
from mlxd.daemon.cli.screen import AnswerScreen

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

# Seconds between two looks of the terminal at the block that is being written.
_REFRESH = 0.08
# Lines of the terminal that the block leaves free: one for the cursor, one that tells where it began.
_MARGIN = 2

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


def complete_blocks(text: str) -> tuple[list[str], str]:
    """Cut Markdown at blank lines outside of fenced code: the blocks that nothing can change any more, and the rest."""
    blocks, block, fence = [], "", ""
    for line in text.splitlines(keepends=True):
        found = _FENCE.match(line)
        if found and not fence:
            fence = found[1]
        elif found and found[1].startswith(fence) and not line[found.end() :].strip():
            fence = ""
        if line.strip() or fence or not line.endswith("\n"):
            block += line
        elif block.strip():
            blocks.append(block)
            block = ""
    return blocks, block


class MarkdownScreen(AnswerScreen):
    """See AnswerScreen. Blocks are formatted for good as they become complete; the last one is shown as it grows, at
    most as many lines of it as the terminal has.
    """

    def __init__(self) -> None:
        super().__init__()
        self._pending = ""
        self._shown = 0
        self._live: Live | None = None
        self._refreshed = 0.0

    def write(self, piece: str) -> None:
        """Show the next piece of the answer."""
        if not piece:
            return
        self._clear_note()
        self.text += piece
        blocks, self._pending = complete_blocks(self._pending + printable(piece))
        for block in blocks:
            self._print(block)
        now = time.monotonic()
        if now - self._refreshed >= _REFRESH or blocks:
            self._refreshed = now
            self._screen().update(self._tail(), refresh=True)

    def end(self) -> None:
        """Show what is left for good."""
        self._clear_note()
        if self._live is None:
            return
        pending, self._pending = self._pending, ""
        if pending.strip():
            self._print(pending)
        self._live.update("")
        self._live.stop()
        self._live = None

    def _print(self, block: str) -> None:
        live = self._screen()
        live.update("", refresh=True)
        if self._shown:
            live.console.print()
        live.console.print(_formatted(block))
        self._shown += 1

    def _tail(self) -> RenderableType:
        from rich.text import Text

        lines = self._pending.splitlines()
        return Text("\n".join(lines[-max(1, self._screen().console.height - _MARGIN) :]))

    def _screen(self) -> Live:
        from rich.console import Console
        from rich.live import Live

        if self._live is None:
            console = Console(force_terminal=True, force_jupyter=False, highlight=False)
            self._live = Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop")
            self._live.start()
        return self._live


def _formatted(block: str) -> RenderableType:
    """A block as it looks. Nothing that was said is left out: HTML stays as it is, and so do the places of links, which
    other blocks name.
    """
    from markdown_it import MarkdownIt
    from rich.markdown import Markdown

    # a link's address is shown: where it leads is the model's word
    shown = Markdown(block, hyperlinks=False)
    parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"]).disable("reference")
    shown.parsed = parser.parse(block)
    return shown
