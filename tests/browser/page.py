"""How the tests look at a page: what it shows, and the clicks and keys of a reader."""

import csv
import math
import re
from pathlib import Path
from typing import Any

HEIGHT = {1280: 900, 390: 844}


class AtlasPage:
    """One page opened from disk, and everything it complained about."""

    def __init__(self, browser: Any, path: Path, *, width: int, theme: str) -> None:
        self.path = path
        self.context = browser.new_context(
            viewport={"width": width, "height": HEIGHT[width]}, color_scheme=theme, accept_downloads=True
        )
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.foreign_requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._request)

    def _request(self, request: Any) -> None:
        own = request.url.split("#")[0] == self.path.as_uri() or not request.url.startswith(("http", "ws", "file"))
        followed = request.is_navigation_request() and request.url.startswith("file:")
        if not own and not followed:
            self.foreign_requests.append(request.url)

    def visit(self, address: str) -> None:
        """Open the page at a state, `#/head?layer=3`."""
        self.page.goto(self.path.as_uri() + address)
        self.settle()

    def settle(self) -> None:
        """Wait until nothing is being drawn."""
        self.page.wait_for_timeout(30)
        self.page.locator("body[data-drawing=no]").wait_for()

    def hash(self) -> str:
        """The address behind the #."""
        return str(self.page.evaluate("location.hash"))

    def heading(self) -> str:
        """The view's title."""
        return str(self.page.locator("#view-title").inner_text())

    def plot(self, title: str) -> Any:
        """The plot of the figure with a title."""
        return self.page.locator("figure", has=self.page.get_by_role("heading", name=title, exact=True)).locator(
            ".plot"
        )

    def traces(self, title: str) -> list[dict[str, Any]]:
        """What a plot draws, as plain lists."""
        found = self.plot(title).evaluate(
            "plot => JSON.stringify(plot.data, (key, value) => ArrayBuffer.isView(value) ? Array.from(value) : value)"
        )
        import json

        return list(json.loads(found))

    def point(self, title: str, x: float, y: float, axes: tuple[str, str] = ("xaxis", "yaxis")) -> tuple[float, float]:
        """Where a plot draws (x, y), in pixels of the window."""
        plot = self.plot(title)
        plot.scroll_into_view_if_needed()
        place = plot.evaluate(
            """(plot, [x, y, xaxis, yaxis]) => {
                const box = plot.getBoundingClientRect();
                const across = plot._fullLayout[xaxis];
                const down = plot._fullLayout[yaxis];
                return [box.left + across._offset + across.l2p(x), box.top + down._offset + down.l2p(y)];
            }""",
            [x, y, *axes],
        )
        return (place[0], place[1])

    def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        for key in keys:
            self.page.keyboard.press(key)
            self.settle()

    def numbers(self) -> dict[str, list[str]]:
        """Every number of the head page that says which column of heads.csv it is of."""
        cells = self.page.locator("[data-column]").evaluate_all(
            "cells => cells.map(cell => [cell.dataset.column, cell.textContent])"
        )
        found: dict[str, list[str]] = {}
        for column, text in cells:
            found.setdefault(column, []).append(text)
        return found


def read_table(path: Path) -> dict[tuple[int, int, str], dict[str, str]]:
    """heads.csv by layer, head and matrix."""
    with open(path, newline="", encoding="utf-8") as stream:
        return {(int(row["layer"]), int(row["head"]), row["matrix"]): row for row in csv.DictReader(stream)}


def agrees(shown: str, cell: str) -> bool:
    """Whether a number on the page is the one in the file, rounded to the digits shown."""
    if shown == "–":
        return cell == ""
    text = shown.replace("−", "-")
    digits = re.fullmatch(r"-?(\d+)(?:\.(\d+))?(?:e([+-]?\d+))?", text)
    if digits is None or cell == "":
        return False
    unit = 10.0 ** (int(digits[3] or 0) - len(digits[2] or ""))
    value = float(cell)
    return math.isclose(float(text), value, abs_tol=0.5000001 * unit, rel_tol=1e-15)
