"""The page of ``explain`` in a browser: the walk by pointer and keyboard, with the model's own numbers."""

import json
import math
import re

import numpy as np
import pytest
import torch
from tests.browser.conftest import PHONE, check_accessibility, mark_slow, wait_until
from tests.browser.explain_pages import (
    check_numbers,
    find_lever,
    go_to_station,
    list_stations,
    open_walk,
    parse_value,
    read_data_values,
    read_numbers,
)
from tests.browser.page_texts import find_english
from tests.explain.explain_helpers import DESIGNS, TARGET, TEXT, ReferenceWalk, make_run, walk_model

from polyhead.explain.chapters import load_chapters
from polyhead.explain.document import explain
from polyhead.explain.walk_page import render_walk_page
from polyhead.introspect.attention_map import displayed_tokens
from polyhead.viz.html_page import save_page

TECHNICAL_TERMS = {"English id softmax logit RMS exp max ln KL top min sum kB MB GB"}
TECHNICAL_TERMS |= {"SubGen LSTM silu SVG PNG NumPy cos sin safetensors model"}
CHAPTERS = {chapter["name"]: chapter for chapter in load_chapters("en")}
OTHER_DESIGNS = {
    "linear attention": {"kind": "decoder", "attention": "linear", "position": "sinusoidal"},
    "recurrent": {"kind": "decoder", "block": "lstm"},
    "beams": {"generation": {"beam_size": 3, "n_best": 2, "max_length_ratio": 0.0, "max_length_extra": 6}},
    "classes": {"kind": "encoder", "labels": ["bad", "good", "fair"]},
    "experts": {"kind": "decoder", "feed_forward": "moe"},
    "head transform": {"kind": "encoder", "norm_first": True, "head_transform_activation": "gelu"},
}


@pytest.fixture(scope="module")
def make_page(tmp_path_factory):
    """The run, the document and the page of a design, by its name."""
    directory, documents = tmp_path_factory.mktemp("explain"), {}
    chapters = {language: load_chapters(language) for language in ("en", "zh")}

    def make_one(design, language="en"):
        if design not in documents:
            run = make_run(**(DESIGNS[design][0] if design in DESIGNS else OTHER_DESIGNS[design]))
            is_pair = run.kind == "encoder-decoder"
            document = explain(
                run, TEXT, *([TARGET] if is_pair else []), has_lever_cases=design == "Vaswani et al."
            )
            documents[design] = run, document
        path = directory / f"{re.sub('[^a-zA-Z]', '', design)}-{language}.html"
        if not path.exists():
            save_page(path, render_walk_page(documents[design][1], language=language, chapters=chapters))
        return *documents[design], path

    return make_one


@pytest.mark.parametrize("design", mark_slow(DESIGNS, "Vaswani et al.", "Llama"))
def test_arrays_of_page_match_reference(design, make_page, open_page):
    run, document, path = make_page(design)
    walk = ReferenceWalk(**DESIGNS[design][1])
    walk_model(run, document, walk)
    page = open_walk(open_page, path)
    names = [name for name in walk.arrays if name in document["values"]]
    assert len(names) > 20
    arrays = page.evaluate("names => names.map((name) => [...explain.value(name).data])", names)
    for name, numbers in zip(names, arrays, strict=True):
        expected = walk.arrays[name].detach().double().numpy()
        bound = 1e-6 * max(1.0, float(np.abs(expected).max()))
        assert np.abs(np.reshape(numbers, expected.shape) - expected).max() <= bound, name


# the chapters that may stand beside each kind of station; other kinds keep the chapter that is open
BOUND = {
    "tokens": {"tokens"},
    "embedding": {"embedding", "positions", "length"},
    "position": {"positions", "length"},
    "attention": {"queries-keys-values", "why-three", "scale", "heads", "coreference", "masks", "recurrence"},
    "cross_attention": {"encoder-decoder"},
    "feed_forward": {"feed-forward", "activations"},
    "norm": {"residual-norm", "batch-norm"},
    "output": {"encoder-decoder", "loss", "training", "decoding", "cache", "paging", "on-the-way"},
    "lens": {"on-the-way"},
    "generation": {"decoding", "cache", "paging"},
    "levers": {"what-if"},
    "cost": {"cost", "parameters", "parallel-training", "families", "linear-attention", "recurrence"},
}
BOUND["moe"] = BOUND["feed_forward"]
BOUND["attention"] |= BOUND["norm"]
BOUND["linear_attention"] = BOUND["attention"] | {"linear-attention"}
BOUND["recurrent"] = BOUND["attention"] | BOUND["feed_forward"]
_READ_STOP = """() => {
  const { page, state } = explain, station = page.stations.find(({ id }) => id === state.station);
  return [station.id, station.core && station.id.endsWith("cross") ? "cross_attention" : station.kind,
    page.chapters.en[state.chapter].name, state.card];
}"""


