"""Weights before and after a change at the attention, and two texts compared, on the page of ``explain``."""

import copy

import numpy as np
import pytest
import torch
from tests.browser.conftest import PHONE, check_accessibility, wait_until
from tests.browser.explain_pages import (
    check_numbers,
    find_dead_drawings,
    find_lever,
    go_to_station,
    open_document,
    open_walk,
    read_drawings,
)
from tests.explain.explain_helpers import DESIGNS, TARGET, TEXT, explain_walk, make_run, read_document
from tests.serve.conftest import build_run, serve_run

from polyhead.explain.document import explain
from polyhead.explain.levers import table
from polyhead.explain.walk_page import render_walk_page
from polyhead.viz.html_page import save_page

OTHER = "the dog barks at the red house"
LEVERS = ("scale", "causal_mask", "head")
# every cell of a drawing, as the inspector shows it
_READ_CELLS = """name => {
  const svg = document.querySelector(`[data-focus='${name}']`);
  const press = (key) => svg.dispatchEvent(new KeyboardEvent("keydown", { key }));
  const cells = [], value = () => Number(document.querySelector("#inspector output").dataset.value);
  for (let i = 0; i < 64; i++) press("ArrowUp");
  for (let r = 0, before = null; r < 64; r++) {
    press("Home");
    const here = svg.querySelector(".here"), y = here.getAttribute("y");
    if (y === before) break;
    before = y;
    const line = [value()];
    for (let x = here.getAttribute("x"); ;) {
      press("ArrowRight");
      if (here.getAttribute("x") === x) break;
      x = here.getAttribute("x");
      line.push(value());
    }
    cells.push(line);
    press("ArrowDown");
  }
  return cells;
}"""


@pytest.fixture
def make_document(monkeypatch):
    """A function that explains a design with a few levers."""
    monkeypatch.setattr(table, "LEVERS", {name: table.LEVERS[name] for name in LEVERS})

    def make_one(design):
        run = make_run(**DESIGNS[design][0])
        return explain(run, TEXT, TARGET if run.kind == "encoder-decoder" else None)

    return make_one


def go_to_map(page, lever, setting):
    """Go to the attention that shows a case, as the link of a chapter does."""
    page.evaluate(
        "([name, setting]) => explain.go(findLever({ name, setting, at: 'weights' }))", [lever, setting]
    )


def read_cells(page, name):
    return np.array(page.evaluate(_READ_CELLS, f"change-{name}"))


def check_maps(page, document, change, head, names=("after", "difference")):
    """All cells of maps are those of the document; hidden ones are 0."""
    read = read_document(document)
    after = read(change["weights"])[change["heads"].index(head)]
    before = read(f"{change['path']}.weights")[head]
    expected = {"before": before, "after": after, "difference": after - before}
    for name in names:
        assert np.abs(read_cells(page, name) - expected[name]).max() < 1e-6, name


def test_maps_have_weights_before_and_after(make_document, open_page, tmp_path):
    document = make_document("GPT-2")
    page = open_document(open_page, document, tmp_path / "page.html")
    cases = {name: find_lever(document, name)["cases"] for name in LEVERS}
    for name in ("scale", "causal_mask"):
        (case,) = cases[name]
        go_to_map(page, name, case["setting"])
        page.evaluate("explain.go({ head: 2 })")
        assert page.evaluate("explain.state.station") == case["attention"]["path"]
        names = ("before", "difference") if name == "scale" else ("after",)
        check_maps(page, document, case["attention"], 2, names)
        note = page.locator("#card-change .note").first.inner_text()
        assert f"KL {float(format(case['result']['mean_kl'], '.2g')):g}" in note
        assert f"by {float(format(case['attention']['change'], '.2g')):g} on average" in note
    assert page.locator("#card-change .maps .heat").count() == 3
    assert page.locator("[data-focus='change-after'] .hidden-2").count() == 0
    assert page.locator("[data-focus='change-before'] .hidden-2").count() > 0
    numbers = [one for one in read_drawings(page) if one["drawing"].startswith("change-")]
    assert check_numbers(numbers) >= len(numbers) - 6  # those of hidden cells have words
    assert find_dead_drawings(page) == []
    check_accessibility(page)
    # a weight that rounds to 0 is seen as well
    page.evaluate(
        "name => { explain.value(name).data.fill(0); explain.go({ head: 2 }); }",
        cases["causal_mask"][0]["attention"]["weights"],
    )
    assert page.locator("[data-focus='change-after'] .hidden-2").count() == 0


