"""The lesson: complete in both languages, and bound to what exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.explain.levers.levers_helpers import make_input, make_model

from polyhead.explain.chapters import STEPS, Chapter, load_chapters, parse_chapter
from polyhead.explain.levers.table import LEVERS
from polyhead.explain.watch import watch_model
from polyhead.lab.registry import EXPERIMENTS

ROOT = Path(__file__).parents[2]
NAMES = [
    "tokens", "embedding", "positions", "queries-keys-values", "scale", "heads", "masks", "encoder-decoder",
    "residual-norm", "feed-forward", "training", "decoding", "cache", "cost",
]  # fmt: skip
DESIGNS: list[tuple[str, dict[str, Any]]] = [
    ("encoder-decoder", {}),
    ("decoder", {"position": "rope", "norm_first": True, "norm": "rmsnorm", "feed_forward": "swiglu"}),
    ("decoder", {"position": "alibi", "feed_forward": {"name": "moe", "n_experts": 4, "top_k": 2}}),
    ("decoder", {"attention": "linear", "position": "none"}),
    ("decoder", {"block": "lstm", "position": "none"}),
    ("decoder", {"block": "gated_conv", "position": "none"}),
    ("encoder", {"position": "learned"}),
]
OF_THE_PAGE = {"tokens", "output", "generation", "cost"}  # stations that are no step of the model
FRONT = """---
title: A title
look:
  - {step: attention, value: scores, layer: first, head: 2, label: "Look, here"}
lever:
  - {name: scale, setting: {scale: 1}, label: Remove it}
experiment:
  - {name: scaling, claim: "Divided by sqrt(d_k) the variance is 1, whatever d_k."}
papers: ["Vaswani et al., 2017"]
---
"""


def chapters() -> list[Chapter]:
    return [*load_chapters("en"), *load_chapters("zh")]


def links(chapter: Chapter) -> Iterator[tuple[str, dict[str, Any]]]:
    """The targets of the links of a chapter, in order of the text."""
    for paragraph in chapter["paragraphs"]:
        for span in paragraph["spans"]:
            if "look" in span:
                yield "look", span["look"]
            if "lever" in span:
                yield "lever", span["lever"]


def without_labels(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in entry.items() if key != "label"} for entry in entries]


def bindings(chapter: Chapter) -> dict[str, Any]:
    """All of a chapter that does not depend on its language."""
    return {
        "name": chapter["name"],
        "look": without_labels(chapter["look"]),
        "lever": without_labels(chapter["lever"]),
        "experiment": [entry["command"] for entry in chapter["experiment"]],
        "papers": chapter["papers"],
        "links": sorted(map(repr, links(chapter))),
        "conditions": [(paragraph["if"], paragraph["not"]) for paragraph in chapter["paragraphs"]],
        "code": sorted(re.findall(r"[A-Za-z_]{3,}", " ".join(code_of(chapter)))),
    }


def code_of(chapter: Chapter) -> list[str]:
    spans = [span for paragraph in chapter["paragraphs"] for span in paragraph["spans"]]
    return [re.sub(r"layers", "", span["text"]) for span in spans if span.get("style") == "code"]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_lesson_has_fourteen_chapters_in_order(language: str) -> None:
    loaded = load_chapters(language)
    assert [chapter["name"] for chapter in loaded] == NAMES
    assert [chapter["number"] for chapter in loaded] == list(range(1, 15))


@pytest.mark.parametrize("number", range(14))
def test_both_languages_have_the_same_bindings(number: int) -> None:
    assert bindings(load_chapters("en")[number]) == bindings(load_chapters("zh")[number])


def test_titles_and_labels_are_translated() -> None:
    for english, chinese in zip(load_chapters("en"), load_chapters("zh"), strict=True):
        assert english["title"].isascii()
        assert not chinese["title"].isascii()
        for key in ("look", "lever"):
            assert all(entry["label"].isascii() for entry in english[key])  # type: ignore[literal-required]
            assert not any(entry["label"].isascii() for entry in chinese[key])  # type: ignore[literal-required]
        for entry in chinese["experiment"]:
            assert not entry["claim"].isascii(), f"no Chinese in lab.json: {entry['claim']}"


def test_a_chapter_is_short() -> None:
    for chapter in load_chapters("en"):
        text = " ".join(span["text"] for paragraph in chapter["paragraphs"] for span in paragraph["spans"])
        assert 120 <= len(text.split()) <= 220, chapter["name"]
    for chapter in load_chapters("zh"):
        text = "".join(span["text"] for paragraph in chapter["paragraphs"] for span in paragraph["spans"])
        assert 220 <= len(text) <= 400, chapter["name"]


def test_every_chapter_has_a_target_a_lever_an_experiment_and_papers() -> None:
    for chapter in chapters():
        assert chapter["look"] and chapter["lever"] and chapter["experiment"] and chapter["papers"]


def test_every_claim_is_one_of_a_registered_experiment() -> None:
    page = (ROOT / "docs" / "lab.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", page, re.M | re.S))
    for chapter in load_chapters("en"):
        for entry in chapter["experiment"]:
            assert entry["name"] in EXPERIMENTS.names()
            assert f"| {entry['claim']} |" in sections[entry["name"]], entry["claim"]


def record_values(kind: str, changes: dict[str, Any]) -> dict[str, set[str]]:
    """Steps of a model's forward pass, each with the names of its values."""
    model = make_model(kind, **changes)
    lengths = [6, 5] if kind == "encoder-decoder" else [6]
    recorded: dict[str, set[str]] = {}
    with torch.inference_mode(), watch_model(model, lengths, [(0, n) for n in lengths]) as trace:
        model(*(torch.arange(n)[None] + 5 for n in lengths))
    for step in trace.steps:
        name = "cross_attention" if step.memory_side is not None else step.kind
        recorded.setdefault(name, set()).update(step.values)
    return recorded


