"""What a repository and a revision may be called."""

from __future__ import annotations

import re

_REPO_PART = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+/-]{0,199}")
_PARTS = 2


def repo_complaint(repo: str) -> str | None:
    """What is wrong with the id of a repository on the hub, or None."""
    parts = repo.split("/")
    if len(parts) > _PARTS or not all(map(_REPO_PART.fullmatch, parts)) or _has_forbidden(repo):
        return "expected a repository of the Hugging Face hub, as in mlx-community/Qwen3-8B-4bit"
    return None


def revision_complaint(revision: str) -> str | None:
    """What is wrong with a revision, or None."""
    if not _REVISION.fullmatch(revision) or ".." in revision:
        return "expected a branch, a tag or a commit of the repository"
    return None


def _has_forbidden(repo: str) -> bool:
    return "--" in repo or ".." in repo or repo.endswith(".git")
