"""`mlxd pull`: a model comes from the Hugging Face hub."""

from __future__ import annotations

import asyncio
import shlex
from typing import Any

import click

from mlxd.daemon.cli.address import find_daemon
from mlxd.daemon.cli.answers import failure_from, view
from mlxd.daemon.cli.client import READ_TIMEOUT, DaemonClient
from mlxd.daemon.cli.failures import CommandFailed, ConnectionLost, NotReachable
from mlxd.daemon.cli.options import checked_text, with_json, with_url
from mlxd.daemon.cli.output import print_json
from mlxd.daemon.cli.plain import printable
from mlxd.daemon.cli.pull_bar import pull_bar
from mlxd.daemon.cli.pull_view import PullList, PullView
from mlxd.daemon.units import format_bytes

POLL_INTERVAL = 0.3
"""Seconds between two looks at the download."""
CANCEL_TIMEOUT = 15.0
"""Seconds that the cancel of a download may take."""

_ACCEPTED = 202
_FIRST_ERROR = 400


@click.command(
    epilog="\b\nExample:\n  mlxd pull mlx-community/Qwen3-8B-4bit\n"
    "  mlxd pull mlx-community/Qwen3-8B-4bit --name qwen --revision main"
)
@click.argument("repo", callback=checked_text)
@click.option("--name", callback=checked_text, metavar="N", help="The model's name [default: that of the repository].")
@click.option("--revision", callback=checked_text, metavar="R", help="A branch, a tag or a commit [default: main].")
@with_json
@with_url
def pull(repo: str, name: str | None, revision: str | None, url: str | None, as_json: bool) -> None:
    """Get a model from the Hugging Face hub.

    The daemon downloads it, and lists it when it is whole. Ctrl-C cancels; the same command goes on from what came.
    """
    given = {"repo": repo, "name": name, "revision": revision}
    answer = asyncio.run(_pull(url, {key: value for key, value in given.items() if value is not None}))
    pulled = view(answer, PullView)
    if as_json:
        print_json(answer)
    if pulled.state == "cancelled":
        raise CommandFailed(f"the download of {repo} was cancelled; the same command goes on from what came")
    if pulled.error is not None:
        raise CommandFailed(f"{pulled.error.message} ({pulled.error.reason})")
    if not as_json:
        click.echo(printable(f"{pulled.name} is there: {format_bytes(pulled.bytes_total)} in {pulled.path}"))
        click.echo(printable(f"run it:  mlxd run {shlex.quote(pulled.name)}"))


async def _pull(url: str | None, body: dict[str, Any]) -> Any:
    async with DaemonClient(find_daemon(url)) as client:
        status, answer = await client.answer("POST", "/admin/pull", body, timeout=READ_TIMEOUT)
        if status >= _FIRST_ERROR:
            raise failure_from(status, answer, client.url)
        begun = view(answer, PullView)
        try:
            return await watch(client, begun)
        except asyncio.CancelledError:
            if status == _ACCEPTED:  # else it was under way already, for somebody else
                await _cancel(client, begun)
            raise


async def watch(client: DaemonClient, begun: PullView) -> Any:
    """The download as it ended. Raises CommandFailed when the daemon knows it no longer."""
    with pull_bar() as show:
        while True:
            try:
                answer = await client.get("/admin/pulls")
            except (NotReachable, ConnectionLost) as lost:
                kept = "what came of the download is kept, the same command goes on"
                raise type(lost)(f"{lost.message}\n{kept}") from lost
            seen = {each.id: each for each in view(answer, PullList).data}.get(begun.id)
            if seen is None or (seen.repo, seen.name) != (begun.repo, begun.name):  # a new daemon counts anew
                raise CommandFailed(
                    "the daemon knows the download no longer, it was restarted; the same command goes on"
                )
            if seen.is_over():
                return next(each for each in answer["data"] if each["id"] == begun.id)
            show(seen)
            await asyncio.sleep(POLL_INTERVAL)


async def _cancel(client: DaemonClient, begun: PullView) -> None:
    try:
        await client.call("DELETE", f"/admin/pulls/{begun.id}", timeout=CANCEL_TIMEOUT)
    except CommandFailed as failure:
        failure.show()
    else:
        said = f"cancelled the download of {begun.repo}; what came is kept, the same command goes on"
        click.echo(f"mlxd: {printable(said)}", err=True)
