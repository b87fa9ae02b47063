"""Everything that goes wrong between a Hub and a reader: survived where it can be, explained where it cannot."""

import errno
import socket
from collections.abc import Callable
from typing import Any

import pytest

from headmaps.checkpoint.hub import HubStore, resolve_revision
from headmaps.checkpoint.hub_errors import explain
from headmaps.checkpoint.ranges import LONGEST_WAIT, RETRIES
from headmaps.errors import DownloadError
from hub.server import LocalHub

BODY = {"path": "*.safetensors", "method": "GET"}
FROM, LENGTH = 1_000, 2_500_000


def read(commit: str) -> bytes:
    """Most of the weights, by range."""
    return HubStore("someone/model", commit).read("model.safetensors", FROM, LENGTH)


# --- what is survived ---------------------------------------------------------------------------------------------

SURVIVED: dict[str, dict[str, Any]] = {
    "429 from the Hub": {"kind": "status", "host": "hub", "status": 429},
    "500 on the body": {"kind": "status", "host": "cdn", "status": 500},
    "502 on the body": {"kind": "status", "host": "cdn", "status": 502},
    "503 on the body, three times": {"kind": "status", "host": "cdn", "status": 503, "times": 3},
    "503 from the Hub": {"kind": "status", "host": "hub", "status": 503},
    "a signed address that has expired": {
        "kind": "status",
        "host": "cdn",
        "status": 403,
        "text": "Request has expired",
    },
    "connection reset by the Hub": {"kind": "reset", "host": "hub"},
    "connection reset by the storage": {"kind": "reset", "host": "cdn"},
    "body cut short": {"kind": "cut", "host": "cdn", "after": 700_000},
    "body cut short again and again, but moving on": {"kind": "cut", "host": "cdn", "after": 1_200_000, "times": 2},
    "body cut at its first byte": {"kind": "cut", "host": "cdn", "after": 0},
    "Range ignored once": {"kind": "whole", "host": "cdn"},
    "no answer in time": {"kind": "stall", "host": "cdn", "after": 3},
}


@pytest.mark.parametrize("fault", SURVIVED.values(), ids=SURVIVED)
def test_survived_with_the_right_bytes(hub: LocalHub, model: str, weights: bytes, fault: dict[str, Any]) -> None:
    injected = hub.fault(**(BODY | fault))
    assert read(model) == weights[FROM : FROM + LENGTH]
    assert injected.times == 0


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("path", ["/api/models/*/tree/*", "/api/models/*/revision/*"])
def test_a_busy_hub_is_asked_again_for_listing_and_revision(hub: LocalHub, model: str, path: str, status: int) -> None:
    fault = hub.fault("status", path=path, status=status)
    assert resolve_revision({"repo": "someone/model", "revision": "main"}) == model
    assert "model.safetensors" in HubStore("someone/model", model).files()
    assert fault.times == 0


def test_a_short_body_is_resumed_where_it_ended(hub: LocalHub, model: str, weights: bytes) -> None:
    hub.fault("cut", host="cdn", after=700_000, **BODY)
    assert read(model) == weights[FROM : FROM + LENGTH]
    asked = [request.headers["Range"] for request in hub.log if request.host == "cdn"]
    assert asked == [f"bytes=1000-{FROM + LENGTH - 1}", f"bytes=701000-{FROM + LENGTH - 1}"]
    assert hub.sent() == LENGTH


@pytest.mark.parametrize(
    ("headers", "expected"),
    [({"Retry-After": "7"}, 7), ({"RateLimit": '"api";r=0;t=55'}, 56), ({"Retry-After": "soon"}, 1)],
    ids=["Retry-After", "the Hub's RateLimit", "unreadable"],
)
def test_a_requested_pause_is_kept(
    hub: LocalHub, model: str, pauses: list[float], headers: dict[str, str], expected: float
) -> None:
    hub.fault("status", host="cdn", status=429, headers=headers, **BODY)
    read(model)
    assert pauses == [expected]


def test_pauses_grow_and_attempts_are_bounded(hub: LocalHub, model: str, pauses: list[float]) -> None:
    hub.fault("status", host="cdn", status=503, times=-1, **BODY)
    with pytest.raises(DownloadError, match="status 503"):
        read(model)
    assert pauses == [1, 2, 4, 8, 16]
    assert len([request for request in hub.log if request.host == "cdn"]) == RETRIES + 1


# --- what is refused ----------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "Range ignored": ({"kind": "whole", "host": "cdn", "times": -1}, "ignores range requests(.|\n)*fetch: full"),
    "another range": ({"kind": "shifted", "host": "cdn"}, "Content-Range: bytes 1001-2501000/3000000"),
    "another file size": ({"kind": "total", "host": "cdn"}, "Content-Range: bytes 1000-2500999/3000001"),
    "compressed": ({"kind": "gzip", "host": "cdn"}, "gzip data although told not to"),
    "always cut at the first byte": (
        {"kind": "cut", "host": "cdn", "times": -1},
        "broke again|ended 2500000",
    ),
    "always reset": ({"kind": "reset", "host": "cdn", "times": -1}, "broke again and again"),
}


@pytest.mark.parametrize(("fault", "message"), REFUSED.values(), ids=REFUSED)
def test_a_wrong_answer_is_never_taken_for_data(hub: LocalHub, model: str, fault: dict[str, Any], message: str) -> None:
    hub.fault(**(BODY | fault))
    store = HubStore("someone/model", model)
    store.files()  # so that the file's size is known
    with pytest.raises(DownloadError, match=message):
        store.read("model.safetensors", FROM, LENGTH)


