"""Pages written by a command in a language, and the texts that are on them."""

import json
import re

from polyhead.cli import main
from polyhead.core.i18n import set_language

_TEXTS = """() => {
  const texts = [];
  const walker = document.createTreeWalker(document.documentElement, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT);
  for (let node = walker.currentNode; node; node = walker.nextNode()) {
    if (node.nodeType === Node.TEXT_NODE) {
      if (!node.parentElement.closest("script, style, pre, code")) texts.push(node.textContent);
    } else {
      for (const name of ["aria-label", "title", "placeholder", "alt"]) texts.push(node.getAttribute(name) ?? "");
    }
  }
  return texts.map((text) => text.trim()).filter(Boolean);
}"""  # noqa: E501
_WORD = re.compile("[A-Za-z]{2,}")


def run_command(language, *arguments):
    """Run a command in a language, and restore that of the tests."""
    try:
        assert main(["--lang", language, *arguments]) == 0
    finally:
        set_language(None)


def find_english(page, names):
    """The words of a Chinese page in Latin letters, without ``names``: data, and technical terms.

    All texts of the page are searched, also hidden ones, tooltips and labels for screen readers, but no code.
    The switch to English has its name in that language.
    """
    words = {word for text in page.evaluate(_TEXTS) for word in _WORD.findall(text)}
    return words - {word for name in names for word in _WORD.findall(name)} - {"Polyhead", "English"}


def read_embedded_json(html):
    """The data embedded in a page, in order; without the catalog of translations."""
    text = html.read_text(encoding="utf-8")
    blocks = re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)
    return [json.loads(block) for block in blocks]
