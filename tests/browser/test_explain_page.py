"""The page of ``explain`` in a browser: the walk by pointer and keyboard, with the model's own numbers."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.browser.conftest import CORNERS, SCREENS, check_accessibility
from tests.browser.reading import find_english
from tests.explain.explain_helpers import TARGET, TEXT, PlainWalk, make_run
from tests.explain.test_document import DESIGNS, walk_plainly
from tests.serve.conftest import living
from tests.serve.conftest import make as make_served

from polyhead.explain.chapters import load_chapters
from polyhead.explain.document import explain
from polyhead.explain.walk_page import render_walk_page
from polyhead.viz.html_page import save_page

Open = Callable[..., Any]
DATA_VALUES = "elements => elements.map((element) => element.dataset.value)"
READY = "html[data-ready]"
TOLERANCE = 1e-6  # of the largest number of an array, or of 1
NAMES_OF_THE_FIELD = {"English id softmax logit RMS exp max ln KL top sum kB MB GB"}
# the inspector at every number of a part of the page
READ_NUMBERS = """root => [...document.querySelectorAll(`${root} .pointable, ${root} .head-cell`)]
  .filter((one) => one.offsetParent).map((one) => { one.focus(); return read(); });
"""
READ_INSPECTOR = """function read() {
  const place = document.getElementById("inspector");
  return { title: place.querySelector("h2").textContent, value: place.querySelector("output").dataset.value,
    lines: [...place.querySelectorAll("p.formula")].map((line) => line.textContent), words: place.querySelectorAll("p.soft").length,
    facts: [...place.querySelectorAll("dt")].map((name) => name.textContent) };
}"""  # noqa: E501
READ_NUMBERS += READ_INSPECTOR
# the inspector at some numbers of every drawing that arrow keys move in, with the name of the drawing
READ_DRAWINGS = (
    """() => [...document.querySelectorAll("#stage svg[tabindex]")].flatMap((svg) =>
  ["Home", "ArrowRight", "ArrowDown", "End", "ArrowUp", "ArrowLeft"].map((key) => {
    svg.dispatchEvent(new KeyboardEvent("keydown", { key }));
    return { drawing: svg.dataset.focus, ...read() };
  }));
