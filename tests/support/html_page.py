"""A page, read back by the parser of the standard library."""

from __future__ import annotations

import base64
import gzip
import json
from html.parser import HTMLParser
from typing import Any


class Page(HTMLParser):
    """What a page is made of.

    Args:
        source: Its HTML.

    Attributes:
        elements: Tags with their attributes, in order.
        texts: What is to be read in it, scripts and styles left out.
        scripts: The contents of scripts that are run.
        plots: The plots, as plain JSON.
        styles: The style sheets.
    """

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.plots: list[Any] = []
        self.styles: list[str] = []
        self._inside: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """See ``HTMLParser``."""
        self.elements.append((tag, dict(attrs)))
        self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """See ``HTMLParser``."""
        self._inside.append("")

    def handle_data(self, data: str) -> None:
        """See ``HTMLParser``."""
        tag, attributes = self.elements[-1] if self.elements else ("", {})
        if not self._inside or self._inside[-1] not in {"script", "style"}:
            self.texts.append(data)
        elif tag == "style":
            self.styles.append(data)
        elif attributes.get("id") == "plots":
            plain = gzip.decompress(base64.b64decode(data, validate=True))
            self.plots = json.loads(plain, parse_constant=_refused)
        elif "type" not in attributes:
            self.scripts.append(data)

    @property
    def text(self) -> str:
        """All that is to be read, its lines joined."""
        return " ".join(" ".join(self.texts).split())

    def titles(self) -> list[str]:
        """The titles of the plots, in order."""
        return [attributes["aria-label"] or "" for _, attributes in self.elements if "aria-label" in attributes]

    def plot(self, title: str) -> Any:  # noqa: ANN401 -- plain JSON
        """The first plot of that title."""
        return self.plots[self.titles().index(title)]


def _refused(constant: str) -> None:
    """Python's JSON would read NaN; a browser does not."""
    raise AssertionError(f"{constant} is no JSON")