def test_station_and_address_have_the_switch(make_document, open_page, tmp_path):
    document = make_document("Vaswani et al.")
    page = open_document(open_page, document, tmp_path / "page.html", screen=PHONE)
    go_to_station(page, "encoder.layers.0.attn")
    assert page.locator("#card-change .heat").count() == 0
    assert "lever=" not in page.url
    page.locator("[data-focus='change-unchanged'], #card-change [role=radio]").nth(1).click()
    assert page.evaluate("explain.state.lever") == "scale"
    (case,) = find_lever(document, "scale")["cases"]
    path = case["attention"]["path"]
    assert path != "encoder.layers.0.attn"
    assert "The file keeps these weights" in page.locator("#card-change").inner_text()
    page.locator("[data-focus='change-there']").click()
    assert page.evaluate("explain.state.station") == path
    assert page.locator("#card-change .columns .heat").count() == 3  # below each other
    assert f"at={path}" in page.url and "lever=scale" in page.url and "setting=" in page.url
    page.reload()
    page.wait_for_selector("html[data-ready]", state="attached")
    assert page.evaluate("[explain.state.lever, explain.state.station]") == ["scale", path]
    assert page.locator("#card-change .heat").count() == 3
    page.locator("[data-focus='change-chosen']").press("ArrowLeft")
    assert page.evaluate("explain.state.lever") is None and "lever=" not in page.url
    # the page of experiments leads to the same maps
    page.evaluate("explain.go({ station: 'levers', lever: 'scale', leverCase: 0 })")
    page.locator("[data-focus='change-map']").click()
    assert page.evaluate("explain.state.station") == path


@pytest.mark.slow
@pytest.mark.parametrize("design", ["Vaswani et al.", "Llama"])
def test_knocked_out_heads_and_missing_changes(design, make_document, open_page, tmp_path):
    document = make_document(design)
    page = open_document(open_page, document, tmp_path / "page.html")
    for case in find_lever(document, "head")["cases"]:
        go_to_map(page, "head", case["setting"])
        if case["attention"]:
            check_maps(page, document, case["attention"], page.evaluate("explain.state.head"))
        else:
            assert "all weights stay the same" in page.locator("#card-change").inner_text()
            assert page.locator("#card-change .heat").count() == 0


def test_file_without_room_shows_some_heads(make_document, monkeypatch, open_page, tmp_path):
    monkeypatch.setattr(table, "MAX_CASE_BYTES", 900)
    document = make_document("GPT-2")
    (case,) = find_lever(document, "causal_mask")["cases"]
    heads = case["attention"]["heads"]
    assert 0 < len(heads) < 4
    page = open_document(open_page, document, tmp_path / "page.html")
    go_to_map(page, "causal_mask", {})
    other = next(head for head in range(4) if head not in heads)
    page.evaluate("head => explain.go({ head })", other)
    assert "keeps the heads whose weights change most" in page.locator("#card-change").inner_text()
    check_maps(page, document, case["attention"], heads[0], ("after",))


@pytest.mark.slow
def test_live_page_has_any_layer(open_page):
    with serve_run(build_run("decoder", n_layers=2, position="learned")) as service:
        page = open_walk(open_page, f"{service.url}/explain?text=two+dogs+bark+.")
        wait_until(page, "explain.page.data?.inputs.text === 'two dogs bark .'")
        ids = torch.tensor([page.evaluate("explain.page.data.sides[0].tokens.map((token) => token.id)")])
        model = copy.deepcopy(service.run.model)
        for layer in model.stack.layers:
            layer.attn.scale = 1.0
        recorded = []
        for layer in model.stack.layers:
            layer.attn.weights_hooks.append(lambda weights: recorded.append(weights[0].double().numpy()))
        with torch.no_grad():
            model(ids)
        for i, after in enumerate(recorded):
            page.evaluate(f"explain.go({{ station: 'stack.layers.{i}.attn', lever: 'scale', leverCase: 0 }})")
            wait_until(page, "document.querySelectorAll('#card-change .heat').length === 3")
            head = page.evaluate("explain.state.head")
            assert np.abs(read_cells(page, "after") - after[head]).max() < 2e-5, i


def test_two_texts_are_a_map_of_shares(open_page, tmp_path):
    document = explain_walk(make_run(), TEXT, TARGET, other=OTHER)
    page = open_document(open_page, document, tmp_path / "page.html")
    go_to_station(page, "patching")
    for one in document["patching"]["maps"]:
        cells = np.array(page.evaluate(_READ_CELLS, f"patching-{one['side']}"))
        assert np.abs(cells - np.array(one["shares"])[::-1]).max() < 1e-5
    words = page.locator("#card-patching-0").inner_text()
    pairs = zip(document["sides"][0]["tokens"], document["patching"]["tokens"], strict=True)
    differing = [i for i, (token, other) in enumerate(pairs) if token["text"] != other]
    assert len(differing) == 1 and "a|the" in words
    assert "From Embedding on the largest share is that of “a|the”: 1." in words
    numbers = read_drawings(page)
    assert check_numbers(numbers) == len(numbers)
    assert find_dead_drawings(page) == []
    check_accessibility(page)


def test_pages_without_other_text_have_no_station(open_page, tmp_path):
    document = explain_walk(make_run(kind="decoder"))
    page = open_walk(open_page, save_page(tmp_path / "page.html", render_walk_page(document)))
    assert not page.evaluate("explain.page.stations.some(({ kind }) => kind === 'patching')")