"""
    + READ_INSPECTOR
)
OTHER_DESIGNS: dict[str, dict[str, Any]] = {
    "linear attention": {"kind": "decoder", "attention": "linear", "position": "sinusoidal"},
    "recurrent": {"kind": "decoder", "block": "lstm"},
    "experts": {"kind": "decoder", "feed_forward": "moe"},
    "head transform": {"kind": "encoder", "norm_first": True, "head_transform_activation": "gelu"},
}


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Any, dict[str, Any], Path]]:
    """The run, the document and the page of a design, by its name."""
    place, made = tmp_path_factory.mktemp("explain"), {}
    chapters = {language: load_chapters(language) for language in ("en", "zh")}

    def make_one(design: str, language: str = "en") -> tuple[Any, dict[str, Any], Path]:
        if design not in made:
            config = DESIGNS[design][0] if design in DESIGNS else OTHER_DESIGNS[design]
            run = make_run(**config)
            is_pair = run.kind == "encoder-decoder"
            made[design] = run, explain(run, TEXT, *([TARGET] if is_pair else []), has_lever_cases=is_pair)
        path = place / f"{re.sub('[^a-zA-Z]', '', design)}-{language}.html"
        if not path.exists():
            save_page(path, render_walk_page(made[design][1], language=language, chapters=chapters))
        return *made[design], path

    return make_one


def open_walk(open_page: Open, path: Path, **options: Any) -> Any:
    page = open_page(path, **options)
    page.wait_for_selector(READY, state="attached")
    return page


def find_station(page: Any, path: str) -> None:
    """Go to the station of a module."""
    page.evaluate("station => explain.go({ station, card: '', key: null })", path)


@pytest.mark.parametrize("design", DESIGNS)
def test_every_number_of_the_page_is_the_models(
    design: str, make: Callable[..., Any], open_page: Open
) -> None:
    run, document, path = make(design)
    walk = PlainWalk(**DESIGNS[design][1])
    walk_plainly(run, document, walk)
    page = open_walk(open_page, path)
    names = [name for name in walk.numbers if name in document["values"]]
    assert len(names) > 20
    shown = page.evaluate("names => names.map((name) => [...explain.value(name).data])", names)
    for name, numbers in zip(names, shown, strict=True):
        expected = walk.numbers[name].detach().double().numpy()
        bound = TOLERANCE * max(1.0, float(np.abs(expected).max()))
        assert np.abs(np.reshape(numbers, expected.shape) - expected).max() <= bound, name


@pytest.mark.slow
@pytest.mark.parametrize("design", [*DESIGNS, *OTHER_DESIGNS])
def test_every_station_can_be_walked_to_with_the_button_at_its_end(
    design: str, make: Callable[..., Any], open_page: Open
) -> None:
    page = open_walk(open_page, make(design)[2])
    stations = page.evaluate("explain.page.stations.map((station) => station.id)")
    seen = [page.evaluate("explain.state.station")]
    while page.locator("[data-focus='walk1']").count():
        page.locator("[data-focus='walk1']").click()
        seen.append(page.evaluate("explain.state.station"))
        assert page.locator("#stage .card").count() > 0
        assert not re.search(r"\b(NaN|undefined|null)\b", page.locator("#stage").inner_text())
    assert seen == stations
    assert page.locator("#path [aria-current]").count() == 1


def test_a_score_is_the_query_times_the_key_and_its_formula_says_so(
    make: Callable[..., Any], open_page: Open
) -> None:
    run, document, path = make("Vaswani et al.")
    walk = PlainWalk()
    walk_plainly(run, document, walk)
    page = open_walk(open_page, path)
    find_station(page, "decoder.layers.1.cross")
    page.evaluate("explain.go({ head: 2, tokens: [3, 1], key: 2 })")
    q, k = (walk.numbers[f"decoder.layers.1.cross.{role}"] for role in "qk")
    product = float(q[2, 1] @ k[2, 2])
    shown = [float(value) for value in page.locator("#card-scores .fact-row dd").evaluate_all(DATA_VALUES)]
    assert shown == pytest.approx([product, product / q.size(-1) ** 0.5], abs=1e-5)
    page.locator("#card-scores .heat").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    score = float(page.locator("#inspector output").get_attribute("data-value"))
    assert score == pytest.approx(product / q.size(-1) ** 0.5, abs=1e-5)
    assert "q · k" in page.locator("#inspector").inner_text()


def test_the_table_of_weights_has_the_softmax_of_the_chosen_head_and_token(
    make: Callable[..., Any], open_page: Open
) -> None:
    run, document, path = make("Llama")
    walk = PlainWalk(rope=True)
    walk_plainly(run, document, walk)
    page = open_walk(open_page, path)
    find_station(page, "stack.layers.1.attn")
    weights = walk.numbers["stack.layers.1.attn.weights"]
    for head in range(weights.size(0)):
        page.locator(f"#card-heads [data-focus='thumb-{head}']").click()
        for token in (0, weights.size(1) - 1):
            page.locator("#pickers .tokens button").nth(token).click()
            shown = page.locator("#card-softmax .number[data-value]").evaluate_all(DATA_VALUES)
            assert [float(value) for value in shown] == pytest.approx(weights[head, token].tolist(), abs=1e-6)


def test_probabilities_are_those_of_the_model(make: Callable[..., Any], open_page: Open) -> None:
    run, document, path = make("GPT-2")
    ids = torch.tensor([[token["id"] for token in document["sides"][0]["tokens"]]])
    with torch.no_grad():
        p = run.model(ids)[0].softmax(-1)
    page = open_walk(open_page, path)
    find_station(page, "output")
    for token in (1, len(ids[0]) - 1):
        page.locator("#pickers .tokens button").nth(token).click()
        shown = page.locator("#card-probabilities td[data-value]").evaluate_all(DATA_VALUES)
        assert [float(x) for x in shown] == pytest.approx(p[token].topk(len(shown)).values.tolist(), abs=1e-6)


def test_the_arrow_keys_choose_tokens_heads_and_layers(make: Callable[..., Any], open_page: Open) -> None:
    page = open_walk(open_page, make("Vaswani et al.")[2])
    find_station(page, "encoder.layers.0.attn")
    chosen = page.evaluate("explain.state.tokens[0]")
    for group, key, state, expected in (
        (".tokens", "ArrowRight", "explain.state.tokens[0]", chosen + 1),
        (".heads", "ArrowRight", "explain.state.head", 1),
        (".heads", "ArrowLeft", "explain.state.head", 0),
    ):
        page.locator(f"#pickers {group} [aria-checked=true]").focus()
        page.keyboard.press(key)
        assert page.evaluate(state) == expected
        assert page.locator(f"#pickers {group} [aria-checked=true]").evaluate(
            "e => e === document.activeElement"
        )
    page.locator("#path .layers [aria-checked=true]").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("explain.state.station") == "encoder.layers.1.attn"
    page.locator("#stage").focus()
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("explain.state.tokens[0]") == chosen


def test_the_path_counts_the_transform_of_the_head_as_output(
    make: Callable[..., Any], open_page: Open
) -> None:
    page = open_walk(open_page, make("head transform")[2])
    names = page.locator("#path .heading, #path .stop").all_inner_texts()
    end = names.index("Output")
    assert names[end - 1 : end + 5] == ["Final norm", "Output", "Projection", "Activation", "Norm", "Output"]


def test_the_list_of_chapters_shows_their_titles_on_a_phone(
    make: Callable[..., Any], open_page: Open
) -> None:
    page = open_walk(open_page, make("Llama")[2], screen=SCREENS[0])
    assert page.locator("[data-focus=chapter]").bounding_box()["width"] > 300


def test_the_address_leads_back_to_what_was_looked_at(make: Callable[..., Any], open_page: Open) -> None:
    path = make("Vaswani et al.")[2]
    page = open_walk(open_page, path)
    find_station(page, "decoder.layers.1.attn")
    page.evaluate("explain.go({ head: 3, tokens: [1, 2], chapter: 4 })")
    other = open_walk(open_page, page.url)
    chosen = other.evaluate(
        "[explain.state.station, explain.state.head, explain.state.tokens, explain.state.chapter]"
    )
    assert chosen == ["decoder.layers.1.attn", 3, [1, 2], 4]


def test_each_chapter_leads_to_a_part_that_the_model_has(make: Callable[..., Any], open_page: Open) -> None:
    page = open_walk(open_page, make("Vaswani et al.")[2])
    for number in range(14):
        page.evaluate("chapter => explain.go({ chapter })", number)
        assert page.locator("#lesson h2").inner_text() == load_chapters("en")[number]["title"]
        for at in range(page.locator("#lesson .action").count()):
            page.locator("#lesson .action").nth(at).click()
            card = page.evaluate("explain.state.card")
            assert not card or page.locator(f"#card-{card}").count() == 1, (number, card)


def test_each_lever_shows_the_rows_that_it_changes(make: Callable[..., Any], open_page: Open) -> None:
    _, document, path = make("Vaswani et al.")
    page = open_walk(open_page, path)
    find_station(page, "levers")
    for lever in document["levers"]["levers"]:
        page.locator(f"[data-focus='lever-{lever['name']}']").click()
        if lever["reason"]:
            assert lever["reason"]["en"] in page.locator("#card-lever").inner_text()
            continue
        result = lever["cases"][0]["result"]
        shown = page.locator("#card-lever tr.on th").count()
        assert shown == len(result["changed"]), lever["name"]


def test_the_switches_change_language_and_theme(make: Callable[..., Any], open_page: Open) -> None:
    page = open_walk(open_page, make("Vaswani et al.")[2])
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.get_by_role("button", name="Dark").click()
    assert page.evaluate(ground) != light
    page.get_by_role("button", name="中文").click()
    assert page.locator("html").get_attribute("lang") == "zh-CN"
    assert page.locator("#stage h2").inner_text() == "从文本到词元"


# what the sheet of the inspector covers, and what is outside of the window, of the number that is chosen
COVERED = """number => {
  const { top, bottom, left, right } = number.getBoundingClientRect(), sheet = document.getElementById("inspector").getBoundingClientRect();
  const isHidden = bottom > sheet.top + 1 && top < sheet.bottom - 1 || top < -1 || bottom > innerHeight + 1 || left < -1 || right > innerWidth + 1;
  return isHidden ? [`${number.className} ${number.textContent}`, top, bottom, left, right, sheet.top, sheet.bottom] : null;
}"""  # noqa: E501


@pytest.mark.parametrize("station", ["decoder.layers.0.cross", "output", "levers", "cost"])
def test_the_sheet_of_a_phone_does_not_cover_the_number_that_it_explains(
    station: str, make: Callable[..., Any], open_page: Open
) -> None:
    page = open_walk(open_page, make("Vaswani et al.")[2], screen=SCREENS[0])
    page.set_viewport_size({"width": 390, "height": 844})
    find_station(page, station)
    numbers = page.locator("#stage .pointable:visible, #stage .head-cell:visible").element_handles()
    for number in [*numbers[:: max(len(numbers) // 20, 1)], numbers[-1]]:
        number.focus()
        assert number.evaluate(COVERED) is None
    for drawing in page.locator("#stage svg[tabindex]").all()[:6]:
        drawing.focus()
        for key in ("Home", *["ArrowDown"] * 12, "End"):
            page.keyboard.press(key)
            assert drawing.locator(".here").evaluate(COVERED) is None, key


@pytest.mark.slow
@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("design", ["Vaswani et al.", "Llama", "linear attention"])
def test_no_barrier_stands_in_the_page(
    design: str, language: str, make: Callable[..., Any], open_page: Open
) -> None:
    page = open_walk(open_page, make(design, language)[2])
    kinds: set[str] = set()
    for station in page.evaluate("explain.page.stations.map(({ id, kind }) => [id, kind])"):
        if station[1] in kinds and "cross" not in station[0]:
            continue
        kinds.add(station[1])
        find_station(page, station[0])
        check_accessibility(page, *(SCREENS if language == "en" and design == "Vaswani et al." else CORNERS))


def wait_until(page: Any, expression: str) -> None:
    """Wait for 20 seconds at most; the policy of the page refuses the function of playwright for this."""
    for _ in range(400):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    raise AssertionError(expression)


@torch.no_grad()
def change_logits(model: Any, ids: torch.Tensor, lever: str, setting: dict[str, float]) -> torch.Tensor:
    """The logits of a language model with one lever, computed here."""
    model, layers = copy.deepcopy(model), model.stack.layers
    if lever == "scale":
        for layer in model.stack.layers:
            layer.attn.scale = setting["scale"]
    elif lever == "layer":
        model.stack.layers = torch.nn.ModuleList(
            layer for i, layer in enumerate(layers, 1) if i != setting["layer"]
        )
    elif lever == "head":
        width, head = layers[0].attn.v_head_dim, int(setting["head"])
        o_proj = model.stack.layers[int(setting["layer"]) - 1].attn.o_proj
        o_proj.weight[:, width * (head - 1) : width * head] = 0
    return model(ids)[0].double() / setting.get("temperature", 1)


@pytest.mark.slow
def test_the_forms_of_levers_are_computed_by_the_service(open_page: Open) -> None:
    """A text of the reader, and settings of four levers, against the model changed here."""
    with living(make_served("decoder", n_layers=2)) as live:
        page = open_walk(open_page, f"{live.url}/explain")
        page.get_by_label("Text to explain").fill("two dogs bark .")
        page.get_by_role("button", name="Explain", exact=True).click()
        wait_until(page, "explain.page.data?.inputs.text === 'two dogs bark .'")
        ids = torch.tensor([page.evaluate("explain.page.data.sides[0].tokens.map((token) => token.id)")])
        plain = change_logits(live.run.model, ids, "", {}).log_softmax(-1)
        find_station(page, "levers")
        for lever, setting in (
            ("sampling", {"temperature": 0.5}),
            ("scale", {"scale": 0.9}),
            ("layer", {"layer": 2}),
            ("head", {"layer": 1, "head": 2}),
        ):
            page.locator(f"[data-focus='lever-{lever}']").click()
            found = f"explain.page.data.levers.levers.find((one) => one.name === '{lever}').cases"
            wait_until(page, f"{found}.length === 1")  # the defaults, which it asks for itself
            for field, value in setting.items():
                page.locator(f"[data-focus='field-{lever}-{field}']").fill(str(value))
            page.get_by_role("button", name="Compute").click()
            wait_until(page, f"{found}.length === 2")
            changed = change_logits(live.run.model, ids, lever, setting).log_softmax(-1)
            kl = (changed.exp() * (changed - plain)).sum(-1)
            shown = page.evaluate(READ_NUMBERS, "#card-lever")
            values = [float(one["value"]) for one in shown if one["title"].startswith("KL")]
            assert values == pytest.approx(kl.tolist(), rel=1e-3, abs=1e-9), lever
            (mean,) = [one["value"] for one in shown if one["title"] == "mean KL"]
            assert float(mean) == pytest.approx(float(kl.mean()), rel=1e-3)
            best = torch.stack([plain, changed], 1).amax(-1).exp().flatten().tolist()
            p = [float(one["value"]) for one in shown if one["title"].startswith("Probability")]
            assert p == pytest.approx(best, rel=1e-4), lever
            assert kl.max() > 1e-4


@pytest.mark.slow
def test_a_setting_that_the_service_refuses_is_explained(open_page: Open) -> None:
    with living(make_served("decoder", n_layers=2)) as live:
        page = open_walk(open_page, f"{live.url}/explain", expected="400")
        page.get_by_label("Text to explain").fill("two dogs bark .")
        page.get_by_role("button", name="Explain", exact=True).click()
        wait_until(page, "explain.page.data?.inputs.text === 'two dogs bark .'")
        find_station(page, "levers")
        page.locator("[data-focus='lever-cache']").click()
        lever = "explain.page.data.levers.levers.find((one) => one.name === 'cache')"
        wait_until(page, f"{lever}.cases.length === 1")  # the defaults, which it asks for itself
        page.locator("[data-focus='field-cache-cache']").select_option("low_rank")
        page.get_by_role("button", name="Compute").click()
        message = "document.querySelector('form.live [role=status]').textContent"
        wait_until(page, f"/rank is 32, but the text has/.test({message})")


@pytest.mark.slow
def test_the_chinese_page_has_no_english_but_names(
    make: Callable[..., Any], open_page: Open, tmp_path: Path
) -> None:
    _, document, _ = make("Vaswani et al.")
    page = open_walk(open_page, save_page(tmp_path / "zh.html", render_walk_page(document, language="zh")))
    names = set(re.findall(r'"(?:text|[0-9]+)": "([^"]*)"', json.dumps(document, ensure_ascii=False)))
    names |= {str(value) for value in document["run"]["config"].values()} | {TEXT, TARGET}
    names |= {" ".join(map(str, (step["part"], step["paper"], step["path"]))) for step in document["walk"]}
    names |= {f"{name} {value}" for name, value in document["generation"]["settings"].items()}
    for station in page.evaluate("explain.page.stations.map(({ id }) => id)"):
        find_station(page, station)
        words = find_english(page, names | NAMES_OF_THE_FIELD)
        assert not words, (station, words)
    find_station(page, "levers")
    for lever in document["levers"]["levers"]:
        policies = [case["setting"].get("cache", {}) for case in lever["cases"]]
        page.evaluate("lever => explain.go({ lever, leverCase: 0 })", lever["name"])
        words = find_english(page, names | NAMES_OF_THE_FIELD | {one["name"] for one in policies if one})
        assert not words, (lever["name"], words)
