"""HTML as a reader meets it: which elements there are, that all are closed, and all text."""

from html.parser import HTMLParser


class Reading(HTMLParser):
    """Which elements there are, all closed, and all text."""

    EMPTY = ("meta", "br")

    def __init__(self, page):
        super().__init__()
        self.open, self.names, self.attributes, self.texts = [], [], [], []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.attributes += [name for name, _ in attrs]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.names.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)
