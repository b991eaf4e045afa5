"""The hub, as the process of a download sees it: what a revision holds, and what its refusals mean."""

from __future__ import annotations

import re
import time
from typing import Any
from urllib.parse import quote

import msgspec
from huggingface_hub import constants, get_session, get_token, hf_hub_url, hf_raise_for_status
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import build_hf_headers

from mlxd.daemon.downloads.messages import DownloadFailed, Job
from mlxd.daemon.downloads.selection import HubFile

# Seconds that the list of files may take, and the hub to take a connection or to send the next bytes.
LIST_TIMEOUT = 60.0
NET_TIMEOUT = 15.0
# Bytes of the list of files: some 200,000 of them.
MAX_LIST_BYTES = 1 << 26

_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _TOO_MANY = 401, 403, 404, 429
_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_SHA1, _SHA256 = re.compile(r"[0-9a-f]{40}"), re.compile(r"[0-9a-f]{64}")
_PASSWORD, _ADDRESS = re.compile(r"//[^/@]*@"), re.compile(r"\w+://\S+")
_TOKEN = re.compile(r"[!-~]*")
_SECONDS = re.compile(r"[0-9]{1,6}")
_LARGEST = 1 << 50
_SHOWN = 300

__all__ = ["HTTPError", "checked", "files_of", "headers", "is_passing", "open_file", "refusal"]


class _Lfs(msgspec.Struct, frozen=True):
    sha256: str
    size: int


class _Sibling(msgspec.Struct, frozen=True, rename="camel"):
    rfilename: str
    size: int | None = None
    blob_id: str | None = None
    lfs: _Lfs | None = None


class _Listing(msgspec.Struct, frozen=True):
    sha: str
    siblings: list[_Sibling] = []


def files_of(job: Job) -> tuple[str, list[HubFile]]:
    """The commit that a revision is, and all its files. Raises DownloadFailed."""
    if not _TOKEN.fullmatch(get_token() or ""):  # what sends it would repeat it in its complaint
        message = "the daemon's token has characters that no token has; put it into HF_TOKEN as the hub shows it"
        raise DownloadFailed("forbidden", message)
    try:
        listing = msgspec.json.decode(_listing(job), type=_Listing)
        files = [_declared(sibling) for sibling in listing.siblings]
    except (HTTPError, OfflineModeIsEnabled, ImportError) as error:  # the last for a proxy that needs a library
        raise refusal(error, job) from error
    # What answers is perhaps no hub at all.
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise DownloadFailed("hub_error", f"the answer of {_hub()} cannot be read: {_words(error)}") from error
    if not _COMMIT.fullmatch(listing.sha):
        raise DownloadFailed("hub_error", f"{_hub()} does not tell which commit {job.revision} is")
    return listing.sha, files


def _listing(job: Job) -> bytes:
    """What the hub says of a revision, in JSON. Raises HTTPError, and DownloadFailed when it does not end."""
    url = f"{constants.ENDPOINT}/api/models/{job.repo}/revision/{quote(job.revision, safe='')}"
    body, until = bytearray(), time.monotonic() + LIST_TIMEOUT
    asked = {"headers": headers(), "params": {"blobs": True}, "timeout": LIST_TIMEOUT}
    with get_session().stream("GET", url, **asked) as response:
        for block in checked(response).iter_raw():
            body += block
            if len(body) > MAX_LIST_BYTES:
                message = f"{_hub()} lists more files of {job.repo} than the {MAX_LIST_BYTES} bytes that are read"
                raise DownloadFailed("bad_repository", message)
            if time.monotonic() > until:
                message = f"{_hub()} takes more than {LIST_TIMEOUT:.0f} s to list the files of {job.repo}"
                raise DownloadFailed("unreachable", f"{message}; try again later")
    return bytes(body)


def headers() -> dict[str, str]:
    """What goes with each request for a file, as it is stored; the token is sent to no other host."""
    return {**build_hf_headers(), "Accept-Encoding": "identity"}


def open_file(job: Job, commit: str, name: str, sent: dict[str, str]) -> Any:
    """The response with a file's bytes, to be entered; it has to be `checked` before it is read."""
    url = hf_hub_url(job.repo, name, revision=commit)
    return get_session().stream("GET", url, headers=sent, timeout=min(NET_TIMEOUT, job.stall_s))


