"""Following a number on the page of ``explain`` down to the embedding."""

import numpy as np
import pytest
from tests.browser import explain_pages as pages
from tests.browser.conftest import (
    DARK_DESKTOP,
    DESKTOP,
    PHONE,
    check_accessibility,
    mark_slow,
    show_on,
)
from tests.explain.explain_helpers import DESIGNS, read_document


def read_cell(page):
    """The number in the inspector: its array and index."""
    return page.evaluate("explain.page.inspected.cell")


def choose_logit(page, position, token):
    page.evaluate("at => explain.go({ station: 'output', tokens: [at, at] })", position)
    page.locator(f"[data-focus=logit-{token}]").click()


def follow_down(page, n=60):
    """The cells from the chosen one to the end of the way, each by the first link; every line is true."""
    cells = [read_cell(page)]
    while page.locator("#inspector .from button").count():
        for line in page.locator("#inspector .formula").all_inner_texts():
            pages.check_line(line)
        page.locator("#inspector .from button").first.click()
        cells.append(read_cell(page))
        assert len(cells) < n, cells
    return cells


class Reference:
    """The largest term of a number, from the weights of the model and the arrays of the document."""

    def __init__(self, run, document):
        self.read, self.walk = read_document(document), document["walk"]
        self.weights = {name: p.detach().double().numpy() for name, p in run.model.named_parameters()}
        self.makers = {step["out"]: step for step in reversed(self.walk) if step["out"]}
        self.head = next(step for step in self.walk if step["kind"] == "head")

    def multiply(self, step, role, row, x):
        weight = self.weights[step["facts"]["maps"][role]["weight"]]
        return int(np.abs(weight[row] * x).argmax())

    def find_source(self, cell):
        """The cell that the first link of ``cell`` leads to; None of the end."""
        name, *index = cell
        if name == "logit":
            position, token = index
            x = self.head["in"]
            return [x, position, self.multiply(self.head, "head", token, self.read(x)[position])]
        step = self.makers.get(name)
        if step is not None:
            return self.find_output_source(step, *index)
        step = next(step for step in self.walk if name in step["values"].values())
        values, (*h, r, c) = step["values"], index
        role = next(role for role, array in values.items() if array == name)
        if role == "mix":
            kv = h[0] * step["facts"]["kv_heads"] // step["facts"]["heads"]
            terms = self.read(values["weights"])[h[0], r] * self.read(values["v"])[kv, :, c]
            return [values["v"], kv, int(np.abs(terms).argmax()), c]
        if role == "v":
            x = step["in"]
            if step["memory_side"] is not None:
                x = [one["out"] for one in self.walk if one["side"] == 0 and one["out"]][-1]
            row = h[0] * self.read(name).shape[2] + c
            return [x, r, self.multiply(step, "v", row, self.read(x)[r])]
        if role in ("act", "hidden"):
            roles = ["pre"] if role == "act" else ["act", "up"]
            return max(([values[one], r, c] for one in roles), key=lambda one: abs(self.read(one[0])[r, c]))
        if role in ("pre", "up"):
            unit = int(self.read(values["unit"])[r, c])
            is_gate = role == "pre" and step["facts"]["is_gated"]
            column = self.multiply(step, "gate" if is_gate else "up", unit, self.read(step["in"])[r])
            return [step["in"], r, column]
        assert role == "rows"
        return None

    def find_output_source(self, step, r, c):
        values = step["values"]
        if step["kind"] in ("residual", "position"):
            name = max(self.list_writers(step["out"]), key=lambda one: abs(self.read(one)[r, c]))
            return [name, r, c]
        if step["kind"] == "attention":
            j = self.multiply(step, "o", c, self.read(values["joined"])[r])
            return [values["mix"], j // step["facts"]["v_head_dim"], r, j % step["facts"]["v_head_dim"]]
        if step["kind"] == "feed_forward":
            name = values.get("hidden", values["act"])
            units = self.read(values["unit"])[r].astype(int)
            weight = self.weights[step["facts"]["maps"]["down"]["weight"]][c, units]
            return [name, r, int(np.abs(weight * self.read(name)[r]).argmax())]
        if step["kind"] == "projection":
            return [step["in"], r, self.multiply(step, "proj", c, self.read(step["in"])[r])]
        return [step["in"] or values["rows"], r, c]

    def list_writers(self, name):
        """Embedding, positions and parts whose sum is an array of the residual path."""
        step = self.makers.get(name)
        if step is None or step["kind"] not in ("residual", "position"):
            return [name]
        if step["kind"] == "position":
            return [*self.list_writers(step["in"]), step["values"]["rows"]]
        return [*self.list_writers(step["values"]["x"]), step["values"]["branch"]]


@pytest.mark.parametrize("design", mark_slow(DESIGNS, "Llama"))
def test_logit_leads_to_embedding(design, open_design):
    """The way from a logit is that of the largest terms, and ends at a number of the file."""
    run, document, page = open_design(DESIGNS[design][0])
    reference, lens = Reference(run, document), document["lens"]
    at = -1
    choose_logit(page, lens["positions"][at], lens["tokens"][at][0])
    cells = follow_down(page)
    assert [reference.find_source(cell) for cell in cells] == [*cells[1:], None]
    name, r, c = cells[-1]
    step = next(step for step in document["walk"] if step["values"].get("rows") == name)
    value = page.evaluate("explain.page.inspected.value")
    assert value == pytest.approx(reference.read(name)[r, c], rel=1e-6)
    token = document["sides"][step["side"]]["tokens"][r]["id"]
    if step["kind"] == "embedding":
        table = reference.weights[step["facts"]["maps"]["token"]["weight"]]
        assert value == pytest.approx(table[token, c], rel=1e-4)
    letter = f"E[{token}, {c}]" if step["kind"] == "embedding" else f"P[{r}, {c}]"
    assert page.locator("#inspector .trail [aria-current]").inner_text().endswith(letter)
    crumbs = page.locator("#inspector .trail li")
    assert crumbs.count() == len(cells)
    crumbs.nth(1).get_by_role("button").click()  # back
    assert read_cell(page) == cells[1]
    assert crumbs.count() == 2


@pytest.mark.slow
@pytest.mark.parametrize("design", DESIGNS)
def test_all_shared_logits_lead_to_file(design, open_design):
    run, document, page = open_design(DESIGNS[design][0])
    reference, lens = Reference(run, document), document["lens"]
    for position, tokens in list(zip(lens["positions"], lens["tokens"], strict=True))[::4]:
        for token in tokens:
            page.evaluate("at => explain.go({ station: 'output', tokens: [at, at] })", position)
            button = page.locator(f"[data-focus=logit-{token}]")
            if not button.count():  # the true token may be below the ten best
                continue
            button.click()
            cells = follow_down(page)
            assert [reference.find_source(cell) for cell in cells] == [*cells[1:], None]


OTHER_PARTS = {
    "experts": {"kind": "decoder", "feed_forward": "moe", "position": "alibi"},
    "linear": {"kind": "decoder", "attention": "linear", "position": "none"},
    "lstm": {"kind": "decoder", "block": "lstm"},
    "conv": {"kind": "decoder", "block": "gated_conv"},
    "softcap": {"kind": "decoder", "logit_softcap": 5.0, "attention": {"name": "softmax", "qk_norm": True}},
}


@pytest.mark.slow
@pytest.mark.parametrize("design", OTHER_PARTS)
def test_other_parts_are_passed_to_embedding(design, open_design):
    """What has no terms on the page leads to the largest number of its input."""
    _, document, page = open_design(OTHER_PARTS[design])
    choose_logit(page, document["lens"]["positions"][-1], document["lens"]["tokens"][-1][0])
    cells = follow_down(page)
    assert cells[-1][0] in [step["values"].get("rows") for step in document["walk"]]


def test_way_by_keyboard_and_touch(open_design):
    """F goes to the first link, Enter follows it; a tap does too, in the sheet of a phone."""
    _, document, page = open_design(DESIGNS["GPT-2"][0], has_touch=True)
    step = pages.find_step(document, "attention")
    pages.go_to_station(page, step["path"])
    page.locator("#card-softmax .heat").focus()
    for key in ("ArrowRight", "ArrowLeft", "f", "Enter", "Enter"):
        page.keyboard.press(key)
    weights, scores, query = page.evaluate("explain.page.trail")
    assert [weights[0], scores[0], query[0]] == [step["values"][role] for role in ("weights", "scores", "q")]
    page.mouse.move(500, 400)  # what is chosen stays under the pointer
    assert read_cell(page) == query
    check_accessibility(page, DESKTOP, DARK_DESKTOP)
    page.keyboard.press("Escape")
    assert page.evaluate("explain.page.inspected") is None
    show_on(page, PHONE)
    pages.go_to_station(page, "output")
    page.locator("[data-focus^=probability-]").first.tap()
    for _ in range(4):
        page.locator("#inspector .from button").first.tap()
    assert page.locator("#inspector .trail li").count() == 5
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE.width
