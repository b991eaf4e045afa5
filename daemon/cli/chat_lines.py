"""Lines that people type, and the file that remembers them."""

# ruff: noqa: PLC0415 - readline is imported for its effect on `input`, and only where lines are read from a terminal

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import click

KEPT_LINES = 1000

_PROMPT = ">>> "
_MORE = "... "
_QUOTES = '"""'


def history_file(environ: Mapping[str, str]) -> Path:
    """Where lines are remembered."""
    named = environ.get("XDG_STATE_HOME")
    state = Path(named) if named else Path(environ.get("HOME", "~")).expanduser() / ".local" / "state"
    return state / "mlxd" / "chat"


class ChatLines:
    """Reads lines. With `history`, a file, those of earlier chats come back with the arrow keys."""

    def __init__(self, history: Path | None) -> None:
        self._history = history
        self._on_terminal = sys.stdout.isatty()

    def open(self) -> None:
        """Make lines editable, and bring back those of earlier chats; what cannot be read is left alone."""
        try:
            import readline
        except ImportError:
            # some builds of Python have none; lines can be typed without it
            self._history = None
            return
        if self._history is None:
            return
        try:
            self._history.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # nobody else is to read what was asked
            os.close(os.open(self._history, os.O_RDONLY | os.O_CREAT, 0o600))
            if self._history.stat().st_size:  # libedit takes an empty file for a broken one
                readline.read_history_file(self._history)
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Remember the lines of this chat."""
        if self._history is None:
            return
        import readline

        readline.set_history_length(KEPT_LINES)
        try:
            readline.write_history_file(self._history)
        except OSError as error:
            self._give_up(error)

    def read(self) -> str | None:
        """The next line, or several between triple quotes; None at the end. Ctrl-C gives up what was typed."""
        try:
            line = self._input(_PROMPT)
            if not line.lstrip().startswith(_QUOTES):
                return line
            text = line.lstrip().removeprefix(_QUOTES)
            while _QUOTES not in text:
                text += "\n" + self._input(_MORE)
            return " " + text.partition(_QUOTES)[0].strip("\n")
        except EOFError:
            click.echo("", err=True)
            return None
        except KeyboardInterrupt:
            click.echo("\nCtrl-D or /exit ends the chat", err=True)
            return ""

    def _input(self, prompt: str) -> str:
        if not self._on_terminal:
            sys.stderr.write(prompt)
            sys.stderr.flush()
        return input(prompt if self._on_terminal else "")

    def _give_up(self, error: OSError) -> None:
        click.echo(f"mlxd: lines are not remembered: {error}", err=True)
        self._history = None
