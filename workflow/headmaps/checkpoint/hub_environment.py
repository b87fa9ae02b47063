"""Which Hub, which repository, which commit: the environment is respected as huggingface_hub does.

HF_ENDPOINT, HF_TOKEN (or a saved login), HF_HUB_OFFLINE, HF_HOME and HF_HUB_CACHE, HF_HUB_DOWNLOAD_TIMEOUT, and the
proxy variables. The cache of huggingface_hub is only read here, never written.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headmaps.checkpoint.hub_errors import explain
from headmaps.checkpoint.ranges import patiently
from headmaps.checkpoint.store import safe_name
from headmaps.errors import ConfigError, DownloadError
from headmaps.records import read_json, write_json

_COMMIT = re.compile(r"[0-9a-f]{40}")
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9_][\w.-]*)?", re.ASCII)


def endpoint() -> str:
    """The Hub's address: HF_ENDPOINT, or huggingface.co."""
    from huggingface_hub import constants

    return (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")


def offline() -> bool:
    """Whether HF_HUB_OFFLINE forbids the network."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE) or os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def check_repo(repo: str) -> str:
    """`repo` itself, if it can be the name of a repository.

    Raises:
        ConfigError: it cannot.
    """
    if not _REPO.fullmatch(repo) or ".." in repo:
        raise ConfigError(
            f"{repo!r} is not the name of a repository on the Hub",
            where="repo",
            expected="owner/name, e.g. openai/gpt2",
        )
    return repo


def resolve_revision(spec: Mapping[str, Any], memory: Path | None = None) -> str:
    """The full commit that a model's entry names. A full commit is used as it is, without asking anybody.

    Args:
        spec: `repo` and `revision` (a commit, branch, tag or refs/pr/N; `main` where it is missing).
        memory: a small file in which the answer for a branch or tag is kept, so that it is resolved once: a branch
            that moves later does not change a result under way. Delete it to follow the branch.

    Raises:
        DownloadError: there is no such repository or revision, or the Hub cannot be reached.
    """
    repo, revision = check_repo(spec["repo"]), str(spec.get("revision") or "main")
    if _COMMIT.fullmatch(revision):
        return revision
    question = {"repo": repo, "revision": revision}
    if memory is not None and memory.exists():
        answer = read_json(memory)
        if {key: answer.get(key) for key in question} == question:
            return str(answer["commit"])
    commit = _cached_commit(repo, revision) if offline() else _asked_commit(repo, revision)
    if memory is not None:
        write_json(memory, question | {"commit": commit})
    return commit


def _asked_commit(repo: str, revision: str) -> str:
    from huggingface_hub import HfApi

    address = endpoint()
    try:
        commit = patiently(lambda: HfApi(endpoint=address).repo_info(repo, revision=revision).sha or "")
    except Exception as error:
        raise explain(error, endpoint=address, repo=repo, revision=revision) from None
    if not _COMMIT.fullmatch(commit):
        raise DownloadError(f"the Hub names no commit for revision {revision}: {commit!r}", where=repo)
    return commit


def pull_request(repo: str, number: int) -> tuple[str, str]:
    """Author and title of a pull request on the Hub. Anybody can open one, and push to it later.

    Raises:
        DownloadError: there is no such pull request, or the Hub cannot be reached.
    """
    from huggingface_hub import HfApi

    address = endpoint()
    try:
        details = patiently(lambda: HfApi(endpoint=address).get_discussion_details(check_repo(repo), number))
    except Exception as error:
        raise explain(error, endpoint=address, repo=repo, revision=f"refs/pr/{number}") from None
    return str(details.author), str(details.title)


def _cached_commit(repo: str, revision: str) -> str:
    """The commit that the local cache remembers for a branch or tag."""
    from huggingface_hub.errors import OfflineModeIsEnabled

    path = cache_folder(repo) / "refs" / safe_name(revision, where="revision")
    commit = path.read_text(encoding="utf-8").strip() if path.is_file() else ""
    if not _COMMIT.fullmatch(commit):
        raise explain(OfflineModeIsEnabled(), endpoint=endpoint(), repo=repo, revision=revision)
    return commit


def cache_folder(repo: str) -> Path:
    """Where the cache of huggingface_hub keeps a repository."""
    from huggingface_hub import constants

    folder = os.environ.get("HF_HUB_CACHE") or constants.HF_HUB_CACHE
    return Path(folder).expanduser() / ("models--" + repo.replace("/", "--"))