@pytest.mark.slow
@pytest.mark.parametrize("design", [*DESIGNS, *OTHER_DESIGNS])
def test_forward_visits_every_station_and_chapter(design, make_page, open_page):
    run, _, path = make_page(design)
    page = open_walk(open_page, path)
    stops = [page.evaluate(_READ_STOP)]
    while page.locator("[data-focus='walk1']").count():
        page.locator("[data-focus='walk1']").click()
        stops.append(page.evaluate(_READ_STOP))
        assert page.locator("#stage .card").count() > 0
        assert not re.search(r"\b(NaN|undefined|null)\b", page.locator("#stage").inner_text())
        _, kind, chapter, card = stops[-1]
        assert chapter in BOUND.get(kind, {stops[-2][2]}), stops[-1]
        assert page.locator("#lesson h2").inner_text() == CHAPTERS[chapter]["title"]
        assert not card or page.locator(f"#card-{card}").count() == 1, stops[-1]
    assert list(dict.fromkeys(station for station, *_ in stops)) == list_stations(page)
    first_seen = list(dict.fromkeys(chapter for _, _, chapter, _ in stops))
    assert sorted(first_seen) == sorted(CHAPTERS)
    norm_is_first = first_seen.index("residual-norm") < first_seen.index("queries-keys-values")
    assert norm_is_first == (run.config.norm_first is not False)
    assert first_seen == page.evaluate("explain.page.chapters.en.map(({ name }) => name)")
    assert page.locator("#path [aria-current]").count() == 1
    if design == "head transform":  # its steps are under the output
        names = page.locator("#path .heading, #path .stop").all_inner_texts()
        part = names[names.index("Output") - 1 :][:6]
        assert part == ["Final norm", "Output", "Projection", "Activation", "Norm", "Output"]


@pytest.fixture
def cross_page(make_page, open_page):
    """A page at a cross-attention, and the arrays of a plain forward pass."""
    run, document, path = make_page("Vaswani et al.")
    walk = ReferenceWalk()
    walk_model(run, document, walk)
    page = open_walk(open_page, path)
    go_to_station(page, "decoder.layers.1.cross")
    return page, walk.arrays


def test_score_is_scaled_dot_product(cross_page):
    page, arrays = cross_page
    page.evaluate("explain.go({ head: 2, tokens: [3, 1], key: 2 })")
    q, k = (arrays[f"decoder.layers.1.cross.{role}"] for role in "qk")
    product = float(q[2, 1] @ k[2, 2])
    score = pytest.approx(product / q.size(-1) ** 0.5, abs=1e-5)
    values = read_data_values(page.locator("#card-scores .fact-row dd"))
    assert values == [pytest.approx(product, abs=1e-5), score]
    page.locator("#card-scores .heat").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    assert read_data_values(page.locator("#inspector output")) == [score]
    assert "q · k" in page.locator("#inspector").inner_text()


def read_row_labels(page, card):
    return page.locator(f"{card} .heat .token.end").all_text_contents()


def test_rows_of_decoder_have_tokens_of_attention_page(make_page, open_page):
    run, _, path = make_page("Vaswani et al.")
    page = open_walk(open_page, path)
    maps = run.attention_maps(TEXT, TARGET)
    for station, kind in (("cross", "cross"), ("attn", "decoder")):
        go_to_station(page, f"decoder.layers.0.{station}")
        labels = displayed_tokens(maps[kind])[1]
        assert read_row_labels(page, "#card-softmax") == labels
        assert labels[0].startswith("▶\u00a0<s> → ") and labels[-1].endswith("■\u00a0</s>")


