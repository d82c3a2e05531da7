import re
from pathlib import Path

import pytest
import torch
from tests.explain.levers.levers_helpers import make_input, make_model

from polyhead.config.recipe import read_recipe
from polyhead.explain.chapters import STEPS, load_chapters, parse_chapter, parse_measure, parse_question
from polyhead.explain.levers.table import LEVERS
from polyhead.explain.watch import watch_model
from polyhead_lab.registry import EXPERIMENTS

ROOT = Path(__file__).parents[2]
NAMES = [chapter["name"] for chapter in load_chapters("en")]
ALTERNATIVES = {"wordpiece", "unigram", "characters"}  # of a model whose tokenizer is bpe
DESIGNS = [
    ("encoder-decoder", {}),
    ("decoder", {"position": "rope", "norm_first": True, "norm": "rmsnorm", "feed_forward": "swiglu"}),
    ("decoder", {"position": "alibi", "feed_forward": {"name": "moe", "n_experts": 4, "top_k": 2}}),
    ("decoder", {"attention": "linear", "position": "none"}),
    ("decoder", {"block": "lstm", "position": "none"}),
    ("decoder", {"block": "gated_conv", "position": "none"}),
    ("decoder", {"block": "conv", "position": "none"}),
    ("encoder", {"position": "learned"}),
]
# stations of the page that are no step of the model
PAGE_STEPS = {"tokens", "output", "generation", "levers", "cost", "glance", "lens", "learnt"}
FRONT_MATTER = """---
title: A title
look:
  - {step: attention, value: scores, layer: first, head: 2, label: "Look, here"}
lever:
  - {name: scale, setting: {scale: 1}, label: Remove it}
experiment:
  - {name: scaling, claim: "Divided by sqrt(d_k) the variance is 1, whatever d_k.", verdict: held}
recipe: dates-en-zh model.position=rope
papers: ["Vaswani et al., 2017, section 3"]
quiz:
  - {ask: "How far?", truth: "kl:scale?scale=1", options: [a little, far], bounds: [0.1]}
---
"""


def find_links(chapter):
    for paragraph in chapter["paragraphs"]:
        for span in paragraph["spans"]:
            yield from ((kind, span[kind]) for kind in ("look", "lever") if kind in span)


def list_spans(chapter):
    return [span for paragraph in chapter["paragraphs"] for span in paragraph["spans"]]


def join_spans(chapter, separator, style=None):
    return separator.join(span["text"] for span in list_spans(chapter) if style in (None, span.get("style")))


def collect_bindings(chapter):
    """All of a chapter that does not depend on its language."""
    code = join_spans(chapter, " ", "code").replace("layers", "")
    return {
        "name": chapter["name"],
        "experiment": [(entry["command"], entry["href"]) for entry in chapter["experiment"]],
        "papers": chapter["papers"],
        "recipe": chapter["recipe"],
        "quiz": [(str(one["truth"]), one.get("tolerance"), one.get("bounds")) for one in chapter["quiz"]],
        "verdicts": [entry["verdict"] for entry in chapter["experiment"]],
        "at": chapter["at"],
        "measures": sorted(repr(span["measure"]) for span in list_spans(chapter) if "measure" in span),
        "links": sorted(map(repr, find_links(chapter))),
        "conditions": [(paragraph["if"], paragraph["not"]) for paragraph in chapter["paragraphs"]],
        "code": sorted(re.findall(r"[A-Za-z_]{3,}", code)),
    } | {
        kind: [{key: value for key, value in entry.items() if key != "label"} for entry in chapter[kind]]
        for kind in ("look", "lever")
    }


