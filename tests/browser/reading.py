"""Pages written by a command in a language, and what a reader finds on them: texts, and those that stayed in
English.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from polyhead.cli import main
from polyhead.core import i18n

_TEXTS = """() => {
  const found = [];
  const walker = document.createTreeWalker(document.documentElement, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT);
  for (let node = walker.currentNode; node; node = walker.nextNode()) {
    if (node.nodeType === Node.TEXT_NODE) {
      if (!node.parentElement.closest("script, style, pre, code")) found.push(node.textContent);
    } else {
      for (const name of ["aria-label", "title", "placeholder", "alt"]) found.push(node.getAttribute(name) ?? "");
    }
  }
  return found.map((text) => text.trim()).filter(Boolean);
}"""  # noqa: E501
_WORD = re.compile("[A-Za-z]{2,}")


def run_command(language: str, *arguments: str) -> None:
    """Run a command in a language, and leave that of the tests as it was."""
    try:
        assert main(["--lang", language, *arguments]) == 0
    finally:
        i18n.set_language(None)


def read_texts(page: Any) -> list[str]:
    """All texts of an open page, hidden ones, tooltips and labels for screen readers among them; no code."""
    texts: list[str] = page.evaluate(_TEXTS)
    return texts


def find_english(page: Any, names: set[str]) -> set[str]:
    """The words of a Chinese page in Latin letters, those of ``names`` left out: data, and names of the
    field.
    """
    words = {word for text in read_texts(page) for word in _WORD.findall(text)}
    return words - {word for name in names for word in _WORD.findall(name)} - {"Polyhead"}


def embedded(html: Path) -> list[Any]:
    """The data in a page, in order; its catalog is not among them."""
    found = re.findall(
        r'<script type="application/json">(.*?)</script>', html.read_text(encoding="utf-8"), re.DOTALL
    )
    return [json.loads(text) for text in found]
