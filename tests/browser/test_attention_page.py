"""The page of ``attention`` in a browser: layers and heads of each kind of model by pointer and keyboard."""

from itertools import product
from statistics import fmean

import pytest
from tests.browser.conftest import check_accessibility
from tests.browser.page_texts import find_english, run_command

import polyhead
from polyhead import Choice, ModelConfig, build
from polyhead.config.generation_config import GenerationConfig
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

TEXTS = ["a dog barks .", "two dogs run in the park", "一只狗在叫。", "猫看着鸟 😀"] * 5
SOURCE, TARGET = "a dog runs 😀", "一只狗在跑 😀"
KINDS = {"encoder-decoder": 3, "decoder": 1, "encoder": 1}  # kind of model -> number of attention maps
MEAN = 2  # index of the option for the mean, after two layers or heads


@pytest.fixture(scope="module")
def make_page(tmp_path_factory):
    """The page of a kind of model in a language, and the attention maps of the model."""
    directory = tmp_path_factory.mktemp("attention")
    tokenizer = train_tokenizer(TEXTS, Choice("bpe"), 300)
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 2, "max_len": 48, "vocab_size": tokenizer.vocab_size}

    def make_one(kind, language="en"):
        run_dir, html = directory / kind, directory / f"{kind}-{language}.html"
        if not run_dir.exists():
            Run(build(ModelConfig(kind=kind, **sizes), seed=0), tokenizer, GenerationConfig()).save(run_dir)
        texts = [SOURCE, TARGET] if kind == "encoder-decoder" else [SOURCE]
        if not html.exists():
            run_command(language, "attention", str(run_dir), *texts, "--out", str(html))
        return html, list(polyhead.load(run_dir).attention_maps(*texts).values())

    return make_one


def get_weight(attention, layer, head, row, column):
    """The weight of a cell for the selected layer and head, or their mean, from the model's own weights."""
    weights = attention.weights.tolist()
    layers = weights if layer == MEAN else [weights[layer]]
    heads = [one for heads in layers for one in (heads if head == MEAN else [heads[head]])]
    return fmean(one[row][column] for one in heads)


def read_weight(page):
    """The weight in the line below the map."""
    return float(page.locator(".readout output").inner_text())


@pytest.mark.parametrize("kind", KINDS)
def test_every_layer_and_head_shows_model_weights(kind, make_page, open_page):
    html, maps = make_page(kind)
    page = open_page(html)

    def select(control, index):
        page.locator(".controls select").nth(control).select_option(index=index)

    assert len(maps) == KINDS[kind] == page.locator(".controls select").first.locator("option").count()
    for number, attention in enumerate(maps):
        select(0, number)
        assert page.locator(".thumb").count() == 9
        for layer, head in product((0, 1, MEAN), repeat=2):
            select(1, layer)
            select(2, head)
            row, column = len(attention.target_tokens) - 1, 1
            page.locator(".cell").nth(row * len(attention.source_tokens) + column).click()
            expected = get_weight(attention, layer, head, row, column)
            assert read_weight(page) == pytest.approx(expected, abs=0.0011), (number, layer, head)


def test_thumbnail_selects_layer_and_head(make_page, open_page):
    html, (attention, *_) = make_page("encoder-decoder")
    page = open_page(html)
    for i, (layer, head) in enumerate(product((0, 1, MEAN), repeat=2)):
        thumb = page.locator(".thumb").nth(i)
        thumb.click()
        assert thumb.get_attribute("aria-pressed") == "true"
        assert page.locator(".thumb[aria-pressed=true]").count() == 1
        selects = page.locator(".controls select").all()
        assert [one.evaluate("s => s.selectedIndex") for one in selects] == [0, layer, head]
        row = [get_weight(attention, layer, head, 0, s) for s in range(len(attention.source_tokens))]
        assert read_weight(page) == pytest.approx(max(row), abs=0.0011)


def test_arrow_keys_and_token_buttons_select_cells(make_page, open_page):
    html, (attention,) = make_page("decoder")
    page = open_page(html)
    page.locator(".heat").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp", "ArrowRight"):
        page.keyboard.press(key)
    assert read_weight(page) == pytest.approx(get_weight(attention, 1, MEAN, 2, 1), abs=0.0011)
    n_rows = len(attention.target_tokens)
    for _ in range(n_rows + 3):
        page.keyboard.press("ArrowDown")
    assert read_weight(page) == pytest.approx(get_weight(attention, 1, MEAN, n_rows - 1, 1), abs=0.0011)
    chip = page.locator("button.chip").nth(3)
    chip.click()
    row = [get_weight(attention, 1, MEAN, 3, s) for s in range(len(attention.source_tokens))]
    assert chip.get_attribute("aria-pressed") == "true"
    assert read_weight(page) == pytest.approx(max(row), abs=0.0011)


@pytest.mark.parametrize(("kind", "language"), [("encoder-decoder", "en"), *((kind, "zh") for kind in KINDS)])
def test_page_is_accessible_and_translated(kind, language, make_page, open_page):
    html, maps = make_page(kind, language)
    page = open_page(html)
    tokens = {token for one in maps for token in (*one.source_tokens, *one.target_tokens)}
    for number in range(len(maps)):
        page.locator(".controls select").first.select_option(index=number)
        page.locator(".cell").first.hover()
        if language == "zh":
            assert find_english(page, {SOURCE, TARGET, *tokens}) == set()
    assert page.locator("html").get_attribute("lang") == language
    page.locator(".thumb").last.click()
    page.locator("button.chip").last.click()
    check_accessibility(page)
