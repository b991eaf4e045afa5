"""A conversation in the terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

import click

from mlxd.daemon.cli.address import DaemonAddress
from mlxd.daemon.cli.answer import ChatTurn, Sampling, show_answer
from mlxd.daemon.cli.chat_lines import ChatLines
from mlxd.daemon.cli.client import DaemonClient
from mlxd.daemon.cli.failures import CommandFailed
from mlxd.daemon.cli.images import image_url
from mlxd.daemon.cli.screen import AnswerScreen

_HELP = '''\
/model [NAME]   go on with another model, or tell which one it is
/system [TEXT]  set the system message, or take it away
/image FILE     send an image with the next question
/stats          tell how the last answer came about
/clear          forget the conversation
/exit           leave, as Ctrl-D does
Ctrl-C ends the current answer. A line that starts with a space is sent as it is; """ begins and ends several lines.'''


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
    """Reads lines from the terminal and answers them until the user leaves. `screen` makes a place for an answer."""

    def __init__(
        self,
        address: DaemonAddress,
        model: str,
        sampling: Sampling,
        conversation: Conversation,
        screen: Callable[[], AnswerScreen],
    ) -> None:
        self._address = address
        self._model = model
        self._sampling = sampling
        self._conversation = conversation
        self._screen = screen
        self._statistics: str | None = None
        self._commands: Mapping[str, Callable[[str], None]] = {
            "/model": self._change_model,
            "/system": self._change_system,
            "/image": self._add_image,
            "/stats": lambda _: _say(self._statistics or "nothing was answered yet"),
            "/clear": self._clear,
            "/help": lambda _: _say(_HELP),
        }

    def run(self, lines: ChatLines) -> None:
        """Talk until Ctrl-D or /exit. Raises CommandFailed for a model that there is not."""
        self._check(self._model)
        lines.open()
        _say(f"Chatting with {self._model}. /help lists the commands, Ctrl-D ends.")
        try:
            while (line := lines.read()) is not None and line.rstrip() != "/exit":
                self._take(line)
        finally:
            lines.close()

    def _take(self, line: str) -> None:
        if not line.startswith("/"):
            if line.strip():
                self._answer(line.strip())
            return
        name, _, argument = line.strip().partition(" ")
        do = self._commands.get(name)
        if do is None:
            _say(f"unknown command {name}\n{_HELP}")
            return
        try:
            do(argument.strip())
        except CommandFailed as failure:
            failure.show()

    def _clear(self, _: str) -> None:
        self._conversation.turns.clear()
        self._conversation.images = ()
        _say("forgot the conversation")

    def _change_system(self, text: str) -> None:
        self._conversation.system = text or None
        _say("set the system message" if text else "took the system message away")

    def _change_model(self, name: str) -> None:
        if name:
            self._check(name)
            self._model = name
        _say(f"the model is {self._model}")

    def _add_image(self, path: str) -> None:
        if not path:
            raise CommandFailed("expected a file: /image photo.jpg")
        try:
            url = image_url(path.strip("'\""))
        except click.BadParameter as error:
            raise CommandFailed(error.message) from error
        self._conversation.images += (url,)
        _say(f"{len(self._conversation.images)} images go with the next question")

    def _answer(self, question: str) -> None:
        screen = self._screen()
        try:
            self._statistics = asyncio.run(self._ask(question, screen))
        except KeyboardInterrupt:
            _say("(cancelled)")
        except CommandFailed as failure:
            failure.show()
        self._conversation.keep(question, screen.text)

    async def _ask(self, question: str, screen: AnswerScreen) -> str | None:
        turns = self._conversation.asking(question)
        async with DaemonClient(self._address) as client:
            return await show_answer(client, self._model, turns, self._sampling, screen, counts=True)

    def _check(self, model: str) -> None:
        async def look() -> None:
            async with DaemonClient(self._address) as client:
                await client.get(f"/v1/models/{quote(model, safe='/')}")

        asyncio.run(look())


def _say(text: str) -> None:
    click.echo(text, err=True)
