"""What went wrong with the Hub, in words that say what to do.

huggingface_hub's own messages are for programmers, and some mislead: a token without the right permission ends as
"check your connection". The cause is looked for down the chain of exceptions, and the server's own text is shown.
"""

import difflib
import errno
import os
from collections.abc import Iterable, Iterator
from typing import Any

from headmaps.errors import DownloadError, HeadmapsError

_TEXT_LIMIT = 400


def explain(
    error: BaseException, *, endpoint: str, repo: str, revision: str, name: str = "", files: Iterable[str] = ()
) -> HeadmapsError:
    """The DownloadError that tells the user what `error` means.

    Args:
        error: whatever huggingface_hub, its HTTP library, or the disk raised.
        endpoint: the server asked.
        revision: the commit, branch or tag asked for.
        name: the file asked for, if one was.
        files: names of files that are there, to suggest the one that was meant.
    """
    if isinstance(error, HeadmapsError):
        return error
    where = f"{repo}@{revision}" + (f": {name}" if name else "")
    kinds = {kind.__name__: link for link in reversed(list(_chain(error))) for kind in type(link).__mro__}
    message = _by_kind(kinds, endpoint, repo, revision, name, files) or _by_status(kinds, endpoint, repo)
    if message is None:
        what = f"the download failed: {type(error).__name__}: {error}"
        message = {"what": what, "do": "run again: what has been fetched and checked is kept"}
    message = {key: without_token(text) for key, text in message.items()}
    return DownloadError(message.pop("what"), where=where, **message)


def without_token(text: str) -> str:
    """`text` with the access token, should it be in there, struck out."""
    from huggingface_hub import get_token

    token = get_token()
    return text.replace(token, "***") if token else text


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _by_kind(
    kinds: dict[str, BaseException], endpoint: str, repo: str, revision: str, name: str, files: Iterable[str]
) -> dict[str, str] | None:
    from huggingface_hub import get_token

    if "GatedRepoError" in kinds:
        return {
            "what": f"{repo} is gated: its authors want their conditions accepted first",
            "do": f"accept them at {endpoint}/{repo}, then set HF_TOKEN to a token of that account that may read gated "
            "repositories " + ("(the present token was refused)" if get_token() else "(no token is set)"),
        }
    if "OfflineModeIsEnabled" in kinds:
        thing = f"{name} of {repo}" if name else f"{repo} at {revision}"
        options = f" --revision {revision}" + (f" {name}" if name else "")
        return {
            "what": f"{thing} is not in the local Hugging Face cache, and HF_HUB_OFFLINE forbids asking the Hub",
            "do": f"unset HF_HUB_OFFLINE, or fetch it on a machine with a network: hf download {repo}{options}",
        }
    if "RevisionNotFoundError" in kinds:
        return _revision_not_found(endpoint, repo, revision)
    if "RemoteEntryNotFoundError" in kinds:
        near = difflib.get_close_matches(name, list(files), n=5, cutoff=0.5)
        return {
            "what": f"{repo} has no file {name} at {revision}",
            "expected": f"one of its files{': perhaps ' + ', '.join(near) if near else ''}",
            "do": f"look at {endpoint}/{repo}/tree/{revision}",
        }
    if "RepositoryNotFoundError" in kinds:
        return {
            "what": f"the repository {repo} is not on {endpoint}, or it is private",
            "do": "check its name (owner/name); for a private one set HF_TOKEN "
            + ("(the present token does not open it)" if get_token() else "(no token is set)")
            + ("; for a folder on this machine use `source: local` and `path:`" if os.path.exists(repo) else ""),
        }
    return _by_system(kinds, endpoint)


def _revision_not_found(endpoint: str, repo: str, revision: str) -> dict[str, str]:
    if len(revision) == 40:
        return {
            "what": f"{repo} has no commit {revision}: it is mistyped, or the repository's history was rewritten",
            "do": f"look at {endpoint}/{repo}/commits/main for the commit that took its place and pin that one; if you "
            "have a copy of the old files, use it with `source: local` and `path:`",
        }
    return {
        "what": f"{repo} has no branch, tag or pull request named {revision}",
        "do": f"see {endpoint}/{repo}/tree/main for its branches and tags; a pull request is `refs/pr/NUMBER`",
    }


def _by_system(kinds: dict[str, BaseException], endpoint: str) -> dict[str, str] | None:
    disk = kinds.get("OSError")
    if isinstance(disk, OSError) and disk.errno in {errno.ENOSPC, errno.EDQUOT}:
        return {
            "what": f"the disk is full ({disk.strerror})",
            "do": "free some space and run again: what has been fetched is kept and the rest is resumed",
        }
    if "TimeoutException" in kinds and "ConnectTimeout" not in kinds:
        return {
            "what": f"{endpoint} stopped answering ({kinds['TimeoutException']})",
            "do": "run again: what has been fetched is kept; on a slow line set HF_HUB_DOWNLOAD_TIMEOUT=60 (seconds)",
        }
    if "ConnectError" in kinds or "ConnectTimeout" in kinds:
        reason = kinds.get("ConnectError") or kinds["ConnectTimeout"]
        return {
            "what": f"there is no way to {endpoint} from this machine ({reason})",
            "do": "check the network, HTTPS_PROXY and HF_ENDPOINT; where compute nodes have no network, fetch on the "
            "login node first: snakemake checkpoints",
        }
    if "TransportError" in kinds:
        return {
            "what": f"the connection to {endpoint} broke again and again ({kinds['TransportError']})",
            "do": "run again: what has been fetched is kept and the rest is resumed",
        }
    return None


def _by_status(kinds: dict[str, BaseException], endpoint: str, repo: str) -> dict[str, str] | None:
    response: Any = getattr(kinds.get("HfHubHTTPError"), "response", None)
    if response is None:
        return None
    from huggingface_hub import get_token

    status, text = response.status_code, _server_text(response)
    if status == 401 and not get_token():
        return {
            "what": f"{repo} is not on {endpoint}, or it is private. The server says: {text}",
            "do": "check its name (owner/name); for a private one set HF_TOKEN (no token is set)",
        }
    if status == 401:
        return {
            "what": f"{endpoint} does not accept the access token: {text}",
            "do": "set HF_TOKEN to a valid token, or unset it (and `hf auth logout`) for a public repository",
        }
    if status == 403:
        return {
            "what": f"{endpoint} refuses access to {repo}. It says: {text}",
            "do": f"give the token (HF_TOKEN) the permission to read {repo}, or use another one: "
            f"{endpoint}/settings/tokens",
        }
    if status == 416:
        return {
            "what": f"the file on {endpoint} ends before the bytes that were asked for: {text}",
            "do": "the record of where the tensors lie is of another file: delete source.json and run again",
        }
    if status == 429:
        return {
            "what": f"{endpoint} limits the number of requests: {text}",
            "do": "run again in some minutes: what has been fetched is kept; with HF_TOKEN set the limits are higher",
        }
    do = "run again later: what has been fetched is kept" if status >= 500 else ""
    return {"what": f"{endpoint} answered with status {status}: {text}", "do": do}


def _server_text(response: Any) -> str:
    """What the server itself says: its error header, else the message in its JSON, else its body, shortened."""
    if header := response.headers.get("X-Error-Message"):
        return str(header)[:_TEXT_LIMIT]
    try:
        body = response.json()
        found = body.get("error") or body.get("message") if isinstance(body, dict) else None
        text = str(found or body)
    except Exception:  # not JSON, or a body that was never read
        try:
            text = response.text
        except Exception:
            text = ""
    return " ".join(text.split())[:_TEXT_LIMIT] or "(no text)"
