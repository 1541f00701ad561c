"""A page, read back by the parser of the standard library."""

from __future__ import annotations

from html.parser import HTMLParser


class Page(HTMLParser):
    """What a page is made of.

    Args:
        source: Its HTML.

    Attributes:
        elements: Tags with their attributes, in order.
        texts: What is to be read in it; styles and what stands in plots are left out.
        styles: The style sheets.
    """

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
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
        inside = self._inside[-1] if self._inside else ""
        if inside == "style":
            self.styles.append(data)
        elif inside != "text":
            self.texts.append(data)

    @property
    def text(self) -> str:
        """All that is to be read, its lines joined."""
        return " ".join(" ".join(self.texts).split())
