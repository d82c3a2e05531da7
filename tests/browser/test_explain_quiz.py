"""Questions of the chapters and the hand-out: what the page computes, marks and prints."""

import re

import numpy as np
import pytest
import torch
from tests.browser.explain_pages import find_lever, open_walk
from tests.explain.explain_helpers import (
    DESIGNS,
    TARGET,
    TEXT,
    ReferenceWalk,
    explain_walk,
    make_run,
    walk_model,
)

from polyhead.explain.chapters import load_chapters, parse_measure
from polyhead.explain.document import explain
from polyhead.explain.walk_page import render_walk_page
from polyhead.nn.attention.softmax import Attention
from polyhead.viz.html_page import save_page

CHAPTERS = {language: load_chapters(language) for language in ("en", "zh")}


@pytest.fixture(scope="module")
def walk_page(tmp_path_factory):
    """The run of Vaswani et al., its document and its page."""
    run = make_run(**DESIGNS["Vaswani et al."][0])
    document = explain(run, TEXT, TARGET)
    path = tmp_path_factory.mktemp("quiz") / "page.html"
    save_page(path, render_walk_page(document, chapters=CHAPTERS))
    return run, document, path


def compute_truths(run, document):
    """Every measure of the questions, from the model and the texts."""
    model, config = run.model, run.config
    source, target = ([token["id"] for token in side["tokens"]] for side in document["sides"])
    S, T, H, D = len(source), len(target), config.d_model, config.head_dim
    walk = ReferenceWalk()
    walk_model(run, document, walk)
    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    ffn = (
        model.encoder.stack.layers[0].ffn if hasattr(model.encoder, "stack") else model.encoder.layers[0].ffn
    )
    active = []
    hook = next(m for m in ffn.modules() if isinstance(m, torch.nn.Linear)).register_forward_hook(
        lambda module, args, out: active.append((out > 0).double().mean().item())
    )
    with torch.no_grad():
        logits = model(torch.tensor([source]), torch.tensor([target]))[0]
    hook.remove()
    labels = [one["expected"]["id"] for one in document["output"]["positions"] if one["expected"]]
    at = [one["position"] for one in document["output"]["positions"] if one["expected"]]
    losses = torch.nn.functional.cross_entropy(logits[at], torch.tensor(labels), reduction="none")
    added, x = (walk.arrays[f"encoder.layers.0.{name}"] for name in ("attn.out", "attn_residual.norm.out"))
    del x  # the input of the first sub-layer is the sum of embedding and position
    entered = walk.arrays["encoder.layers.0.attn_residual.out"] - added
    pieces = [token["text"] for token in document["sides"][0]["tokens"] if not token["special"]]

    def mean_kl(lever, **setting):
        cases = find_lever(document, lever)["cases"]
        return next(one for one in cases if setting.items() <= one["setting"].items())["result"]["mean_kl"]

    n = sum(p.numel() for p in model.parameters())
    heads = [one["result"]["mean_kl"] for one in find_lever(document, "head")["cases"]]
    changed = find_lever(document, "shuffle")["cases"]
    costs = document["costs"]
    return {
        "tokens": S,
        "bytes_per_token": np.mean([len(text.encode()) for text in pieces]),
        "table_size": next(m for m in model.modules() if isinstance(m, torch.nn.Embedding)).weight.numel(),
        "embedding_factor": H**0.5,
        "kl:positions": mean_kl("positions"),
        "changed:shuffle?positions=kept": len(
            next(one for one in changed if one["setting"]["positions"] == "kept")["result"]["changed"]
        ),
        "config:max_len": 64,
        "distances": len({i - j for i in range(S) for j in range(S)}),
        "config:head_dim": attentions[0].q_proj.out_features // 4,
        "top_weight": walk.arrays["encoder.layers.0.attn.weights"][0, -1].max().item(),
        "tie_saving": attentions[0].k_proj.weight.numel(),
        "kl:head?layer=0&head=0": mean_kl("head", layer=0, head=0),
        "scale": D**-0.5,
        "kl:scale?scale=1": mean_kl("scale", scale=1),
        "heads": 4 * len(attentions),
        "group": 1,
        "largest_kl:head": max(heads),
        "hidden_share": np.triu(np.ones((T, T)), 1).mean(),
        "kl:causal_mask": mean_kl("causal_mask"),
        "cross_cells": S * T,
        "depth": 4,
        "branch_share": (added.norm(dim=-1) / entered.norm(dim=-1)).mean().item(),
        "kl:layer?layer=0": mean_kl("layer", layer=0),
        "kl:layer?layer=1": mean_kl("layer", layer=1),
        "config:d_model": H,
        "config:d_ff": 48,
        "config:d_ff*d_model": 48 * 32,
        "active_share": np.mean(active),
        "positions": len(labels),
        "right_guesses": int((logits[at].argmax(-1) == torch.tensor(labels)).sum()),
        "loss": losses.mean().item(),
        "perplexity": losses.mean().exp().item(),
        "top_probability": logits[-1].softmax(-1).max().item(),
        "kl:sampling?temperature=1.5": mean_kl("sampling", temperature=1.5),
        "kv_numbers": 2 * 2 * attentions[0].k_proj.out_features,
        "kl:cache?cache.name=h2o": next(
            one["result"]["mean_kl"]
            for one in find_lever(document, "cache")["cases"]
            if one["setting"]["cache"]["name"] == "h2o"
        ),
        "pages": -(-T // 16),
        "empty_share": (64 - T) / 64,
        "flops": costs["total"]["flops"],
        "pass_over_step": costs["total"]["flops"] / costs["decode_step"]["flops"],
        "parameters": n,
        "formula_layer": 4 * (H * H + H) + (8 * H * H + 5 * H) + 4 * H,
        "all_reduce_bytes": 2 * 3 * 4 * n / 4,
        "bubble": 3 / 7,
        "family": 2,
        "state_numbers": D * (D + 1),
        "layer_over_head": mean_kl("layer", layer=0) / max(heads),
        "levers": sum(not lever["reason"] for lever in document["levers"]["levers"]),
    }


def open_chapter(page, name):
    page.evaluate("name => explain.go({ chapter: chaptersOf().findIndex((one) => one.name === name) })", name)


def test_truths_match_model(walk_page, open_page):
    run, document, path = walk_page
    expected = compute_truths(run, document)
    assert all(chapter["quiz"] for chapter in CHAPTERS["en"])
    truths = [one["truth"] for chapter in CHAPTERS["en"] for one in chapter["quiz"]]
    measured = open_walk(open_page, path).evaluate("all => all.map((one) => measure(one))", truths)
    by_measure = {str(parse_measure(text)): value for text, value in expected.items()}
    for truth, value in zip(truths, measured, strict=True):
        assert value == pytest.approx(by_measure[str(truth)], rel=1e-4, abs=1e-6), truth


def test_right_answer_is_marked_and_kept(walk_page, open_page):
    _, document, path = walk_page
    page = open_walk(open_page, path)
    page.evaluate("explain.go({ chapter: 0 })")
    n = len(document["sides"][0]["tokens"])
    question = page.locator(".question").first
    for answer, mark in ((n + 1, "✗"), (n, f"✓ {n}")):
        question.locator("input").fill(str(answer))
        question.locator("button").click()
        assert question.locator(".note").inner_text().startswith(mark)
    page.reload()
    page.wait_for_selector("html[data-ready]", state="attached")
    assert page.locator(".question .note").first.inner_text() == f"✓ {n}"
    assert "✓" not in page.locator("[data-focus=chapter] option").first.inner_text()  # one of two questions
    mean = np.mean(
        [len(one["text"].encode()) for one in document["sides"][0]["tokens"] if not one["special"]]
    )
    page.locator(".question").nth(1).locator("input").fill(f"{mean:.2f}")
    page.locator(".question").nth(1).locator("button").click()
    page.evaluate("explain.go({ chapter: 0 })")
    assert "✓" in page.locator("[data-focus=chapter] option").first.inner_text()


def test_sentence_follows_measured_result(walk_page, open_page):
    _, document, path = walk_page
    page = open_walk(open_page, path)
    (result,) = [one["result"] for one in find_lever(document, "scale")["cases"]]
    open_chapter(page, "scale")
    text = page.locator("#lesson .measure").last.inner_text()
    size = "almost nothing" if result["mean_kl"] < 0.01 else "a little" if result["mean_kl"] < 0.1 else "much"
    assert f"here it changes {size}: KL {result['mean_kl']:.2g}" in text
    assert f"{len(result['changed'])} of {len(result['kl'])} guesses" in text


def test_counts_have_a_closed_form(walk_page, open_page):
    run, _, path = walk_page
    page = open_walk(open_page, path)
    open_chapter(page, "parameters")
    values = page.locator("#lesson .counts").first.locator("td[data-value]")
    numbers = [float(x) for x in values.evaluate_all("all => all.map((one) => one.dataset.value)")]
    layer = run.model.encoder.layers[0]
    parts = [sum(p.numel() for p in part.parameters()) for part in (layer.attn, layer.ffn)]
    norms = sum(p.numel() for name, p in layer.named_parameters() if "norm" in name)
    total, H, V = sum(p.numel() for p in run.model.parameters()), 32, run.config.vocab_size
    assert numbers[:4] == [4 * H * H + 4 * H, parts[0], 8 * H * H + 5 * H, parts[1]]
    assert numbers[4:8] == [4 * H, norms, 12 * H * H + 13 * H, sum(parts) + norms]
    assert numbers[8:] == [V * H, V * H, 4 * (12 * H * H + 13 * H) + V * H, total]


def test_difference_from_closed_form_is_explained(walk_page, open_page):
    run, _, path = walk_page
    page = open_walk(open_page, path)
    open_chapter(page, "parameters")
    text = page.locator("#lesson p .measure").inner_text()
    H, L, total = 32, 4, sum(p.numel() for p in run.model.parameters())

    def count(*names):
        named = run.model.named_parameters()
        return sum(p.numel() for name, p in named if any(one in name for one in names))

    expected = {
        "Feed-forward": count(".ffn.") - L * (8 * H * H + 5 * H),
        "Norms of the layers": count("_residual.norm") - L * 4 * H,
        "Cross-attention": count(".cross."),
    }
    parts = re.findall(r"([A-Z][\w\s-]*\w) ([+−][\d,]+)", text)
    assert {name: int(n.replace(",", "").replace("−", "-")) for name, n in parts} == expected
    all_fewer = L * (12 * H * H + 13 * H) + run.config.vocab_size * H - total
    assert "Here L is 4 (2 + 2)." in text
    assert f"{all_fewer:,} weights fewer" in text
    assert all_fewer == -sum(expected.values())


def test_skipped_layer_saves_its_weights(walk_page, open_page):
    run, _, path = walk_page
    page = open_walk(open_page, path)
    open_chapter(page, "parameters")
    page.get_by_role("button", name="Skip a layer").click()
    saved = page.locator("#card-lever .fact-row > div", has=page.get_by_text("weights saved", exact=True))
    n = sum(p.numel() for p in run.model.encoder.layers[0].parameters())
    assert saved.locator("dd").inner_text() == f"{n:,}"


def test_bytes_of_full_cache_match_chapter(walk_page):
    """2 · layers · n_kv_heads · head_dim numbers of 4 bytes and a position of 8 for each token."""
    run, document, _ = walk_page
    config, tokens = run.config, len(document["sides"][1]["tokens"])
    numbers = 2 * config.decoder_layers * config.kv_heads * config.head_dim
    (cache, *_) = find_lever(document, "cache")["cases"]
    assert cache["detail"]["bytes_static"] == tokens * (4 * numbers + 8)


@pytest.mark.parametrize("seed", [0, 1])
def test_sentence_compares_beams_with_greedy_decoding(seed, open_page, tmp_path):
    beams = {"beam_size": 2, "max_length_ratio": 0.0, "max_length_extra": 4}
    run = make_run(seed=seed, generation=beams)
    document = explain_walk(run, TEXT, TARGET)
    source, target = ([token["id"] for token in side["tokens"]] for side in document["sides"])
    tokens, found = target[:1], document["generation"]["outputs"][0]["ids"]
    for _ in found:
        with torch.no_grad():
            tokens.append(int(run.model(torch.tensor([source]), torch.tensor([tokens]))[0, -1].argmax()))
    path = save_page(tmp_path / "page.html", render_walk_page(document, chapters=CHAPTERS))
    page = open_walk(open_page, path)
    open_chapter(page, "decoding")
    text = page.locator("#lesson .measure").first.inner_text()
    assert ("greedy decoding writes the same" in text) == (tokens[1:] == found) == (seed == 1)
    step = next((i for i, pair in enumerate(zip(tokens[1:], found, strict=True)) if len({*pair}) > 1), None)
    assert step is None or f"at step {step + 1}" in text


def test_chapters_lead_to_largest_effect(walk_page, open_page):
    _, document, path = walk_page
    page = open_walk(open_page, path)
    cases = find_lever(document, "head")["cases"]
    most = max(range(len(cases)), key=lambda i: cases[i]["result"]["mean_kl"])
    open_chapter(page, "heads")
    look, lever = page.locator("#lesson .action").all()
    lever.click()
    assert page.evaluate("[explain.state.lever, explain.state.leverCase]") == ["head", most]
    look.click()
    assert page.evaluate("explain.state.station") == "decoder.layers.1.attn"
    kl = cases[most]["result"]["mean_kl"]
    assert f"KL {kl:.2g}" in page.locator("#lesson .measure").first.inner_text()
    page.evaluate("explain.go({ station: 'levers', lever: 'layer', leverCase: 1 })")
    open_chapter(page, "what-if")
    page.get_by_role("button", name="Look at all experiments").click()
    assert page.evaluate("explain.state.lever") is None


def test_second_wrong_answer_gives_a_hint(walk_page, open_page):
    page = open_walk(open_page, walk_page[2])
    for chapter, station in (
        ("length", "position-0"),
        ("scale", "encoder.layers.0.attn"),
        ("heads", "levers"),
    ):
        open_chapter(page, chapter)
        question = page.locator(".question").first
        for n_hints in (0, 1):
            field = question.locator("input").first
            field.fill("-7") if field.get_attribute("type") == "text" else field.check()
            question.locator("button[type=submit]").click()
            assert question.locator(".note button").count() == n_hints, chapter
        question.locator(".note button").click()
        assert page.evaluate("explain.state.station") == station
        assert page.locator("#lesson h2").inner_text() == page.evaluate(
            "chaptersOf()[explain.state.chapter].title"
        )


def test_printed_walk_is_light_and_complete(walk_page, open_page):
    _, _, path = walk_page
    page = open_walk(open_page, path, reduced_motion="reduce")
    page.evaluate("document.querySelector('[data-focus=theme]').click()")
    before = page.evaluate("[JSON.stringify(explain.state), document.getElementById('stage').innerHTML]")
    page.evaluate("page.hasAnswers = true; dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    names = page.evaluate("explain.page.stations.map((one) => stationName(one))")
    assert page.locator("#handout article > .stage-head h2").all_inner_texts() == names
    titles = page.locator("#handout .chapter > h3").all_inner_texts()
    assert sorted(titles) == sorted(chapter["title"] for chapter in CHAPTERS["en"])
    assert page.locator("#handout article").evaluate_all(
        "all => all.every((one) => one.querySelector('.card'))"
    )
    assert not page.locator("#stage").is_visible()
    assert page.locator("#handout .quiz li b").count() == page.locator("#handout .quiz li").count() > 40
    style = "one => [getComputedStyle(one).printColorAdjust, getComputedStyle(one).backgroundColor]"
    assert page.locator("#handout .bar").first.evaluate(style) == ["exact", "rgb(11, 110, 110)"]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.emulate_media(media="screen")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("#handout").count() == 0
    assert before == page.evaluate(
        "[JSON.stringify(explain.state), document.getElementById('stage').innerHTML]"
    )
    assert page.locator("html").get_attribute("data-theme") == "dark"


def test_answers_may_have_units_of_the_page(walk_page, open_page):
    page = open_walk(open_page, walk_page[2])
    expected = {"5.66 M": 5.66e6, "285k": 285e3, "44 %": 0.44, "−1,000": -1000, "1.7MB": 1.7e6, ".5": 0.5}
    expected |= {"1e-3": 1e-3, "1.2e+06": 1.2e6, "0,124": 0.124, "−1,5": -1.5, "12,34 %": 0.1234, ",5": 0.5}
    expected |= {"1,234": 1234, "1,234,567": 1234567, "1,234.5": 1234.5, "33 792": 33792}
    numbers = page.evaluate("texts => texts.map(readAnswer)", [*expected])
    assert numbers == pytest.approx([*expected.values()])
    wrong = page.evaluate("texts => texts.map(readAnswer)", ["much", "", "1.234,5", "1,234,5", "0,1,2"])
    assert np.isnan(wrong).all()
    answer = page.locator(".question input[type=text]").first
    answer.fill("much")
    answer.press("Enter")
    assert "Write a number" in page.locator(".question [role=status]").all_inner_texts()[0]