def test_an_ignored_range_is_given_up_before_the_whole_file_has_come(hub: LocalHub, model: str) -> None:
    hub.fault("whole", host="cdn", times=-1, **BODY)
    store = HubStore("someone/model", model)
    with pytest.raises(DownloadError, match="ignores range"):
        store.read("model.safetensors", FROM, LENGTH)
    assert store.transferred == 0


def test_a_server_that_asks_for_an_hour_ends_the_run(hub: LocalHub, model: str, pauses: list[float]) -> None:
    hub.fault("status", host="cdn", status=429, headers={"Retry-After": str(LONGEST_WAIT + 1)}, **BODY)
    with pytest.raises(DownloadError, match="asks to wait 601 seconds"):
        read(model)
    assert pauses == []


# --- what only the user can mend ----------------------------------------------------------------------------------


def message_of(action: Callable[[], object]) -> str:
    with pytest.raises(DownloadError) as caught:
        action()
    return str(caught.value)


def test_gated_without_a_token(hub: LocalHub, model: str, pauses: list[float]) -> None:
    hub.repository("someone/model").gated = True
    text = message_of(lambda: read(model))
    assert f"accept them at {hub.endpoint}/someone/model" in text
    assert "HF_TOKEN" in text
    assert "no token is set" in text
    assert pauses == []  # asking again would not help


def test_gated_with_a_token_that_did_not_accept(hub: LocalHub, model: str, token: Callable[..., str]) -> None:
    hub.repository("someone/model").gated = True
    token()
    text = message_of(lambda: read(model))
    assert f"accept them at {hub.endpoint}/someone/model" in text
    assert "the present token was refused" in text


def test_gated_with_a_token_that_accepted(hub: LocalHub, model: str, token: Callable[..., str], weights: bytes) -> None:
    hub.repository("someone/model").gated = True
    token("someone/model")
    assert read(model) == weights[FROM : FROM + LENGTH]


def test_403_without_an_error_code_shows_the_servers_own_words(
    hub: LocalHub, model: str, token: Callable[..., str]
) -> None:
    token()
    hub.fault("status", host="hub", status=403, text="Your fine-grained token lacks: repo.content.read", **BODY)
    text = message_of(lambda: read(model))
    assert "Your fine-grained token lacks: repo.content.read" in text
    assert "connection" not in text


def test_a_token_that_the_hub_does_not_know(hub: LocalHub, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_mistyped")
    text = message_of(lambda: read(model))
    assert "does not accept the access token: Invalid credentials" in text
    assert "hf_mistyped" not in text


def test_no_such_repository(hub: LocalHub, model: str, token: Callable[..., str]) -> None:
    for _ in range(2):  # without, then with a token: the Hub answers 401, then 404
        text = message_of(lambda: resolve_revision({"repo": "someone/modle", "revision": "main"}))
        assert "someone/modle is not on" in text
        assert "or it is private" in text
        token()


def test_no_such_branch(hub: LocalHub, model: str) -> None:
    text = message_of(lambda: resolve_revision({"repo": "someone/model", "revision": "step9"}))
    assert "no branch, tag or pull request named step9" in text


def test_a_pinned_commit_that_has_vanished(hub: LocalHub, model: str, pauses: list[float]) -> None:
    gone = "0123456789abcdef0123456789abcdef01234567"
    for action in (lambda: HubStore("someone/model", gone).files(), lambda: read(gone)):
        text = message_of(action)
        assert f"has no commit {gone}" in text
        assert "history was rewritten" in text
        assert "source: local" in text
    assert pauses == []


def test_no_such_file_suggests_the_one_that_was_meant(hub: LocalHub, model: str) -> None:
    text = message_of(lambda: HubStore("someone/model", model).read("model.safetensor", 0, 1))
    assert "has no file model.safetensor" in text
    text = str(explain(_entry_error(), endpoint="e", repo="r", revision="v", name="modl.bin", files=["model.bin", "x"]))
    assert "perhaps model.bin" in text


def _entry_error() -> Exception:
    from huggingface_hub.errors import RemoteEntryNotFoundError

    return RemoteEntryNotFoundError.__new__(RemoteEntryNotFoundError)


def test_no_route(hub: LocalHub, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{unused.getsockname()[1]}")
        for action in (lambda: read(model), lambda: resolve_revision({"repo": "someone/model", "revision": "main"})):
            text = message_of(action)
            assert "there is no way to http://127.0.0.1" in text
            assert "HTTPS_PROXY" in text


def test_a_full_disk_says_so(hub: LocalHub) -> None:
    for number in (errno.ENOSPC, errno.EDQUOT):
        error = explain(OSError(number, "No space left"), endpoint="e", repo="r", revision="v")
        assert "the disk is full" in str(error)


def test_a_token_that_the_server_repeats_is_struck_out(hub: LocalHub, model: str, token: Callable[..., str]) -> None:
    secret = token()
    hub.fault("status", host="hub", status=403, text=f"token {secret} may not read this", **BODY)
    text = message_of(lambda: read(model))
    assert "token *** may not read this" in text
    assert secret not in text


def test_a_signed_address_is_not_shown(hub: LocalHub, model: str) -> None:
    hub.fault("shifted", host="cdn", **BODY)
    text = message_of(lambda: read(model))
    assert "Signature" not in text


def test_redirects_in_circles_end(hub: LocalHub, model: str) -> None:
    hub.renamed["a/a"], hub.renamed["b/b"] = "b/b", "a/a"
    assert "circles" in message_of(lambda: HubStore("a/a", model).read("model.safetensors", 0, 1))
