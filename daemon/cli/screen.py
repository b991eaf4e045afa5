"""Where an answer appears: its text on standard output, news of the wait for it on standard error."""

from __future__ import annotations

import shutil
import sys

from mlxd.daemon.cli.plain import one_line, printable

_CLEAR_LINE = "\r\x1b[K"
_THOUGHT_SHOWN = 60


class AnswerScreen:
    """Shows one answer as it comes. `text` is what came so far; `end` is called once, whatever happened."""

    def __init__(self) -> None:
        self.text = ""
        self._thought = ""
        self._to_terminal = sys.stdout.isatty()
        self._shows_notes = sys.stderr.isatty()
        self._has_note = False

    def note(self, text: str) -> None:
        """Show a passing note, on a terminal and before the text begins; the next one replaces it."""
        if not self._shows_notes or self.text or not text:
            return
        # a line that fills the width would wrap and could not be cleared
        width = shutil.get_terminal_size().columns - 1
        sys.stderr.write(_CLEAR_LINE + one_line(text, width))
        sys.stderr.flush()
        self._has_note = True

    def think(self, piece: str) -> None:
        """Show what the model thinks before it answers as a passing note: the end of it, on one line."""
        if not piece:
            return
        self._thought = (self._thought + piece)[-_THOUGHT_SHOWN:]
        self.note(f"thinking: {' '.join(self._thought.split())}")

    def write(self, piece: str) -> None:
        """Show the next piece of the answer at once."""
        if not piece:
            return
        self._clear_note()
        self.text += piece
        sys.stdout.write(printable(piece) if self._to_terminal else piece)
        sys.stdout.flush()

    def end(self) -> None:
        """Leave the cursor at the start of a line."""
        self._clear_note()
        if self.text and not self.text.endswith("\n"):
            sys.stdout.write("\n")
            sys.stdout.flush()

    def _clear_note(self) -> None:
        if self._has_note:
            sys.stderr.write(_CLEAR_LINE)
            sys.stderr.flush()
            self._has_note = False