def test_query_has_rows_of_keys_weights_and_values(cross_page):
    page, arrays = cross_page
    page.evaluate("explain.go({ head: 1, tokens: [3, 2] })")
    q, k, v, weights = (arrays[f"decoder.layers.1.cross.{role}"][1] for role in ("q", "k", "v", "weights"))
    best = weights[2].topk(min(10, len(k))).indices.sort().values
    rows = [q[2], *k[best]], [weights[2] @ v, *v[best]]
    for drawing, vectors in zip(("together-k", "together-v"), rows, strict=True):
        page.locator(f"[data-focus='{drawing}']").focus()
        page.keyboard.press("Home")
        for vector in vectors:
            (value,) = read_data_values(page.locator("#inspector output"))
            assert value == pytest.approx(float(vector[0]), abs=1e-5)
            page.keyboard.press("ArrowDown")
    shown = page.locator("#card-together tbody tr")
    assert shown.count() == len(best)
    tops = "all => all.map((one) => Math.round(one.getBoundingClientRect().top))"
    images = page.locator("[data-focus='together-k'] image").evaluate_all(tops)[1:]
    assert images == pytest.approx(shown.evaluate_all(tops), abs=6)  # each key in the row of its weight
    page.set_viewport_size({"width": PHONE.width, "height": 800})
    lefts = page.locator("#card-together .block").evaluate_all("all => all.map((one) => one.offsetLeft)")
    assert len(set(lefts)) == 1


def test_loss_is_cross_entropy_of_target(make_page, open_page):
    run, document, path = make_page("Vaswani et al.")
    ids = [torch.tensor([[token["id"] for token in side["tokens"]]]) for side in document["sides"]]
    with torch.no_grad():
        logits = run.model(*ids)[0].double()
    labels = torch.tensor(document["sides"][1]["next"])
    losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    page = open_walk(open_page, path)
    go_to_station(page, "output")
    numbers = [
        one
        for one in read_numbers(page, "#card-all-positions")
        if one["title"].startswith(("Loss of", "loss, the mean", "perplexity"))
    ]
    mean = float(losses.mean())
    assert [parse_value(one) for one in numbers] == pytest.approx(
        [mean, math.exp(mean), *losses.tolist()], rel=1e-5
    )
    assert check_numbers(numbers) >= len(losses) + 1


def test_film_shows_state_after_chosen_token(make_page, open_page):
    run, document, path = make_page("linear attention")
    layer = run.model.stack.layers[0].attn
    inputs = []
    hook = layer.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    with torch.no_grad():
        run.model(torch.tensor([[token["id"] for token in document["sides"][0]["tokens"]]]))
        hook.remove()
        states = [torch.cat(layer.project_kv(inputs[0][:, :n], None).sums, -1)[0, 1] for n in (1, 4, 7)]
    page = open_walk(open_page, path)
    go_to_station(page, "stack.layers.0.attn")
    page.evaluate("explain.go({ head: 1 })")
    for n, state in zip((1, 4, 7), states, strict=True):
        page.locator(f"[data-focus='S-{n - 1}']").click()
        assert page.evaluate("explain.state.tokens[0]") == n - 1
        page.locator("[data-focus='linear-state']").focus()
        for key in ("ArrowUp", "ArrowUp", "ArrowUp", "Home", "End"):  # what was chosen before is kept
            page.keyboard.press(key)
        for row in range(3):
            numbers = read_data_values(page.locator("#inspector output"))
            assert numbers == pytest.approx([float(state[row, -1])], rel=1e-5)
            page.keyboard.press("ArrowDown")
    names = page.locator("[data-focus='linear-state'] .tick").all_text_contents()
    assert names[0] == "v 0" and names[-1] == "z"
    page = open_walk(open_page, make_page("recurrent")[2])
    go_to_station(page, "stack.layers.0.rnn")
    page.locator("[data-focus='h-2']").click()
    assert page.evaluate("explain.state.tokens[0]") == 2


def test_card_of_state_links_its_own_chapter(make_page, open_page):
    page = open_walk(open_page, make_page("recurrent")[2])
    go_to_station(page, "stack.layers.0.rnn")
    assert page.locator("#card-state .chapter-link").all_inner_texts() == ["Lesson: Recurrence"]