def test_every_step_and_value_is_recorded_of_some_model() -> None:
    of_designs = [record_values(kind, changes) for kind, changes in DESIGNS]
    assert {name for recorded in of_designs for name in recorded} >= STEPS.keys() - OF_THE_PAGE
    for name, values in STEPS.items():
        assert values <= set().union(*(recorded.get(name, set()) for recorded in of_designs)), name


@pytest.mark.parametrize(("kind", "changes"), DESIGNS)
def test_every_chapter_has_a_target_in_every_model(kind: str, changes: dict[str, Any]) -> None:
    recorded = record_values(kind, changes)
    for chapter in load_chapters("en"):
        looks = [look for look in chapter["look"] if look["step"] in recorded or look["step"] in OF_THE_PAGE]
        assert any("value" not in look or look["value"] in recorded[look["step"]] for look in looks), chapter[
            "name"
        ]


def test_every_lever_has_a_case_of_that_setting() -> None:
    inputs = [make_input(make_model(kind, **changes)) for kind, changes in DESIGNS[:2] + DESIGNS[-1:]]
    cases = {
        name: [case for one in inputs if not lever.find_obstacle(one) for case in lever.list_cases(one)]
        for name, lever in LEVERS.items()
    }
    chapters = load_chapters("en")
    linked = [target for chapter in chapters for kind, target in links(chapter) if kind == "lever"]
    for lever in [*linked, *(lever for chapter in chapters for lever in chapter["lever"])]:
        assert any(includes(case, lever["setting"]) for case in cases[lever["name"]]), lever


def includes(case: Any, setting: Any) -> bool:
    """Whether a case has all values of a setting, also within nested ones."""
    if isinstance(setting, dict):
        return isinstance(case, dict) and all(
            includes(case.get(key), value) for key, value in setting.items()
        )
    return bool(case == setting)


def test_a_paragraph_is_split_into_spans() -> None:
    text = (
        "Some `q·k`, **so** and *so*,\nthen [the scores](#step=attention&value=scores&head=2).\n\n"
        "{if not cross_attention} [No scale](#lever=scale&scale=0.5), "
        "[a policy](#lever=cache&cache.name=h2o) "
        "and [a page](https://example.org)."
    )
    first, second = parse_chapter("05-scale.md", FRONT + text, "en")["paragraphs"]
    assert first == {
        "if": None,
        "not": False,
        "spans": [
            {"text": "Some "},
            {"text": "q·k", "style": "code"},
            {"text": ", "},
            {"text": "so", "style": "strong"},
            {"text": " and "},
            {"text": "so", "style": "emphasis"},
            {"text": ", then "},
            {"text": "the scores", "look": {"step": "attention", "value": "scores", "head": 2}},
            {"text": "."},
        ],
    }
    assert (second["if"], second["not"]) == ("cross_attention", True)
    assert [span for span in second["spans"] if len(span) > 1] == [
        {"text": "No scale", "lever": {"name": "scale", "setting": {"scale": 0.5}}},
        {"text": "a policy", "lever": {"name": "cache", "setting": {"cache": {"name": "h2o"}}}},
        {"text": "a page", "href": "https://example.org"},
    ]


def test_lines_of_chinese_join_without_a_space() -> None:
    (paragraph,) = parse_chapter("05-scale.md", FRONT + "注意力\n比较向量。", "zh")["paragraphs"]
    assert paragraph["spans"] == [{"text": "注意力比较向量。"}]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("step: attention", "step: atention", "unknown step 'atention'; known: tokens, "),
        ("value: scores", "value: rows", "unknown value 'rows' of the step attention; known: hidden, "),
        ("layer: first", "layer: 0", "layer must be first, last or a number from 1, got 0"),
        ("layer: first", "depth: 1", "unknown key 'depth' of a step"),
        (', label: "Look, here"', "", "no label"),
        ("setting: {scale: 1}, ", "", "a lever must have name, setting and label"),
        ("papers:", "paper:", "front matter must have the keys title, look, lever, experiment, papers"),
        ("---\ntitle", "title", "expected NN-name.md with front matter|expected NN-name.md that begins"),
    ],
)
def test_a_mistake_in_the_front_matter_names_the_file(old: str, new: str, message: str) -> None:
    assert old in FRONT
    with pytest.raises(ValueError, match=rf"05-scale\.md: .*(?:{message})"):
        parse_chapter("05-scale.md", FRONT.replace(old, new) + "Text.", "en")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[x](#stp=attention)", "a link must begin with #step=, #lever= or https://"),
        ("[x](#step=norm&value=scores)", "unknown value 'scores' of the step norm"),
        ("{if attnetion} Text.", "unknown condition 'attnetion'"),
    ],
)
def test_a_mistake_in_the_text_names_the_file(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=rf"05-scale\.md: {message}"):
        parse_chapter("05-scale.md", FRONT + text, "en")