def checked(response: Any) -> Any:
    """The response, if it is no refusal. Raises HTTPError."""
    if response.is_error:
        response.close()  # the library would read what it has to say, however long that is
    hf_raise_for_status(response)
    return response


def is_passing(error: Exception) -> bool:
    """Whether the same request may succeed a moment later."""
    return not isinstance(error, HfHubHTTPError) or _status(error) >= 500  # noqa: PLR2004 - the hub's own faults


def refusal(error: Exception, job: Job) -> DownloadFailed:
    """What the hub, or the network, said, in words that say what to do."""
    hub, repo = _hub(), job.repo
    match error:
        case OfflineModeIsEnabled():
            return DownloadFailed("offline", "HF_HUB_OFFLINE is set for the daemon; start it without to download")
        case GatedRepoError():
            return DownloadFailed("gated", _gated(hub, repo))
        case RevisionNotFoundError():
            return DownloadFailed(
                "revision_not_found", f"{repo} has no revision {job.revision}; {hub}/{repo} lists them"
            )
        case EntryNotFoundError():
            return DownloadFailed("hub_error", f"{hub} lists a file of {repo} that it does not have; try again later")
        case RepositoryNotFoundError():
            return DownloadFailed("repo_not_found", _not_found(hub, repo))
        case HfHubHTTPError():
            return _by_status(error, hub, job)
        case _:
            message = f"{hub} cannot be reached: {_words(error)}; is there a network, and is HF_ENDPOINT right?"
            return DownloadFailed("unreachable", message)


def _by_status(error: HfHubHTTPError, hub: str, job: Job) -> DownloadFailed:
    status = _status(error)
    if status == _NOT_FOUND:
        return DownloadFailed("repo_not_found", _not_found(hub, job.repo))
    if status in (_UNAUTHORIZED, _FORBIDDEN):
        if get_token() is None:
            return DownloadFailed("repo_not_found", _not_found(hub, job.repo))
        message = f"{hub} refuses the daemon's token ({status}); put one into HF_TOKEN that may read {job.repo}"
        return DownloadFailed("forbidden", message)
    if status == _TOO_MANY:
        wait = error.response.headers.get("Retry-After", "")
        when = f"in {wait} seconds" if _SECONDS.fullmatch(wait) else "later"
        return DownloadFailed(
            "rate_limited", f"{hub} takes no more requests for now (429); pull again {when}, it goes on"
        )
    return DownloadFailed("hub_error", f"{hub} answered {status}; try again later")


def _gated(hub: str, repo: str) -> str:
    terms = f"{repo} is gated: accept its terms at {hub}/{repo}"
    if get_token() is None:
        return f"{terms}, and start the daemon with a token of that account in HF_TOKEN"
    return f"{terms} with the account whose token the daemon has, or wait until access is granted"


def _not_found(hub: str, repo: str) -> str:
    hint = (
        "check the token in HF_TOKEN" if get_token() else "start the daemon with a token in HF_TOKEN that may read it"
    )
    return f"there is no repository {repo} at {hub}; check the name, or if it is private, {hint}"


def _status(error: HfHubHTTPError) -> int:
    return int(error.response.status_code)


def _hub() -> str:
    """The hub's address, without the password that there may be in it."""
    return _PASSWORD.sub("//", constants.ENDPOINT)


def _words(error: Exception) -> str:
    """What an error says, without addresses: they may be signed."""
    return _ADDRESS.sub("…", " ".join(str(error).split()))[:_SHOWN] or type(error).__name__


def _declared(sibling: _Sibling) -> HubFile:
    """Raises ValueError for a file that cannot be checked later."""
    lfs = sibling.lfs
    file = HubFile(sibling.rfilename, sibling.size if sibling.size is not None else -1, blob_sha1=sibling.blob_id)
    if lfs is not None:
        file = HubFile(sibling.rfilename, lfs.size, sha256=lfs.sha256)
    known = _SHA256.fullmatch(file.sha256) if file.sha256 is not None else _SHA1.fullmatch(file.blob_sha1 or "")
    if not 0 <= file.size <= _LARGEST or known is None:
        raise ValueError(f"no size or checksum of {sibling.rfilename!r:.60}")
    return file