def test_projection_of_classifier_shows_logits(make_page, open_page):
    run, document, path = make_page("classes")
    page = open_walk(open_page, path)
    go_to_station(page, "classifier")
    page.locator("#card-part details.numbers summary").last.click()
    table = page.locator("#card-part details.numbers").last.locator("td")
    table.first.wait_for()  # it is made when it is opened
    cells = table.all_inner_texts()
    with torch.inference_mode():
        logits = run.model(torch.tensor([[token["id"] for token in document["sides"][0]["tokens"]]]))[0]
    shown = [float(cell.replace("−", "-")) for cell in cells if "." in cell]
    np.testing.assert_allclose(shown, logits, rtol=5e-3, atol=1e-4)


def test_winning_path_spells_first_output(make_page, open_page):
    _, document, path = make_page("beams")
    page = open_walk(open_page, path)
    go_to_station(page, "generation")
    best = document["generation"]["outputs"][0]
    x = "all => all.sort((a, b) => a.getAttribute('x') - b.getAttribute('x')).map((one) => one.textContent)"
    won = page.locator("#card-beams .token.won").evaluate_all(x)
    beams = [beam for step in document["generation"]["steps"] for beam in step["beams"]]
    names = {one["id"]: one["text"] for beam in beams for one in beam["candidates"]}
    assert won[: len(best["ids"])] == [names[i] for i in best["ids"]]
    assert len(won) - len(best["ids"]) in (0, 1)
    assert page.locator("#card-teacher").count() == 1  # a target was given
    assert "nothing written yet" in page.locator("#card-beams").inner_text()


def test_wide_drawing_fades_where_it_goes_on(make_page, open_page):
    page = open_walk(open_page, make_page("beams")[2])
    page.evaluate("explain.go({ station: 'generation', step: 0 })")
    region = page.locator("#card-beams .scroll").first
    edges = "e => ['more-before', 'more-after'].map((name) => e.classList.contains(name))"
    wait_until(page, "document.querySelector('#card-beams .more-after') !== null")
    assert region.evaluate(edges) == [False, True]
    region.evaluate("e => { e.scrollLeft = e.scrollWidth; }")
    wait_until(page, "document.querySelector('#card-beams .more-before') !== null")
    assert region.evaluate(edges) == [True, False]


def test_weights_table_shows_selected_head_and_token(make_page, open_page):
    run, document, path = make_page("Llama")
    walk = ReferenceWalk(rope=True)
    walk_model(run, document, walk)
    page = open_walk(open_page, path)
    go_to_station(page, "stack.layers.1.attn")
    weights = walk.arrays["stack.layers.1.attn.weights"]
    for head in range(weights.size(0)):
        page.locator(f"#card-heads [data-focus='thumb-{head}']").click()
        for token in (0, weights.size(1) - 1):
            page.locator("#pickers .tokens button").nth(token).click()
            values = read_data_values(page.locator("#card-softmax .number[data-value]"))
            assert values == pytest.approx(weights[head, token].tolist(), abs=1e-6)


def test_output_probabilities_match_model(make_page, open_page):
    run, document, path = make_page("GPT-2")
    ids = torch.tensor([[token["id"] for token in document["sides"][0]["tokens"]]])
    with torch.no_grad():
        p = run.model(ids)[0].softmax(-1)
    page = open_walk(open_page, path)
    go_to_station(page, "output")
    for token in (1, len(ids[0]) - 1):
        page.locator("#pickers .tokens button").nth(token).click()
        values = read_data_values(page.locator("#card-probabilities td[data-value]"))
        assert values == pytest.approx(p[token].topk(len(values)).values.tolist(), abs=1e-6)


def test_arrow_keys_select_tokens_heads_and_layers(make_page, open_page):
    page = open_walk(open_page, make_page("Vaswani et al.")[2])
    go_to_station(page, "encoder.layers.0.attn")
    token = page.evaluate("explain.state.tokens[0]")
    for group, key, state, expected in (
        (".tokens", "ArrowRight", "explain.state.tokens[0]", token + 1),
        (".heads", "ArrowRight", "explain.state.head", 1),
        (".heads", "ArrowLeft", "explain.state.head", 0),
    ):
        radio = page.locator(f"#pickers {group} [aria-checked=true]")
        radio.focus()
        page.keyboard.press(key)
        assert page.evaluate(state) == expected
        assert radio.evaluate("e => e === document.activeElement")
    page.locator("#path .layers [aria-checked=true]").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("explain.state.station") == "encoder.layers.1.attn"
    page.locator("#stage").focus()
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("explain.state.tokens[0]") == token


