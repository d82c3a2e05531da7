import json
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "img", "input", "wbr"}
RAW = {"script", "style"}


class Page(HTMLParser):
    """Parses a page, and checks that every element is closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs), f"an attribute of <{tag}> is defined twice"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, text):
        self.texts.append((self.open[-1] if self.open else "", text))

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    def words(self):
        return "".join(text for tag, text in self.texts if tag not in RAW)

    def data(self):
        """The data of the drawings; catalogs and links have an id."""
        scripts = [text for tag, text in self.texts if tag == "script"]
        pairs = zip(self.all("script"), scripts, strict=True)
        return [json.loads(text) for attributes, text in pairs if attributes == {"type": "application/json"}]
