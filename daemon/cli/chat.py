"""A conversation in the terminal."""

# ruff: noqa: PLC0415 - readline is imported for its effect on `input`, and only where lines are read from a terminal

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field

import click

from mlxd.daemon.cli.address import DaemonAddress
from mlxd.daemon.cli.answer import ChatTurn, Sampling, show_answer
from mlxd.daemon.cli.client import DaemonClient
from mlxd.daemon.cli.failures import CommandFailed
from mlxd.daemon.cli.screen import AnswerScreen

_PROMPT = ">>> "
_HELP = """\
/clear          forget the conversation
/system [TEXT]  set the system message, or take it away
/exit           leave, as Ctrl-D does
Ctrl-C ends the current answer. A line that starts with a space is sent as it is."""


@dataclass(slots=True)
class Conversation:
    """What was said so far; the system message is kept apart, so that it survives a fresh start.

    `images` go with the next question, until one is answered.
    """

    system: str | None = None
    images: tuple[str, ...] = ()
    turns: list[ChatTurn] = field(default_factory=list)

    def asking(self, question: str) -> list[ChatTurn]:
        """The messages of a request that asks the next question."""
        system = [ChatTurn("system", self.system)] if self.system else []
        return [*system, *self.turns, self._asked(question)]

    def keep(self, question: str, answer: str) -> None:
        """Remember a question and its answer; one without any answer never happened."""
        if answer:
            self.turns += [self._asked(question), ChatTurn("assistant", answer)]
            self.images = ()

    def _asked(self, question: str) -> ChatTurn:
        return ChatTurn("user", question, self.images)


class Chat:
    """Reads lines from the terminal and answers them until the user leaves."""

    def __init__(self, address: DaemonAddress, model: str, sampling: Sampling, conversation: Conversation) -> None:
        self._address = address
        self._model = model
        self._sampling = sampling
        self._conversation = conversation

    def run(self) -> None:
        """Talk until Ctrl-D or /exit."""
        _enable_line_editing()
        click.echo(f"Chatting with {self._model}. /help lists the commands, Ctrl-D ends.", err=True)
        while (line := _read_line()) is not None:
            if line.startswith("/"):
                if not self._command(line):
                    return
            elif line.strip():
                self._answer(line.strip())

    def _command(self, line: str) -> bool:
        """Do what a command says; False to leave."""
        name, _, argument = line.strip().partition(" ")
        if name == "/exit":
            return False
        if name == "/clear":
            self._conversation.turns.clear()
            _say("forgot the conversation")
        elif name == "/system":
            self._conversation.system = argument.strip() or None
            _say("set the system message" if self._conversation.system else "took the system message away")
        else:
            _say(_HELP if name == "/help" else f"unknown command {name}\n{_HELP}")
        return True

    def _answer(self, question: str) -> None:
        screen = AnswerScreen()
        try:
            asyncio.run(self._ask(question, screen))
        except KeyboardInterrupt:
            _say("(cancelled)")
        except CommandFailed as failure:
            failure.show()
        self._conversation.keep(question, screen.text)

    async def _ask(self, question: str, screen: AnswerScreen) -> None:
        async with DaemonClient(self._address) as client:
            await show_answer(client, self._model, self._conversation.asking(question), self._sampling, screen)


def _enable_line_editing() -> None:
    try:
        import readline  # noqa: F401
    except ImportError:
        # some builds of Python have none; lines can be typed without it
        return


def _read_line() -> str | None:
    """The next line, None at the end; Ctrl-C gives the line up."""
    on_terminal = sys.stdout.isatty()
    if not on_terminal:
        sys.stderr.write(_PROMPT)
        sys.stderr.flush()
    try:
        return input(_PROMPT if on_terminal else "")
    except EOFError:
        _say("")
        return None
    except KeyboardInterrupt:
        _say("\nCtrl-D or /exit ends the chat")
        return ""


def _say(text: str) -> None:
    click.echo(text, err=True)