@pytest.mark.parametrize(
    ("design", "words"),
    [
        ("Vaswani et al.", ("2 + 2 layers", "4 heads · d = 32 · softmax")),
        ("recurrent", ("2 layers", "parameters · d = 32 · lstm")),
    ],
)
def test_header_names_what_the_model_has(design, words, make_page, open_page):
    page = open_walk(open_page, make_page(design)[2])
    lead = page.locator("#top .lead").inner_text()
    assert words[0] in page.locator("#top .deed").inner_text() and words[1] in lead
    assert ("heads" in lead) == ("feed-forward" in lead) == (design != "recurrent")


def test_address_and_switches_restore_state(make_page, open_page):
    page = open_walk(open_page, make_page("Vaswani et al.")[2])
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.get_by_role("button", name="Dark").click()
    assert page.evaluate(background) != light
    page.get_by_role("button", name="中文").click()
    assert page.locator("html").get_attribute("lang") == "zh-CN"
    assert page.locator("#stage h2").inner_text() == "模型一览"
    go_to_station(page, "decoder.layers.1.attn")
    page.evaluate("explain.go({ head: 3, tokens: [1, 2], chapter: 4 })")
    other = open_walk(open_page, page.url)
    names = ["station", "head", "tokens", "chapter"]
    state = other.evaluate("names => names.map((name) => explain.state[name])", names)
    assert state == ["decoder.layers.1.attn", 3, [1, 2], 4]


def test_address_has_lever_case_and_step(make_page, open_page):
    _, document, path = make_page("Vaswani et al.")
    cases = find_lever(document, "head")["cases"]
    page = open_walk(open_page, path)
    go_to_station(page, "levers")
    page.locator("[data-focus='lever-head']").click()
    page.locator(f"[data-focus='case-{len(cases) - 2}']").click()
    page.reload()
    page.wait_for_selector("html[data-ready]", state="attached")
    assert page.locator("#card-lever .head-cell[aria-pressed=true]").count() == 1
    names = ["station", "lever", "leverCase"]
    state = page.evaluate("names => names.map((name) => explain.state[name])", names)
    assert state == ["levers", "head", len(cases) - 2]
    go_to_station(page, "generation")
    page.locator("[data-focus='step-2']").click()
    page.reload()
    page.wait_for_selector("html[data-ready]", state="attached")
    assert page.locator("[data-focus='step-2']").get_attribute("aria-pressed") == "true"


def test_back_goes_to_station_before(make_page, open_page):
    page = open_walk(open_page, make_page("Vaswani et al.")[2])
    first = page.evaluate("explain.state.station")
    for station in ("encoder.layers.0.attn", "decoder.layers.1.cross"):
        page.evaluate("explain.go({ head: 1 })")  # of the same station: no entry of the history
        go_to_station(page, station)
    read = "[explain.state.station, explain.page.chapters.en[explain.state.chapter].name]"
    page.evaluate("explain.go({ head: 3, chapter: 0 })")
    page.go_back()
    assert page.evaluate(read)[0] == "encoder.layers.0.attn"
    page.go_back()
    assert page.evaluate(read) == [first, "tokens"]
    page.go_forward()
    wait_until(page, "explain.state.station === 'encoder.layers.0.attn'")
    page.go_forward()
    wait_until(page, "explain.state.station === 'decoder.layers.1.cross'")
    assert page.evaluate("explain.state.head") == 3


@pytest.mark.parametrize("part", mark_slow(range(4), 0))
def test_chapter_links_lead_to_existing_cards(part, make_page, open_page):
    page = open_walk(open_page, make_page("Vaswani et al.")[2], screen=PHONE)
    assert page.locator("[data-focus=chapter]").bounding_box()["width"] > 300
    for number in range(part, len(CHAPTERS), 4):
        page.evaluate("chapter => explain.go({ chapter })", number)
        for at in range(page.locator("#lesson .action").count()):
            page.locator("#lesson .action").nth(at).click()
            card = page.evaluate("explain.state.card")
            assert not card or page.locator(f"#card-{card}").count() == 1, (number, card)


