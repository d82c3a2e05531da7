"""The page of ``polyhead visualize`` in a browser: matrices read by pointer and keyboard, tokens by pointer
and by name.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.browser.conftest import CORNERS, SCREENS, check_accessibility, show_on
from tests.browser.reading import embedded, find_english, run_command

import polyhead
from polyhead import Choice, ModelConfig, build
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.recipe import Recipe
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.viz.embedding_page import find_embeddings
from polyhead.viz.position_plots import measure_bias, measure_embedding

ENGLISH = ["a dog barks .", "two dogs run in the park", "the cat looks at the bird"] * 5
CHINESE = ["一只狗在叫。", "两只狗在公园里跑", "猫看着鸟 😀"] * 5
POSITIONS = ["sinusoidal", "rope", "alibi", "t5", "shaw", "none"]
N = 12  # positions that are drawn

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """The page of a translator with these positions in a language; its run lies beside it."""
    place = tmp_path_factory.mktemp("draw")
    (place / "en").write_text("\n".join(ENGLISH) + "\n")
    (place / "zh").write_text("\n".join(CHINESE) + "\n")
    tokenizer = train_tokenizer([*ENGLISH, *CHINESE], Choice("bpe"), 300)
    names = {"train": ["en", "zh"], "valid": ["en", "zh"], "source_lang": "en", "target_lang": "zh"}
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "max_len": 32, "tie_embeddings": "all"}

    def make_one(position: str, language: str) -> Path:
        run, html = place / position, place / f"{position}-{language}.html"
        if not run.exists():
            model = sizes | {"position": position}
            recipe = Recipe.model_validate(
                {"data": {"root": place, **names}, "model": model, "train": {"steps": 1}}
            )
            config: ModelConfig = recipe.model.with_vocabulary(tokenizer.vocab_size)
            Run(build(config, seed=0), tokenizer, GenerationConfig(), recipe).save(run)
        if not html.exists():
            options = ["--positions", str(N), "--tokens", "60", "--out", str(html)]
            run_command(language, "visualize", str(run), *options)
        return html

    return make_one


def read_out(figure: Any) -> float:
    """The value in the line under a matrix."""
    return float(figure.locator("output").inner_text().split(": ")[1])


@pytest.mark.parametrize("screen", [SCREENS[0], SCREENS[1]], ids=str)
def test_a_matrix_reads_the_value_under_the_pointer_and_under_the_keys(
    screen: Any, make: Callable[[str, str], Path], open_page: Open
) -> None:
    html = make("sinusoidal", "en")
    page = open_page(html)
    show_on(page, screen)
    model = polyhead.load(html.parent / "sinusoidal").model
    added = measure_embedding(find_embeddings(model)[0].position, model.config.attention_shape(False), N)
    step = float(added.abs().max()) / 127
    figure = page.locator("figure.matrix").first
    (svg,) = [one for one in figure.locator("svg").all() if one.is_visible()]
    svg.scroll_into_view_if_needed()
    left, top, across, down = map(float, svg.get_attribute("data-frame").split())
    scale = svg.bounding_box()["width"] / float(svg.get_attribute("viewBox").split()[2])
    row, column = 3, 6
    place = {"x": (left + (column + 0.5) * across / 16) * scale, "y": (top + (row + 0.5) * down / N) * scale}
    svg.hover(position=place)
    assert figure.locator("output").inner_text().startswith("position 3, feature 6: ")
    assert read_out(figure) == pytest.approx(float(added[row, column]), abs=step)
    svg.focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "ArrowLeft", "ArrowLeft", "ArrowUp"):
        page.keyboard.press(key)
    assert figure.locator("output").inner_text().startswith("position 4, feature 5: ")
    assert read_out(figure) == pytest.approx(float(added[4, 5]), abs=step)
    page.mouse.move(1, 1)
    assert figure.locator("output").inner_text() == ""


def test_the_bias_of_each_head_is_drawn_as_curves_too(
    make: Callable[[str, str], Path], open_page: Open
) -> None:
    html = make("alibi", "en")
    page = open_page(html)
    model = polyhead.load(html.parent / "alibi").model
    for figure, part, causal in zip(
        page.locator("figure.plot").all(), find_embeddings(model), (False, True), strict=True
    ):
        scores = measure_bias(part.position, model.config.attention_shape(causal), N)
        shown = [float(text) for text in figure.locator(".key output").all_inner_texts()]
        assert shown == pytest.approx([float(head[N - 1, 0]) for head in scores], rel=0.01)


def test_a_token_shows_its_count_and_its_neighbours_in_both_clouds(
    make: Callable[[str, str], Path], open_page: Open
) -> None:
    html = make("rope", "en")
    page = open_page(html)
    (tokens,) = [one for one in embedded(html) if "near" in one]
    readout = page.locator(".clouds .readout")
    empty = readout.inner_text()
    plain = [name.replace("␣", " ").strip() or "␣" for name in tokens["names"]]
    i = next(i for i, name in enumerate(plain) if name.isalpha() and len(name) > 2 and plain.count(name) == 1)
    near = [plain[j] for j in tokens["near"][i]]
    said = f"{tokens['names'][i]}, {tokens['counts'][i]} times; nearest: {', '.join(near)}"
    page.locator(".wide .point").nth(i).hover()
    assert readout.inner_text() == said
    assert page.locator(".point.on").count() == 4  # two clouds in two sizes
    page.mouse.move(1, 1)
    assert readout.inner_text() == empty
    page.locator("input").fill(plain[i])
    assert readout.inner_text() == said
    assert page.locator(".tag.on").first.text_content() == plain[i]
    page.locator("input").fill("no such token")
    assert readout.inner_text() == empty


@pytest.mark.parametrize("position", POSITIONS)
def test_no_barrier_stands_in_the_page(
    position: str, make: Callable[[str, str], Path], open_page: Open
) -> None:
    language = "zh" if POSITIONS.index(position) % 2 else "en"
    page = open_page(make(position, language))
    page.locator("input").fill("a")
    check_accessibility(page, *(SCREENS if position == POSITIONS[0] else CORNERS))


@pytest.mark.parametrize("position", POSITIONS)
def test_the_chinese_page_has_no_english(
    position: str, make: Callable[[str, str], Path], open_page: Open
) -> None:
    html = make(position, "zh")
    page = open_page(html)
    (tokens,) = [one for one in embedded(html) if "near" in one]
    for svg in page.locator("svg.matrix").all():
        if svg.is_visible():
            svg.focus()
            page.keyboard.press("ArrowDown")
            assert (
                find_english(page, {*tokens["names"], position, "t-SNE", "en zh", "model.max_len"}) == set()
            )
    page.locator(".wide .point").first.hover()
    assert find_english(page, {*tokens["names"], position, "t-SNE", "en zh", "model.max_len"}) == set()
