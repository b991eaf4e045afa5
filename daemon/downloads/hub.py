"""The hub, as the process of a download sees it: what a revision holds, and what its refusals mean."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from huggingface_hub import HfApi, constants, get_session, get_token, hf_hub_url, hf_raise_for_status
from huggingface_hub.errors import (
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

_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _TOO_MANY = 401, 403, 404, 429
_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_SHA1, _SHA256 = re.compile(r"[0-9a-f]{40}"), re.compile(r"[0-9a-f]{64}")
_PASSWORD, _ADDRESS = re.compile(r"//[^/@]*@"), re.compile(r"https?://\S+")
_LARGEST = 1 << 50
_SHOWN = 300

__all__ = ["HTTPError", "checked", "files_of", "headers", "is_passing", "open_file", "refusal"]


def files_of(job: Job) -> tuple[str, list[HubFile]]:
    """The commit that a revision is, and all its files. Raises DownloadFailed."""
    try:
        info = HfApi().model_info(job.repo, revision=job.revision, timeout=LIST_TIMEOUT, files_metadata=True)
        files = [HubFile(*_declared(sibling)) for sibling in info.siblings or ()]
        commit = str(info.sha)
    except (HTTPError, OfflineModeIsEnabled) as error:
        raise refusal(error, job) from error
    # What answers is perhaps no hub at all, and the library takes its JSON as it comes.
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DownloadFailed("hub_error", f"the answer of {_hub()} cannot be read: {error!r:.100}") from error
    if not _COMMIT.fullmatch(commit):
        raise DownloadFailed("hub_error", f"{_hub()} does not tell which commit {job.revision} is")
    return commit, files


def headers() -> dict[str, str]:
    """What goes with each request for a file, as it is stored; the token is sent to no other host."""
    return {**build_hf_headers(), "Accept-Encoding": "identity"}


def open_file(job: Job, commit: str, name: str, sent: dict[str, str]) -> Any:
    """The response with a file's bytes, to be entered; it has to be `checked` before it is read."""
    url = hf_hub_url(job.repo, name, revision=commit)
    return get_session().stream("GET", url, headers=sent, timeout=min(NET_TIMEOUT, job.stall_s))


def checked(response: Any) -> Any:
    """The response, if it is no refusal. Raises HTTPError."""
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
        when = f"in {wait} seconds" if wait.isdigit() else "later"
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


def _declared(sibling: Any) -> Iterator[Any]:
    """Name, size, SHA-256 and git blob's SHA-1. Raises ValueError for a file that cannot be checked later."""
    lfs = sibling.lfs
    size = lfs.size if lfs is not None else sibling.size
    sha256 = lfs.sha256 if lfs is not None else None
    blob = sibling.blob_id if lfs is None else None
    known = _SHA256.fullmatch(sha256) if sha256 is not None else _SHA1.fullmatch(blob or "")
    if type(size) is not int or not 0 <= size <= _LARGEST or known is None or not isinstance(sibling.rfilename, str):
        raise ValueError(f"no size or checksum of {sibling.rfilename!r:.60}")
    yield from (sibling.rfilename, size, sha256, blob)