def test_lever_highlights_changed_rows(make_page, open_page):
    _, document, path = make_page("Vaswani et al.")
    page = open_walk(open_page, path)
    go_to_station(page, "levers")
    for lever in document["levers"]["levers"]:
        page.locator(f"[data-focus='lever-{lever['name']}']").click()
        if lever["reason"]:
            assert lever["reason"]["en"] in page.locator("#card-lever").inner_text()
        else:
            results = [
                case["result"] for case in lever["cases"]
            ]  # of several the one that moves the output most
            n_changed = len(max(results, key=lambda one: one["mean_kl"] or -1.0)["changed"])
            assert page.locator("#card-lever tr.on th").count() == n_changed, lever["name"]


# the position of a number that the inspector covers or that is outside of the window; else null
FIND_COVERED = """number => {
  const { top, bottom, left, right } = number.getBoundingClientRect();
  const sheet = document.getElementById("inspector").getBoundingClientRect();
  const isCovered = bottom > sheet.top + 1 && top < sheet.bottom - 1;
  const isOutside = top < -1 || bottom > innerHeight + 1 || left < -1 || right > innerWidth + 1;
  return isCovered || isOutside ? [number.className, number.textContent, top, bottom, left, right] : null;
}"""


STATIONS = ("decoder.layers.0.cross", "cost", "output", "levers")


@pytest.mark.parametrize("station", mark_slow(STATIONS, *STATIONS[:2]))
def test_inspector_does_not_cover_number_on_phone(station, make_page, open_page):
    page = open_walk(open_page, make_page("Vaswani et al.")[2], screen=PHONE)
    page.set_viewport_size({"width": PHONE.width, "height": 844})
    go_to_station(page, station)
    numbers = page.locator("#stage .pointable:visible, #stage .head-cell:visible").element_handles()
    for number in [*numbers[:: max(len(numbers) // 20, 1)], numbers[-1]]:
        number.focus()
        assert number.evaluate(FIND_COVERED) is None
    for drawing in page.locator("#stage svg[tabindex]").all()[:6]:
        drawing.focus()
        for key in ("Home", *["ArrowDown"] * 12, "End"):
            page.keyboard.press(key)
            assert drawing.locator(".here").evaluate(FIND_COVERED) is None, key


@pytest.mark.slow
@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("design", ["Vaswani et al.", "Llama", "linear attention"])
def test_every_kind_of_station_is_accessible(design, language, make_page, open_page):
    page = open_walk(open_page, make_page(design, language)[2])
    checked_kinds = set()
    for station, kind in page.evaluate("explain.page.stations.map(({ id, kind }) => [id, kind])"):
        if kind not in checked_kinds or "cross" in station:
            checked_kinds.add(kind)
            go_to_station(page, station)
            check_accessibility(page)


@pytest.mark.parametrize(
    "design",
    mark_slow(["Vaswani et al.", "Llama", "recurrent", "linear attention"], "Vaswani et al.", "Llama"),
)
def test_chinese_page_has_only_technical_english(design, make_page, open_page, tmp_path):
    """Every value and setting has a Chinese word; English are tokens, papers, paths and names of parts."""
    _, document, _ = make_page(design)
    page = open_walk(open_page, save_page(tmp_path / "zh.html", render_walk_page(document, language="zh")))
    names = set(re.findall(r'"(?:text|[0-9]+)": "([^"]*)"', json.dumps(document, ensure_ascii=False)))
    config, generation = document["run"]["config"], document["generation"]
    beams = (beam for step in generation["steps"] for beam in step["beams"])
    names |= {one["text"] for one in (*generation["outputs"], *beams)}
    parts = ("attention", "position", "norm", "feed_forward", "block")
    names |= {config[part]["name"] for part in parts} | {TEXT, TARGET} | TECHNICAL_TERMS
    names |= {f"{step['part']} {step['paper']} {step['path']}" for step in document["walk"]}
    for station in list_stations(page):
        go_to_station(page, station)
        assert find_english(page, names) == set(), station
    for lever in document["levers"]["levers"]:
        for case in range(len(lever["cases"]) or 1):
            page.evaluate(
                "at => explain.go({ station: 'levers', ...at })", {"lever": lever["name"], "leverCase": case}
            )
            assert find_english(page, names) == set(), (lever["name"], case)
