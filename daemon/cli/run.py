"""`mlxd run`: one answer, or a chat."""

from __future__ import annotations

import asyncio
import math
import os
import sys

import click

from mlxd.daemon.cli.address import DaemonAddress, find_daemon
from mlxd.daemon.cli.answer import ChatTurn, Sampling, show_answer
from mlxd.daemon.cli.chat import Chat, Conversation
from mlxd.daemon.cli.chat_lines import ChatLines, history_file
from mlxd.daemon.cli.client import DaemonClient
from mlxd.daemon.cli.failures import CommandFailed
from mlxd.daemon.cli.images import checked_images
from mlxd.daemon.cli.markdown_screen import MarkdownScreen
from mlxd.daemon.cli.options import checked_text, with_model, with_url
from mlxd.daemon.cli.screen import AnswerScreen

_EXAMPLES = """\b
Examples:
  mlxd run qwen 'Why is the sky blue?'
  git diff | mlxd run qwen 'Write a commit message for this change.'
  mlxd run qwen-vl 'What is in this picture?' --image photo.jpg
  mlxd run qwen"""


def _finite(_ctx: click.Context, _param: click.Parameter, value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise click.BadParameter("expected a number that is finite")
    return value


@click.command(epilog=_EXAMPLES)
@with_model
@click.argument("prompt", required=False, callback=checked_text)
@click.option("--system", metavar="TEXT", callback=checked_text, help="The system message.")
@click.option("--max-tokens", type=click.IntRange(min=1), metavar="N", help="End the answer after N tokens.")
@click.option(
    "--temperature",
    type=click.FloatRange(min=0),
    callback=_finite,
    metavar="T",
    help="0 always takes the likeliest token.",
)
@click.option(
    "--image",
    "images",
    multiple=True,
    metavar="FILE",
    callback=checked_images,
    help="Send this image with the first question; may be given several times.",
)
@click.option("--plain", is_flag=True, help="In a chat: show answers as they are written, not as formatted Markdown.")
@click.option("--no-history", is_flag=True, help="In a chat: neither bring back lines of earlier ones nor keep these.")
@with_url
def run(
    *,
    model: str,
    prompt: str | None,
    system: str | None,
    max_tokens: int | None,
    temperature: float | None,
    images: tuple[str, ...],
    plain: bool,
    no_history: bool,
    url: str | None,
) -> None:
    """Ask a model: one answer, or a chat.

    With PROMPT, or text on standard input, the answer appears as it is generated; with both, the text follows the
    prompt. On a terminal without PROMPT it is a chat.
    """
    address, sampling = find_daemon(url), Sampling(max_tokens, temperature)
    interactive = sys.stdin is not None and sys.stdin.isatty()
    if prompt is None and interactive:
        formats = sys.stdout.isatty() and not plain
        screen = MarkdownScreen if formats else AnswerScreen
        lines = ChatLines(None if no_history else history_file(os.environ))
        Chat(address, model, sampling, Conversation(system, images), screen).run(lines)
        return
    question = _question(prompt, "" if interactive else _piped_text())
    turns = [ChatTurn("system", system)] if system else []
    asyncio.run(_answer_once(address, model, [*turns, ChatTurn("user", question, images)], sampling))


async def _answer_once(address: DaemonAddress, model: str, turns: list[ChatTurn], sampling: Sampling) -> None:
    async with DaemonClient(address) as client:
        await show_answer(client, model, turns, sampling, AnswerScreen())


def _piped_text() -> str:
    if sys.stdin is None:
        return ""
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CommandFailed("standard input is not UTF-8 text") from error


def _question(prompt: str | None, piped: str) -> str:
    parts = [part for part in (prompt, piped) if part is not None and part.strip()]
    if not parts:
        raise click.UsageError("expected PROMPT or text on standard input, got neither")
    return "\n\n".join(parts)
