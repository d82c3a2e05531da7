"""Trains four small models on the text of the example recipe, and writes the page of `polyhead explain` of
each into build/pages: `./dev pages`. `./dev site` includes the pages that are there, and links them.

python docs/ready_pages.py [NAME ...]
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
CORPUS, OUTPUT = ROOT / "recipes" / "dates-en-zh", ROOT / "build" / "pages"
LABELS = {
    "countries": r"^\D+$",
    "how long": r" ago$|^in ",
    "interval": "–",
    "time": r"\d:\d\d",
    "date": r"\d/\d|quarter|^Q\d|(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec).* \d+$",
}  # of a phrase, the first that occurs in it; any other is an amount


class ReadyPage(NamedTuple):
    """What is trained and which text its page explains; ``recipe`` changes the recipe of all."""

    title: str
    chinese: str
    recipe: dict[str, Any]
    text: str
    target: str | None = None
    steps: int = 400


MODEL = {
    "d_model": 64,
    "n_layers": 2,
    "n_heads": 4,
    "max_len": 64,
    "norm_first": True,
    "position": "rope",
    "dropout": 0.0,
}
TRANSLATION = {"train": ["train.en", "train.zh"], "valid": ["valid.en", "valid.zh"]}
TRANSLATION |= {"source_lang": "en", "target_lang": "zh"}
CLASSES = {"train": "train.tsv", "valid": "valid.tsv", "text": "phrase", "label": "kind"}
BOTH = {"train": "train.txt", "valid": "valid.txt", "document_separator": "line"}
LINEAR = {"attention": "linear", "position": "sinusoidal"}
DATE = "Oct 19, 2013 = 2013年10月"
LM = {"task": "language-model", "data": BOTH, "tokenizer": {"kind": "bpe", "vocab_size": 400}}
LM |= {"generation": {"temperature": 0, "max_new_tokens": 12}}
PAGES = {
    "translator": ReadyPage(
        "a translator",
        "翻译模型",
        {"data": TRANSLATION, "generation": {"beam_size": 4}},
        "Thursday, January 14, 2049",
        "2049年1月14日星期四",
        steps=600,
    ),
    "language-model": ReadyPage("a language model", "语言模型", LM, DATE, steps=800),
    "classifier": ReadyPage(
        "a classifier", "分类器", {"task": "classification", "data": CLASSES}, "Portugal, France, or Morocco",
        steps=200,
    ),
    "linear-attention": ReadyPage(
        "linear attention", "线性注意力", LM | {"model": MODEL | LINEAR}, DATE, steps=800
    ),
}  # fmt: skip


def write_corpus(directory: Path) -> None:
    """Write the text of the example for each task: pairs, lines "English = Chinese", phrases with a kind."""
    for split in ("train", "valid"):
        english, chinese = ((CORPUS / f"{split}.{end}").read_text(encoding="utf-8") for end in ("en", "zh"))
        pairs = list(zip(english.splitlines(), chinese.splitlines(), strict=True))
        kinds = [f"{find_label(phrase)}\t{phrase}" for phrase, _ in pairs]
        for name, text in (
            (f"{split}.en", english),
            (f"{split}.zh", chinese),
            (f"{split}.txt", "".join(f"{source} = {target}\n" for source, target in pairs)),
            (f"{split}.tsv", "\n".join(["kind\tphrase", *kinds, ""])),
        ):
            (directory / name).write_text(text, encoding="utf-8")


def find_label(phrase: str) -> str:
    """The kind of a phrase."""
    return next((label for label, pattern in LABELS.items() if re.search(pattern, phrase)), "amount")


def make_recipe(name: str, directory: Path, steps: int | None = None) -> dict[str, Any]:
    """The recipe of a page's model, whose corpus and run are in ``directory``."""
    steps = steps or PAGES[name].steps
    recipe: dict[str, Any] = {
        "model": MODEL,
        "tokenizer": {"kind": "bpe", "vocab_size": 800},
        "train": {"steps": steps, "max_tokens": 1024, "lr": 0.005, "eval_every": steps, "save_every": steps}
        | {"schedule": {"name": "cosine", "warmup": steps // 10}},
        "out": str(directory / name),
    } | PAGES[name].recipe
    recipe["data"] = recipe["data"] | {"root": str(directory), "max_len": 48}
    return recipe


def write_page(name: str, directory: Path, output: Path = OUTPUT, steps: int | None = None) -> Path:
    """Train the model of a page on the corpus in ``directory`` and write the page."""
    import polyhead as ph
    from polyhead.explain.chapters import load_chapters
    from polyhead.explain.document import explain
    from polyhead.explain.walk_page import render_walk_page
    from polyhead.run.recipe import validate_recipe
    from polyhead.viz.html_page import save_page

    run = ph.train(validate_recipe(make_recipe(name, directory, steps)))
    document = explain(run, PAGES[name].text, PAGES[name].target)
    chapters = {language: load_chapters(language) for language in ("en", "zh")}
    links = {"pages": {}, "command": "", "home": "../explain.html"}
    return save_page(output / f"{name}.html", render_walk_page(document, chapters=chapters, links=links))


def main(names: list[str]) -> None:
    """Write the named pages, or all of them."""
    with tempfile.TemporaryDirectory() as directory:
        write_corpus(Path(directory))
        for name in names or PAGES:
            path = write_page(name, Path(directory))
            print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main(sys.argv[1:])
