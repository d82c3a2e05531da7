"""Questions of the chapters: a student can answer each from what stands on the page."""

import math
import re

import pytest
from tests.browser.conftest import mark_slow
from tests.browser.explain_pages import go_to_station, open_walk, read_data_values
from tests.explain.explain_helpers import DESIGNS, TARGET, TEXT, make_run

from polyhead.explain.chapters import load_chapters
from polyhead.explain.document import explain
from polyhead.explain.walk_page import render_walk_page
from polyhead.viz.html_page import save_page

KINDS = {
    "translator": {},
    "decoder": DESIGNS["Llama"][0],
    "classifier": {"kind": "encoder", "labels": ["bad", "good", "fair"]},
    "linear": {"kind": "decoder", "attention": "linear", "position": "sinusoidal"},
    "recurrent": {"kind": "decoder", "block": "lstm", "position": "none"},
}
LIST_QUESTIONS = (
    """() => chaptersOf().map((chapter, at) => [at, questionsOf(chapter).map(({ question }) => question)])"""
)


@pytest.fixture(scope="module")
def make_page(tmp_path_factory):
    """A function that writes the page of a kind of model and returns its path."""
    directory = tmp_path_factory.mktemp("questions")
    chapters = {"en": load_chapters("en")}

    def make_one(kind):
        path = directory / f"{kind}.html"
        if not path.exists():
            document = explain(make_run(**KINDS[kind]), TEXT, TARGET if kind == "translator" else None)
            save_page(path, render_walk_page(document, chapters=chapters))
        return path

    return make_one


