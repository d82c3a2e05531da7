"""The page of ``visualize`` in a browser: matrices by pointer and keyboard, tokens by pointer and name."""

import pytest
from tests.browser.conftest import DESKTOP, PHONE, check_accessibility, mark_slow
from tests.browser.page_texts import find_english, read_embedded_json, run_command

import polyhead
from polyhead import Choice, build
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.recipe import Recipe
from polyhead.run.run import Run
from polyhead.run.run_examples import write_examples
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from polyhead.viz.embedding_page import find_embeddings, measure_bias, measure_embedding

TEXTS = {"en": ["a dog barks .", "two dogs run in the park", "the cat looks at the bird"] * 5}
TEXTS["zh"] = ["一只狗在叫。", "两只狗在公园里跑", "猫看着鸟 😀"] * 5
N = 12  # positions that are drawn


@pytest.fixture(scope="module")
def make_page(tmp_path_factory):
    """The page of a translator with a position scheme in a language; its run is saved next to it."""
    directory = tmp_path_factory.mktemp("visualize")
    for name, lines in TEXTS.items():
        (directory / name).write_text("\n".join(lines) + "\n")
    tokenizer = train_tokenizer([*TEXTS["en"], *TEXTS["zh"]], Choice("bpe"), 300)
    data = {"train": ["en", "zh"], "valid": ["en", "zh"], "source_lang": "en", "target_lang": "zh"}
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "max_len": 32, "tie_embeddings": "all"}

    def make_one(position, language="en"):
        run_dir, html = directory / position, directory / f"{position}-{language}.html"
        if not run_dir.exists():
            sections = {"data": {"root": directory, **data}, "model": {**sizes, "position": position}}
            recipe = Recipe.model_validate({**sections, "train": {"steps": 1}})
            model = build(recipe.model.with_vocabulary(tokenizer.vocab_size), seed=0)
            Run(model, tokenizer, GenerationConfig(), recipe).save(run_dir)
            write_examples(run_dir, zip(TEXTS["en"], TEXTS["zh"], strict=True))
        if not html.exists():
            options = ["--positions", str(N), "--tokens", "60", "--out", str(html)]
            run_command(language, "visualize", str(run_dir), *options)
        return html

    return make_one


@pytest.mark.parametrize("screen", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_pointer_and_keys_read_matrix_values(screen, make_page, open_page):
    html = make_page("sinusoidal")
    page = open_page(html, screen)
    model = polyhead.load(html.parent / "sinusoidal").model
    table = measure_embedding(find_embeddings(model)[0].position, model.config.attention_shape(False), N)
    figure = page.locator("figure.matrix").first
    (svg,) = [one for one in figure.locator("svg").all() if one.is_visible()]
    svg.scroll_into_view_if_needed()
    left, top, width, height = map(float, svg.get_attribute("data-frame").split())
    scale = svg.bounding_box()["width"] / float(svg.get_attribute("viewBox").split()[2])

    def check_value(row, column):
        text = figure.locator("output").inner_text()
        assert text.startswith(f"position {row}, feature {column}: ")
        step = float(table.abs().max()) / 127
        assert float(text.split(": ")[1]) == pytest.approx(float(table[row, column]), abs=step)

    svg.hover(position={"x": (left + 6.5 * width / 16) * scale, "y": (top + 3.5 * height / N) * scale})
    check_value(3, 6)
    svg.focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "ArrowLeft", "ArrowLeft", "ArrowUp"):
        page.keyboard.press(key)
    check_value(4, 5)
    page.mouse.move(1, 1)
    assert figure.locator("output").inner_text() == ""


def test_bias_curves_show_each_head(make_page, open_page):
    html = make_page("alibi")
    page = open_page(html)
    model = polyhead.load(html.parent / "alibi").model
    figures = page.locator("figure.plot").all()
    for figure, part, causal in zip(figures, find_embeddings(model), (False, True), strict=True):
        scores = measure_bias(part.position, model.config.attention_shape(causal), N)
        values = [float(text) for text in figure.locator(".key output").all_inner_texts()]
        assert values == pytest.approx([float(head[N - 1, 0]) for head in scores], rel=0.01)


def test_token_shows_count_and_neighbours(make_page, open_page):
    html = make_page("rope")
    page = open_page(html)
    (tokens,) = [one for one in read_embedded_json(html) if "near" in one]
    readout = page.locator(".clouds .readout")
    empty = readout.inner_text()
    names = [name.replace("␣", " ").strip() or "␣" for name in tokens["names"]]
    i = next(i for i, name in enumerate(names) if name.isalpha() and len(name) > 2 and names.count(name) == 1)
    neighbours = ", ".join(names[j] for j in tokens["near"][i])
    expected = f"{tokens['names'][i]}, {tokens['counts'][i]} times; nearest: {neighbours}"
    page.locator(".wide .point").nth(i).hover()
    assert readout.inner_text() == expected
    assert page.locator(".point.on").count() == 4  # two clouds in two sizes
    page.mouse.move(1, 1)
    assert readout.inner_text() == empty
    page.locator("input").fill(names[i])
    assert readout.inner_text() == expected
    assert page.locator(".tag.on").first.text_content() == names[i]
    page.locator("input").fill("no such token")
    assert readout.inner_text() == empty


PAGES = ("sinusoidal en", "alibi zh", "sinusoidal zh", "rope zh", "t5 zh", "shaw zh", "none zh")


@pytest.mark.parametrize("design", mark_slow(PAGES, *PAGES[:2]))
def test_page_is_accessible_and_translated(design, make_page, open_page):
    position, language = design.split()
    html = make_page(position, language)
    page = open_page(html)
    (tokens,) = [one for one in read_embedded_json(html) if "near" in one]
    names = {*tokens["names"], position, "t-SNE", "en zh", "model.max_len"}
    for svg in page.locator("svg.matrix").all():
        if svg.is_visible():
            svg.focus()
            page.keyboard.press("ArrowDown")
            assert language == "en" or find_english(page, names) == set()
    page.locator(".wide .point").first.hover()
    assert language == "en" or find_english(page, names) == set()
    page.locator("input").fill("a")
    check_accessibility(page)
