"""Ranges are joined into few requests without fetching much that nobody asked for."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headmaps.checkpoint.ranges import RangeReader, coalesce, http_library, origin
from headmaps.errors import DownloadError

RANGES = st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 700)), max_size=20)


@given(RANGES, st.integers(0, 100), st.integers(1, 1000))
def test_every_range_lies_in_exactly_one_span(ranges: list[tuple[int, int]], gap: int, limit: int) -> None:
    spans = coalesce(ranges, gap, limit)
    members = [index for span in spans for index in span.members]
    assert sorted(members) == [index for index, (_, length) in enumerate(ranges) if length]
    for span in spans:
        for index in span.members:
            offset, length = ranges[index]
            assert span.start <= offset
            assert offset + length <= span.stop


@given(RANGES, st.integers(0, 100))
def test_joining_reads_at_most_the_gap_between_two_ranges(ranges: list[tuple[int, int]], gap: int) -> None:
    for span in coalesce(ranges, gap, limit=10**9):
        wanted = {byte for index in span.members for byte in range(ranges[index][0], sum(ranges[index]))}
        run = longest = 0
        for byte in range(span.start, span.stop):
            run = 0 if byte in wanted else run + 1
            longest = max(longest, run)
        assert longest <= gap


@given(RANGES, st.integers(1, 1000))
def test_a_joined_span_stays_below_the_limit(ranges: list[tuple[int, int]], limit: int) -> None:
    for span in coalesce(ranges, 64, limit):
        longest = max(ranges[index][1] for index in span.members)
        assert span.stop - span.start <= max(limit, longest)


def test_neighbours_far_apart_are_not_joined() -> None:
    assert [(s.start, s.stop) for s in coalesce([(0, 10), (10, 10), (1 << 20, 10)])] == [
        (0, 20),
        (1 << 20, (1 << 20) + 10),
    ]


def test_a_token_belongs_to_a_scheme_a_host_and_a_port() -> None:
    assert origin("https://hub.example/a?b") == origin("https://HUB.example:443/c")
    others = [
        "http://hub.example/",
        "https://hub.example:444/",
        "https://hub.example.evil/",
        "https://evil/hub.example",
    ]
    assert all(origin(other) != origin("https://hub.example/") for other in others)


def test_a_redirect_to_an_unencrypted_address_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def answer(request: Any) -> Any:
        asked.append(str(request.url))
        return http_library().Response(302, headers={"Location": "http://hub.example/elsewhere"})

    client = http_library().Client(transport=http_library().MockTransport(answer))
    monkeypatch.setattr("huggingface_hub.utils.get_session", lambda: client)
    with pytest.raises(DownloadError, match="unencrypted"):
        RangeReader("https://hub.example", token="secret").read("https://hub.example/file", 0, 10)
    assert asked == ["https://hub.example/file"]