class Student:
    """The numbers that a reader finds on the page, by looking at its stations."""

    def __init__(self, page):
        self.page = page
        kind, parameters, *rest = page.locator("#top .lead").inner_text().split(" · ")
        layers = re.search(r"(\d+(?: \+ \d+)?) layer", page.locator("#top .deed").inner_text())[1]
        self.family = {"encoder-decoder": 2, "language model": 0}.get(kind, 1)
        self.parameters = self.read(parameters.split(" param")[0])
        self.layers = [int(n) for n in layers.split(" + ")]
        self.d = next(int(text[4:]) for text in rest if text.startswith("d = "))
        counts = dict(
            re.findall(r"(\d+) (head|key/value head)", text)[0][::-1] for text in rest if "head" in text
        )
        self.heads = int(counts.get("head", 0))
        self.kv_heads = int(counts.get("key/value head", self.heads))

    @staticmethod
    def read(text):
        """A number as the page writes it."""
        number, unit = re.match(r"([\d.,]+(?:e-?\d+)?)[\s\u2009]*([%kMG]?)", text).groups()
        return float(number.replace(",", "")) * {"%": 0.01, "k": 1e3, "M": 1e6, "G": 1e9}.get(unit, 1)

    def go(self, kind, side=0):
        """To the first station of a kind; whether the model has one."""
        find = "([kind, side]) => page.stations.find((one) => one.kind === kind && one.side >= side)?.id"
        station = self.page.evaluate(find, [kind, side])
        if station:
            go_to_station(self.page, station)
        return station is not None

    def read_facts(self, name, card):
        """The number below a name, for every token of the station in turn."""
        numbers = []
        for at in range(self.page.locator("#pickers [data-focus^=token-]").count()):
            self.page.locator("#pickers [data-focus^=token-]").nth(at).click()
            fact = self.page.locator(f"#{card} .fact-row > div", has=self.page.get_by_text(name, exact=True))
            numbers.append(self.read(fact.first.locator("dd").inner_text()))
        return numbers

    def fact(self, name):
        fact = self.page.locator("#stage .fact-row > div", has=self.page.get_by_text(name, exact=True))
        return self.read(fact.first.locator("dd").inner_text())

    def count_tokens(self, side=0):
        self.go("tokens", side)
        return self.page.locator(".token-card").count()

    def read_text(self, pattern, *kinds):
        """The first match of a pattern at the first of these stations that the model has."""
        next(kind for kind in kinds if self.go(kind))
        return re.findall(pattern, self.page.locator("#stage").inner_text())

    def open_lever(self, name, setting):
        """Open a lever at the case of a setting, as a link of a chapter does."""
        self.page.evaluate("([name, setting]) => explain.go(findLever({ name, setting }))", [name, setting])

    def read_kl(self, name, setting=None):
        self.open_lever(name, setting or {})
        return self.fact("mean KL")

    def read_head_kls(self):
        self.open_lever("head", {})
        cells = self.page.locator("#card-lever .head-cell")
        titles = cells.evaluate_all("all => all.map((one) => one.title)")
        return [self.read(title) for title in titles] or [self.fact("mean KL")]

    def read_losses(self):
        self.go("output")
        rows = self.page.locator("#card-all-positions tbody tr").all()
        return [float(text) for row in rows if (text := row.locator("td").last.inner_text())]

    def count_attentions(self):
        return self.page.evaluate("page.stations.filter(({ kind }) => kind.endsWith('attention')).length")

    def answer(self, name, of=None, setting=None):
        """The answer to a question by the name of its measure."""
        if name in ("kl", "changed"):
            kl = self.read_kl(of, setting)
            return self.fact("changed guesses") if name == "changed" else kl
        return getattr(self, f"answer_{name}")(*([of] if of else []))

    def answer_config(self, of):
        sizes = {"d_model": self.d, "head_dim": self.d / max(self.heads, 1)}
        if "d_ff" in of:
            self.go("feed_forward")
            sizes["d_ff"] = self.fact("units")
        if of == "max_len":
            return float(self.read_text(r"at most (\d+) tokens", "position", "embedding")[0])
        return math.prod(sizes[one] for one in of.split("*"))

    def answer_tokens(self):
        return self.count_tokens()

    def answer_bytes_per_token(self):
        self.go("tokens")
        texts = self.page.locator(".token-card .bytes").all_inner_texts()
        counts = [len(text.split()) for text in texts if text != "special"]
        return sum(counts) / len(counts)

    def answer_table_size(self):
        (v, n) = self.read_text(r"table of ([\d,]+) by (\d+)", "embedding")[0]
        return self.read(v) * int(n)

    def answer_embedding_factor(self):
        return float((self.read_text(r"Times ([\d.]+)", "embedding") or [1])[0])

    def answer_distances(self):
        return 2 * self.count_tokens() - 1

    def answer_branch_share(self):
        self.page.evaluate("explain.go(findTarget({ step: 'residual', layer: 'first' }))")
        added = self.read_facts("length of what is added", "card-residual")
        before = self.read_facts("length before", "card-residual")
        return sum(a / b for a, b in zip(added, before, strict=True)) / len(added)

    def answer_top_weight(self):
        self.go("attention")
        self.page.locator("[data-focus^=head-]").first.click()
        self.page.locator("#pickers [data-focus^=token-]").last.click()
        return max(read_data_values(self.page.locator("#card-softmax td[data-value]")))

    def answer_tie_saving(self):
        return self.d * self.kv_heads * self.answer_config("head_dim")

    def answer_scale(self):
        self.open_lever("scale", {"scale": 1})
        return self.fact("the model's own scale")

    def answer_heads(self):
        return self.heads * self.count_attentions()

    def answer_group(self):
        shared = self.read_text(r"(\d+) query heads share", "attention", "linear_attention")
        own = "Each query head has a key/value head of its own." in self.page.locator("#stage").inner_text()
        return float(shared[0]) if shared else int(own)

    def answer_largest_kl(self, of):
        assert of == "head"
        return max(self.read_head_kls())

    def answer_hidden_share(self):
        of_decoder = "findTarget({ step: 'attention', stack: 'decoder' })"
        self.page.evaluate(f"explain.go({of_decoder} ?? findTarget({{ step: 'attention' }}))")
        hidden = self.page.locator("[data-focus=scores] rect[class^=hidden-]").count()
        return hidden / (hidden + self.page.locator("[data-focus=scores] rect.under").count())

    def answer_cross_cells(self):
        return self.count_tokens(0) * self.count_tokens(1)

    def answer_depth(self):
        return sum(self.layers)

    def answer_active_share(self):
        self.go("feed_forward")
        shares = self.read_facts("active", "card-feed-forward")
        return sum(shares) / len(shares)

    def answer_positions(self):
        return len(self.read_losses())

    def answer_right_guesses(self):
        self.go("output")
        return self.page.locator("#card-all-positions tbody .yes").count()

    def answer_loss(self):
        losses = self.read_losses()
        return sum(losses) / len(losses)

    def answer_perplexity(self):
        return math.exp(self.answer_loss())

    def answer_top_probability(self):
        self.go("output")
        if self.page.locator("#pickers [data-focus^=token-]").count():
            self.page.locator("#pickers [data-focus^=token-]").last.click()
        return max(read_data_values(self.page.locator("#card-probabilities td[data-value]")))

    def answer_kv_numbers(self):
        return 2 * self.layers[-1] * self.kv_heads * self.answer_config("head_dim")

    def answer_pages(self):
        return math.ceil(self.count_tokens(1 if len(self.layers) > 1 else 0) / 16)

    def answer_empty_share(self):
        return 1 - self.count_tokens(1 if len(self.layers) > 1 else 0) / self.answer_config("max_len")

    def answer_flops(self):
        self.go("cost")
        return self.fact("operations")

    def answer_pass_over_step(self):
        return self.answer_flops() / self.fact("one more token, with the cache")

    def answer_parameters(self):
        return self.parameters

    def answer_formula_layer(self):
        return 12 * self.d**2 + 13 * self.d

    def answer_all_reduce_bytes(self):
        return 2 * 3 / 4 * 4 * self.parameters

    def answer_bubble(self):
        return (sum(self.layers) - 1) / (4 + sum(self.layers) - 1)

    def answer_family(self):
        return self.family

    def answer_state_numbers(self):
        return self.answer_config("head_dim") * (self.answer_config("head_dim") + 1)

    def answer_layer_over_head(self):
        return self.read_kl("layer") / max(self.read_head_kls())

    def answer_levers(self):
        self.go("levers")
        return self.page.locator(".lever-list button:not(.off)").count()


@pytest.mark.parametrize("kind", mark_slow(KINDS, "translator"))
def test_every_question_has_its_answer_on_page(kind, make_page, open_page):
    page = open_walk(open_page, make_page(kind))
    student, wrong = Student(page), []
    questions = page.evaluate(LIST_QUESTIONS)
    assert sum(len(asked) for _, asked in questions) > 30
    for chapter, asked in questions:
        for n, question in enumerate(asked):
            answer = student.answer(**question["truth"])
            page.evaluate("chapter => explain.go({ chapter })", chapter)
            form = page.locator("#lesson .question").nth(n)
            if "options" in question:
                form.locator("input").nth(sum(bound <= answer for bound in question["bounds"])).check()
            else:
                form.locator("input").fill(f"{answer:.6g}")
            form.locator("button[type=submit]").click()
            if not form.locator(".note").inner_text().startswith("✓"):
                wrong.append((question["ask"], answer))
    assert not wrong