@pytest.mark.parametrize("name", NAMES)
def test_languages_have_same_bindings_and_translated_texts(name):
    english, chinese = (load_chapters(language)[NAMES.index(name)] for language in ("en", "zh"))
    assert english["number"] == chinese["number"]
    assert collect_bindings(english) == collect_bindings(chinese)
    for key in ("at", "look", "lever", "experiment", "papers", "quiz"):
        assert english[key], key
    for chapter, is_chinese in ((english, False), (chinese, True)):
        texts = [chapter["title"], *(entry["label"] for key in ("look", "lever") for entry in chapter[key])]
        texts += [text for one in chapter["quiz"] for text in (one["ask"], *one.get("options", ()))]
        assert {bool(re.search(r"[\u4e00-\u9fff]", text)) for text in texts} == {is_chinese}
    assert not any(entry["claim"].isascii() for entry in chinese["experiment"]), "a claim lacks in lab.json"
    for chapter in (english, chinese):
        shown = [one for one in chapter["paragraphs"] if one["if"] not in ALTERNATIVES]
        text = join_spans({"paragraphs": shown}, " " if chapter is english else "")
        length, most = (len(text.split()), 255) if chapter is english else (len(text), 480)
        assert 0.45 * most <= length <= most, length


def test_claims_have_the_verdicts_of_the_lab():
    page = (ROOT / "docs" / "lab.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", page, re.M | re.S))
    for entry in (entry for chapter in load_chapters("en") for entry in chapter["experiment"]):
        assert entry["name"] in EXPERIMENTS.names()
        assert entry["href"].endswith(f"/docs/lab.md#{entry['name']}")
        lines = sections[entry["name"]].splitlines()
        rows = [line for line in lines if line.startswith(f"| {entry['claim']} |")]
        measured = re.findall(r"\*\*(held|undecided|did not hold)\.?\*\*", " ".join(rows), re.I)
        verdicts = {verdict.lower() for verdict in measured}
        assert rows and entry["verdict"] == (verdicts.pop() if len(verdicts) == 1 else "mixed"), entry


def test_recipes_exist_and_take_their_changes():
    for chapter in load_chapters("en"):
        if chapter["recipe"] is None:
            continue
        _, _, name, *changes = chapter["recipe"]["text"].split()
        changes = [change for change in changes if "=" in change and not change.startswith("data.root")]
        read_recipe(ROOT / name, changes)
        assert chapter["recipe"]["href"].endswith(name)


def record_values(kind, changes):
    model = make_model(kind, **changes)
    lengths = [6, 5] if kind == "encoder-decoder" else [6]
    steps = {}
    with torch.inference_mode(), watch_model(model, lengths, [(0, n) for n in lengths]) as trace:
        model(*(torch.arange(n)[None] + 5 for n in lengths))
    for step in trace.steps:
        name = "cross_attention" if step.memory_side is not None else step.kind
        steps.setdefault(name, set()).update(step.values)
    return steps


def test_steps_and_chapters_match_recorded_values():
    """Every step and value is recorded of some model, and every chapter has a target in every model."""
    records = [record_values(kind, changes) for kind, changes in DESIGNS]
    assert {name for record in records for name in record} >= STEPS.keys() - PAGE_STEPS
    for name, values in STEPS.items():
        assert values <= set().union(*(record.get(name, set()) for record in records)), name
    for record in records:
        for chapter in load_chapters("en"):
            looks = [look for look in chapter["look"] if look["step"] in record.keys() | PAGE_STEPS]
            values = [look["value"] in record[look["step"]] if "value" in look else True for look in looks]
            assert any(values), chapter["name"]


def test_lever_links_have_a_case():
    inputs = [make_input(make_model(kind, **changes)) for kind, changes in DESIGNS[:2] + DESIGNS[-1:]]
    cases = {
        name: [case for one in inputs if not lever.find_obstacle(one) for case in lever.list_cases(one)]
        for name, lever in LEVERS.items()
    }
    for chapter in load_chapters("en"):
        links = [target for kind, target in find_links(chapter) if kind == "lever"]
        for lever in [*links, *chapter["lever"]]:
            setting = {name: value for name, value in lever["setting"].items() if name != "case"}
            assert lever["setting"].get("case", "largest") == "largest", lever
            assert any(includes(case, setting) for case in cases[lever["name"]]), lever


def includes(case, setting):
    """Whether a case has all values of a setting, also within nested ones."""
    if not isinstance(setting, dict):
        return case == setting
    return isinstance(case, dict) and all(includes(case.get(key), value) for key, value in setting.items())


def parse_paragraphs(text, language="en"):
    return parse_chapter("05-scale.md", FRONT_MATTER + text, language)["paragraphs"]


