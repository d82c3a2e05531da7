"""The lesson of the page: chapters in Markdown, checked and split into spans.

A chapter is a file ``chapters/LANGUAGE/NN-name.md``: front matter in YAML, then paragraphs. The front matter
binds it to states of the page (``look``), to levers, to claims of ``polyhead experiments`` and to papers.
``look`` and ``lever`` are lists of alternatives: the page offers the first one that the model has. The
chapter opens at the first station and card of ``at``, again a list of alternatives, by default those of
``look``. A paragraph that begins with ``{if NAME}`` or ``{if not NAME}`` is shown only if the condition holds
for the model. Paragraphs have ``code``, **strong** and *emphasised* words, numbers of this page
(``{kl:scale}``, see ``parse_measure``), and links: ``#step=...`` to a state of the page, ``#lever=...`` to a
lever, with ``&at=weights`` to what it does to attention, ``https://...`` to a page elsewhere. ``recipe`` is
the file of a recipe and its changes, which train the variant of the chapter; ``quiz`` has its questions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any, TypedDict, cast
from urllib.parse import parse_qsl

from polyhead.config.yaml_io import parse_yaml
from polyhead.core.i18n import load_catalog
from polyhead.viz.html_page import REPOSITORY

_ATTENTION = {"q", "k", "v", "scores", "hidden", "weights", "mix", "joined"}
# step of the page -> the values of it that a chapter can point at
STEPS: dict[str, set[str]] = {
    "tokens": set(),
    "embedding": {"rows", "scaled"},
    "position": {"rows", "cos", "sin", "slopes"},
    "norm": {"mean", "variance", "mean_square"},
    "attention": _ATTENTION,
    "cross_attention": _ATTENTION,
    "linear_attention": {"phi_q", "phi_k", "v", "weights", "state"},
    "feed_forward": {"pre", "act", "up", "hidden"},
    "moe": {"expert", "weight", "probability"},
    "recurrent": {"state", "cell"},
    "conv": {"value", "gate"},
    "residual": {"branch"},
    "output": set(),
    "glance": set(),
    "lens": set(),
    "learnt": set(),
    "generation": set(),
    "levers": set(),
    "cost": set(),
}
# properties of a model that a paragraph can depend on, besides having a step
PROPERTIES = {"decoder_only", "encoder_decoder", "encoder", "bidirectional", "causal", "grouped", "gated"}
PROPERTIES |= {"pre_norm", "post_norm", "rope", "layernorm", "relu", "classifier", "causal_recurrent"}
PROPERTIES |= {"bpe", "wordpiece", "unigram", "characters", "recorded", "scored", "beams"}
_KEYS = ["title", "look", "lever", "experiment", "papers"]
_LOOK_KEYS = {"step", "value", "stack", "layer", "head", "side", "if"}
_AT_KEYS = {"step", "value", "stack", "if"}
VERDICTS = {"held", "undecided", "did not hold", "mixed"}
"""Of a claim, as docs/lab.md has it; mixed if a toy task and natural text disagree."""
_FILE = re.compile(r"(\d\d)-([a-z-]+)\.md")
_CONDITION = re.compile(r"\{if (not )?(\w+)\}\s*")
_MARKUP = re.compile(
    r"`([^`]+)`|\*\*([^*]+)\*\*|\*([^*]+)\*|\[([^\[\]]+)\]\(([^()]+)\)|\{([a-z_]+(?::[^{}]+)?)\}"
)
_STYLES = ("code", "strong", "emphasis")


class Span(TypedDict, total=False):
    """A piece of a paragraph: its text, and its style or the target of its link."""

    text: str
    style: str  # code, strong or emphasis
    look: dict[str, Any]
    lever: dict[str, Any]
    href: str
    measure: Measure


class Link(TypedDict):
    """A text and where it leads."""

    text: str
    href: str


# "if" is a keyword of Python: the condition of a paragraph, None if it is always shown
Paragraph = TypedDict("Paragraph", {"if": str | None, "not": bool, "spans": list[Span]})


class Chapter(TypedDict):
    """A chapter of the lesson, as the page gets it."""

    number: int
    name: str
    title: str
    at: list[dict[str, Any]]
    look: list[dict[str, Any]]
    lever: list[dict[str, Any]]
    experiment: list[dict[str, str]]
    recipe: Link | None
    papers: list[Link]
    quiz: list[Question]
    paragraphs: list[Paragraph]


@cache
def load_papers() -> dict[str, str]:
    """The page of each paper, by its authors and year."""
    text = files(__package__ or "polyhead.explain").joinpath("chapters", "papers.yaml").read_text("utf-8")
    papers: dict[str, str] = parse_yaml(text)
    return papers


@cache
def load_chapters(language: str) -> list[Chapter]:
    """The chapters in English ("en") or Chinese ("zh"), in order; ValueError names the file of a mistake."""
    directory = files(__package__ or "polyhead.explain").joinpath("chapters", language)
    texts = {file.name: file.read_text(encoding="utf-8") for file in directory.iterdir()}
    return [parse_chapter(name, texts[name], language) for name in sorted(texts)]


def parse_chapter(file_name: str, text: str, language: str) -> Chapter:
    """A chapter from the text of its file; ValueError if its front matter or a link is wrong."""
    named = _FILE.fullmatch(file_name)
    parts = text.split("---\n", 2)
    if named is None or len(parts) != 3 or parts[0]:
        raise ValueError(
            f"{file_name}: expected NN-name.md that begins with front matter between lines of ---"
        )
    front = parse_yaml(parts[1])
    at, recipe, quiz = (front.pop(key, None) for key in ("at", "recipe", "quiz"))
    if list(front) != _KEYS:
        keys = ", ".join(_KEYS)
        raise ValueError(f"{file_name}: front matter must have the keys {keys}, got {', '.join(front)}")
    try:
        for look in front["look"]:
            _check_look({key: value for key, value in look.items() if key != "label"})
        if at is None:
            at = [{key: value for key, value in look.items() if key in _AT_KEYS} for look in front["look"]]
        for place in at:
            _check_look(place, _AT_KEYS)
        for lever in front["lever"]:
            if set(lever) != {"name", "setting", "label"}:
                raise ValueError(f"a lever must have name, setting and label, got {lever}")
        if unlabelled := [entry for entry in (*front["look"], *front["lever"]) if not entry.get("label")]:
            raise ValueError(f"no label: {unlabelled[0]}")
        claims = load_catalog(language, "lab")
        experiments = [
            {
                "name": entry["name"],
                "claim": claims.get(entry["claim"], entry["claim"]),
                "command": f"polyhead experiments {entry['name']}",
                "href": f"{REPOSITORY}/docs/lab.md#{entry['name']}",
                "verdict": _check_verdict(entry.get("verdict")),
            }
            for entry in front["experiment"]
        ]
        papers = [_link_paper(text) for text in front["papers"]]
        questions = [parse_question(entry) for entry in quiz or ()]
        paragraphs = [_parse_paragraph(block, language) for block in re.split(r"\n{2,}", parts[2].strip())]
    except ValueError as error:
        raise ValueError(f"{file_name}: {error}") from None
    return Chapter(
        number=int(named[1]),
        name=named[2],
        title=front["title"],
        at=at,
        look=front["look"],
        lever=front["lever"],
        experiment=experiments,
        recipe=_link_recipe(recipe) if recipe else None,
        papers=papers,
        quiz=questions,
        paragraphs=paragraphs,
    )


def _check_verdict(verdict: str | None) -> str:
    if verdict is None or verdict not in VERDICTS:
        raise ValueError(f"unknown verdict {verdict!r}; known: {', '.join(sorted(VERDICTS))}")
    return verdict


def _link_paper(text: str) -> Link:
    """A paper with its page, found by the authors and the year that the text begins with."""
    found = re.match(r"[^\d]+, \d{4}", text)
    if found is None or found[0] not in load_papers():
        raise ValueError(f"no page of the paper {text!r} in papers.yaml")
    return Link(text=text, href=load_papers()[found[0]])


def _link_recipe(text: str) -> Link:
    """The command that trains a recipe, given as its name and changes, and the page of its file."""
    name, *changes = text.split()
    command = " ".join(("polyhead train", f"recipes/{name}.yaml", *changes))
    return Link(text=command, href=f"{REPOSITORY}/recipes/{name}.yaml")


def _check_condition(name: str | None) -> None:
    """Check the condition of a paragraph or of a place."""
    if name is not None and name not in STEPS.keys() | PROPERTIES:
        raise ValueError(f"unknown condition {name!r}")


def _check_look(look: dict[str, Any], keys: set[str] = _LOOK_KEYS) -> None:
    """Check a target on the page: a known step, a value of that step, a layer and a head."""
    if look.get("step") not in STEPS:
        raise ValueError(f"unknown step {look.get('step')!r}; known: {', '.join(STEPS)}")
    if surplus := set(look) - keys:
        raise ValueError(f"unknown key {min(surplus)!r} of a step; known: {', '.join(sorted(keys))}")
    _check_condition(look.get("if"))
    if "value" in look and look["value"] not in STEPS[look["step"]]:
        known = ", ".join(sorted(STEPS[look["step"]])) or "none"
        raise ValueError(f"unknown value {look['value']!r} of the step {look['step']}; known: {known}")
    for key in ("layer", "head"):
        place = look.get(key, 1)
        if place not in ("first", "last") and not (isinstance(place, int) and place >= 1):
            raise ValueError(f"{key} must be first, last or a number from 1, got {place!r}")


def _parse_paragraph(block: str, language: str) -> Paragraph:
    """A paragraph of spans, with its condition."""
    condition = _CONDITION.match(block)
    _check_condition(condition[2] if condition else None)
    body = block[condition.end() :] if condition else block
    space = "" if language == "zh" else " "  # at the end of a line of the file
    return {
        "if": condition[2] if condition else None,
        "not": bool(condition and condition[1]),
        "spans": list(_parse_spans(space.join(body.split("\n")))),
    }


def _parse_spans(text: str) -> Iterator[Span]:
    """Plain text, styled words and links, in order."""
    end = 0
    for found in _MARKUP.finditer(text):
        if found.start() > end:
            yield {"text": text[end : found.start()]}
        end = found.end()
        if found[4] is not None:
            yield _parse_link(found[4], found[5])
        elif found[6] is not None:
            yield {"text": "", "measure": parse_measure(found[6], is_text=True)}
        else:
            style, words = next((s, w) for s, w in zip(_STYLES, found.groups()[:3], strict=True) if w)
            yield {"text": words, "style": style}
    if end < len(text):
        yield {"text": text[end:]}


def _parse_link(text: str, target: str) -> Span:
    """A link to a step or a lever of the page, or to a page elsewhere."""
    if target.startswith("https://"):
        return {"text": text, "href": target}
    pairs = {key: parse_yaml(value) for key, value in parse_qsl(target.removeprefix("#"))}
    if "step" in pairs:
        _check_look(pairs)
        return {"text": text, "look": pairs}
    if "lever" in pairs:
        name, place = pairs.pop("lever"), pairs.pop("at", None)
        if place not in (None, "weights"):
            raise ValueError(f"the place of a lever must be weights, got {place!r}")
        lever = {"name": name, "setting": parse_setting(pairs)} | ({"at": place} if place else {})
        return {"text": text, "lever": lever}
    raise ValueError(f"a link must begin with #step=, #lever= or https://, got {target!r}")


# numbers that the page computes (MEASURES of page/measures.js)
MEASURES = {
    *("config", "tokens", "bytes_per_token", "table_size", "embedding_factor", "scale", "group", "heads"),
    *("hidden_share", "cross_cells", "depth", "branch_share", "active_share", "top_weight", "positions"),
    *("right_guesses", "top_probability", "kv_numbers", "flops", "pass_over_step", "parameters", "steps"),
    *("formula_layer", "all_reduce_bytes", "bubble", "distances", "pages", "empty_share", "family"),
    *("state_numbers", "tie_saving", "loss", "perplexity", "levers", "layer_over_head"),
}
LEVER_MEASURES = {"kl", "changed", "largest_kl"}
TEXT_MEASURES = {"table", "difference", "greedy"}
LEVER_TEXT_MEASURES = {"effect"}
_QUESTION_KEYS = ({"ask", "truth", "tolerance"}, {"ask", "truth", "options", "bounds"})


class Measure(TypedDict, total=False):
    """A measure of the page: its name, what it is of, and the setting of a lever."""

    name: str
    of: str
    setting: dict[str, Any]


class Question(TypedDict, total=False):
    """A question, as the page gets it."""

    ask: str
    truth: Measure
    tolerance: float
    options: list[str]
    bounds: list[float]


def parse_setting(pairs: dict[str, Any]) -> dict[str, Any]:
    """The setting of a lever from the fields of a link, where ``cache.name`` is within ``cache``."""
    setting: dict[str, Any] = {}
    for key, value in pairs.items():
        outer, _, inner = key.partition(".")
        if inner:
            setting.setdefault(outer, {})[inner] = value
        else:
            setting[key] = value
    return setting


def parse_measure(text: str, *, is_text: bool = False) -> Measure:
    """A measure from its text; ``is_text`` allows those that are no numbers."""
    name, _, rest = text.partition(":")
    of, _, query = rest.partition("?")
    levers = LEVER_MEASURES | (LEVER_TEXT_MEASURES if is_text else set())
    if name not in levers | MEASURES | (TEXT_MEASURES if is_text else set()):
        raise ValueError(f"unknown measure {name!r}")
    if bool(query) and name not in levers:
        raise ValueError(f"the measure {name!r} has no setting, got {text!r}")
    measure = Measure(name=name)
    if of:
        measure["of"] = of
    if name in levers:
        measure["setting"] = parse_setting({key: parse_yaml(value) for key, value in parse_qsl(query)})
    return measure


def parse_question(entry: dict[str, Any]) -> Question:
    """A question of the front matter, checked."""
    if set(entry) not in _QUESTION_KEYS:
        raise ValueError(
            f"a question must have ask, truth and either tolerance or options and bounds, got {entry}"
        )
    if "options" in entry and len(entry["options"]) != len(entry["bounds"]) + 1:
        raise ValueError(f"a question must have one option more than bounds, got {entry}")
    return cast(Question, entry | {"truth": parse_measure(entry["truth"])})
