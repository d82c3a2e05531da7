"""The page of attention in a browser: every layer and head of every kind of model, by pointer, button and
keyboard.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import pytest
from tests.browser.conftest import CORNERS, SCREENS, check_accessibility
from tests.browser.reading import find_english, run_command

import polyhead
from polyhead import Choice, ModelConfig, build
from polyhead.config.generation_config import GenerationConfig
from polyhead.introspect.attention_map import AttentionMap
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

TEXTS = ["a dog barks .", "two dogs run in the park", "一只狗在叫。", "猫看着鸟 😀"] * 5
SOURCE, TARGET = "a dog runs 😀", "一只狗在跑 😀"
SIZES = {"d_model": 16, "n_heads": 2, "n_layers": 2, "max_len": 48}
KINDS = {"encoder-decoder": 3, "decoder": 1, "encoder": 1}  # of a model -> kinds of attention
MEAN = 2  # the number of the last option, behind two layers or heads

Open = Callable[..., Any]


class Made(NamedTuple):
    """A page, and the maps that it should show."""

    html: Path
    maps: list[AttentionMap]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Made]:
    """The page of a kind of model in a language."""
    place = tmp_path_factory.mktemp("attend")
    tokenizer = train_tokenizer(TEXTS, Choice("bpe"), 300)

    def make_one(kind: str, language: str) -> Made:
        run, html = place / kind, place / f"{kind}-{language}.html"
        if not run.exists():
            config = ModelConfig(kind=kind, vocab_size=tokenizer.vocab_size, **SIZES)
            Run(build(config, seed=0), tokenizer, GenerationConfig()).save(run)
        texts = [SOURCE, TARGET] if kind == "encoder-decoder" else [SOURCE]
        if not html.exists():
            run_command(language, "attention", str(run), *texts, "--out", str(html))
        return Made(html, list(polyhead.load(run).attention_maps(*texts).values()))

    return make_one


def weight_of(attention: AttentionMap, layer: int, head: int, row: int, column: int) -> float:
    """The weight of a cell as the choosers name it, from the model's own weights."""
    layers = attention.weights.tolist()
    heads = [one for chosen in (layers if layer == MEAN else [layers[layer]]) for one in chosen]
    if head != MEAN:
        heads = [one[head] for one in (layers if layer == MEAN else [layers[layer]])]
    return fmean(one[row][column] for one in heads)


def shown_weight(page: Any) -> float:
    """What the line under the map says."""
    return float(page.locator(".readout output").inner_text())


@pytest.mark.parametrize("kind", KINDS)
def test_every_layer_and_head_shows_the_weights_of_the_model(
    kind: str, make: Callable[[str, str], Made], open_page: Open
) -> None:
    html, maps = make(kind, "en")
    page = open_page(html)
    which, layers, heads = page.locator(".controls select").all()
    assert len(maps) == KINDS[kind] == which.locator("option").count()
    for number, attention in enumerate(maps):
        which.select_option(index=number)
        which, layers, heads = page.locator(".controls select").all()
        assert page.locator(".thumb").count() == 9
        for layer, head in product((0, 1, MEAN), repeat=2):
            layers.select_option(index=layer)
            which, layers, heads = page.locator(".controls select").all()
            heads.select_option(index=head)
            which, layers, heads = page.locator(".controls select").all()
            row, column = len(attention.target_tokens) - 1, 1
            page.locator(".cell").nth(row * len(attention.source_tokens) + column).click()
            wanted = weight_of(attention, layer, head, row, column)
            assert shown_weight(page) == pytest.approx(wanted, abs=0.0011), (number, layer, head)


def test_a_small_map_chooses_its_layer_and_head(make: Callable[[str, str], Made], open_page: Open) -> None:
    html, maps = make("encoder-decoder", "en")
    page = open_page(html)
    for place, (layer, head) in enumerate(product((0, 1, MEAN), repeat=2)):
        thumb = page.locator(".thumb").nth(place)
        thumb.click()
        assert thumb.get_attribute("aria-pressed") == "true"
        assert page.locator(".thumb[aria-pressed=true]").count() == 1
        chosen = [
            select.evaluate("s => s.selectedIndex") for select in page.locator(".controls select").all()
        ]
        assert chosen == [0, layer, head]
        row = [weight_of(maps[0], layer, head, 0, s) for s in range(len(maps[0].source_tokens))]
        assert shown_weight(page) == pytest.approx(max(row), abs=0.0011)


def test_the_arrow_keys_move_and_the_buttons_of_a_sentence_choose_a_row(
    make: Callable[[str, str], Made], open_page: Open
) -> None:
    html, (attention,) = make("decoder", "en")
    page = open_page(html)
    page.locator(".heat").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp", "ArrowRight"):
        page.keyboard.press(key)
    assert shown_weight(page) == pytest.approx(weight_of(attention, 1, MEAN, 2, 1), abs=0.0011)
    for _ in range(60):
        page.keyboard.press("ArrowDown")
    last = len(attention.target_tokens) - 1
    assert shown_weight(page) == pytest.approx(weight_of(attention, 1, MEAN, last, 1), abs=0.0011)
    chip = page.locator("button.chip").nth(3)
    chip.click()
    row = [weight_of(attention, 1, MEAN, 3, s) for s in range(len(attention.source_tokens))]
    assert chip.get_attribute("aria-pressed") == "true"
    assert shown_weight(page) == pytest.approx(max(row), abs=0.0011)


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_barrier_stands_in_the_page(
    kind: str, language: str, make: Callable[[str, str], Made], open_page: Open
) -> None:
    page = open_page(make(kind, language).html)
    page.locator(".thumb").last.click()
    page.locator("button.chip").last.click()
    check_accessibility(page, *(SCREENS if language == "en" else CORNERS))


@pytest.mark.parametrize("kind", KINDS)
def test_the_chinese_page_has_no_english(
    kind: str, make: Callable[[str, str], Made], open_page: Open
) -> None:
    html, maps = make(kind, "zh")
    page = open_page(html)
    tokens = {token for one in maps for token in (*one.source_tokens, *one.target_tokens)}
    for number in range(len(maps)):
        page.locator(".controls select").first.select_option(index=number)
        page.locator(".cell").first.hover()
        assert find_english(page, {SOURCE, TARGET, *tokens}) == set()
    assert page.locator("html").get_attribute("lang") == "zh"