def test_paragraph_is_split_into_spans():
    text = (
        "Some `q·k`, **so** and *so*,\nthen [the scores](#step=attention&value=scores&head=2).\n\n"
        "{if not cross_attention} [No scale](#lever=scale&scale=0.5), "
        "[a policy](#lever=cache&cache.name=h2o) and [a page](https://example.org)."
    )
    first, second = parse_paragraphs(text)
    assert "".join(span["text"] for span in first["spans"]) == "Some q·k, so and so, then the scores."
    assert [span for span in first["spans"] if len(span) > 1] == [
        {"text": "q·k", "style": "code"},
        {"text": "so", "style": "strong"},
        {"text": "so", "style": "emphasis"},
        {"text": "the scores", "look": {"step": "attention", "value": "scores", "head": 2}},
    ]
    assert (first["if"], first["not"]) == (None, False)
    assert (second["if"], second["not"]) == ("cross_attention", True)
    assert [span for span in second["spans"] if len(span) > 1] == [
        {"text": "No scale", "lever": {"name": "scale", "setting": {"scale": 0.5}}},
        {"text": "a policy", "lever": {"name": "cache", "setting": {"cache": {"name": "h2o"}}}},
        {"text": "a page", "href": "https://example.org"},
    ]
    # lines of Chinese join without a space
    (paragraph,) = parse_paragraphs("注意力\n比较向量。", "zh")
    assert paragraph["spans"] == [{"text": "注意力比较向量。"}]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("step: attention", "step: atention", "unknown step 'atention'; known: tokens, "),
        ("value: scores", "value: rows", "unknown value 'rows' of the step attention; known: hidden, "),
        ("layer: first", "layer: 0", "layer must be first, last or a number from 1, got 0"),
        (', label: "Look, here"', "", "no label"),
        ("setting: {scale: 1}, ", "", "a lever must have name, setting and label"),
        ("---\ntitle", "title", "expected NN-name.md with front matter|expected NN-name.md that begins"),
        ("TEXT", "[x](#stp=attention)", "a link must begin with #step=, #lever= or https://"),
        ("TEXT", "{if attnetion} Text.", "unknown condition 'attnetion'"),
        ("verdict: held", "verdict: true", "unknown verdict True; known: did not hold, held, mixed"),
        ("et al., 2017", "et al., 2071", "no page of the paper 'Vaswani et al., 2071, section 3'"),
        ("kl:scale", "kll:scale", "unknown measure 'kll'"),
        ("bounds: [0.1]", "bounds: [0.1, 1]", "one option more than bounds"),
        (", bounds: [0.1]", "", "either tolerance or options and bounds"),
        ("TEXT", "Here {los} nats.", "unknown measure 'los'"),
        ("TEXT", "{tokens:a?b=1}", "the measure 'tokens' has no setting"),
    ],
)
def test_error_in_chapter_names_file(old, new, message):
    text = FRONT_MATTER + "TEXT"
    assert old in text
    with pytest.raises(ValueError, match=rf"05-scale\.md: .*(?:{message})"):
        parse_chapter("05-scale.md", text.replace(old, new), "en")


def test_measure_has_name_part_and_setting():
    assert parse_measure("tokens") == {"name": "tokens"}
    assert parse_measure("config:d_model") == {"name": "config", "of": "d_model"}
    setting = {"cache": {"name": "h2o", "budget": 8}, "layer": 0}
    measure = parse_measure("kl:cache?cache.name=h2o&cache.budget=8&layer=0")
    assert measure == {"name": "kl", "of": "cache", "setting": setting}
    assert parse_measure("effect:scale", is_text=True) == {"name": "effect", "of": "scale", "setting": {}}
    with pytest.raises(ValueError, match="unknown measure 'effect'"):
        parse_measure("effect:scale")


def test_question_has_tolerance_or_options():
    question = parse_question({"ask": "How many?", "truth": "tokens", "tolerance": 0})
    assert question == {"ask": "How many?", "truth": {"name": "tokens"}, "tolerance": 0}
    with pytest.raises(ValueError, match="either tolerance or options and bounds"):
        parse_question({"ask": "How many?", "truth": "tokens"})
