"""Each tool of the service's page shows what the service answers, for each kind of model, without a barrier
or an error.
"""

from __future__ import annotations

import pytest
import torch
from tests.browser.conftest import CORNERS, check_accessibility
from tests.browser.serving import live_services, press, request_shown


@pytest.fixture(scope="module")
def service():
    with live_services() as service:
        yield service


@pytest.fixture
def open_tool(service, open_page):
    """Opens the page of a model, and a tool by its tab where there are several."""

    def open_tool(model, tab=None, **options):
        page = open_page(service(model).url, **options)
        page.locator(".button.main:visible").wait_for()
        if tab:
            page.get_by_role("tab", name=tab).click()
        return page

    return open_tool


def ask_again(service, model, page):
    """What the service answers to the request that the page says it sent."""
    path, body = request_shown(page)
    answer = service(model).ask(path, body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def panel_of(page):
    return page.locator("#tools > section:visible").first


def test_a_translation_is_shown_with_where_the_decoder_looked(service, open_tool):
    page = open_tool("translator")
    page.get_by_label("Text (English)").fill("a dog barks .\ntwo dogs bark .")
    press(page, "Translate")
    data = ask_again(service, "translator", page)["data"]
    assert page.get_by_role("log").text_content() == "\n".join(one["text"] for one in data)
    assert service("translator").run.translate(["a dog barks .", "two dogs bark ."]) == [
        one["text"] for one in data
    ]
    assert page.get_by_role("heading", name="Attention").is_visible()
    assert page.get_by_label("Layer").locator("option").all_text_contents() == ["1", "2", "mean of layers"]
    assert page.locator(".thumb").count() == (2 + 1) * (2 + 1)
    check_accessibility(page)


def test_layers_without_attention_are_left_out_by_their_numbers(service, open_tool, monkeypatch):
    run = service("translator").run
    maps = run.attention_maps

    def with_gap(*texts):
        found = maps(*texts)["cross"]
        return {
            "cross": found._replace(weights=torch.cat([found.weights, found.weights[:1]]), layers=[1, 3, 4])
        }

    monkeypatch.setattr(run, "attention_maps", with_gap)
    page = open_tool("translator")
    page.get_by_label("Text (English)").fill("a dog barks .")
    press(page, "Translate")
    assert page.get_by_label("Layer").locator("option").all_text_contents()[:3] == ["1", "3", "4"]
    page.get_by_role("button", name="layer 3, head 2").click()
    assert "(layer 3, head 2)" in page.locator(".readout").text_content()


def test_alternatives_are_listed_with_their_scores(service, open_tool):
    page = open_tool("translator")
    page.get_by_label("Text (English)").fill("a dog barks .")
    page.get_by_text("Settings").click()
    page.get_by_label("Alternatives").fill("3")
    press(page, "Translate")
    (found,) = ask_again(service, "translator", page)["data"]
    ways = [found, *found["alternatives"]]
    rows = page.locator(".answer .row")
    assert rows.locator("span:first-child").all_text_contents() == [way["text"] for way in ways]
    assert rows.locator(".figure").all_text_contents() == [f"{way['score']:.3f}" for way in ways]


def test_languages_are_chosen_and_swapped(service, open_tool):
    page = open_tool("languages")
    text, output = page.get_by_label("Text", exact=True), page.get_by_role("log")
    assert page.get_by_label("From").input_value() == "en" and page.get_by_label("To").input_value() == "de"
    text.fill("a dog barks .")
    press(page, "Translate")
    assert not {"source", "target"} & request_shown(page)[1].keys()
    translated = output.text_content()
    press(page, "Swap the languages")
    assert page.get_by_label("From").input_value() == "de" and page.get_by_label("To").input_value() == "en"
    assert text.input_value() == translated and output.text_content() == ""
    text.fill("ein hund bellt .")
    press(page, "Translate")
    (found,) = ask_again(service, "languages", page)["data"]
    assert request_shown(page)[1]["source"] == "de" and request_shown(page)[1]["target"] == "en"
    assert output.text_content() == found["text"]
    check_accessibility(page, *CORNERS)


def test_a_text_is_continued_and_gone_on_from(service, open_tool):
    page = open_tool("language model")
    page.get_by_label("Text to continue").fill("two dogs")
    page.get_by_text("Settings").click()
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Maximum answer length in tokens").fill("6")
    press(page, "Continue")
    shown = page.get_by_role("log", name="Continuation")
    text = ask_again(service, "language model", page)["choices"][0]["text"]
    assert text and shown.text_content() == "two dogs" + text
    press(page, "Use it as input")
    assert page.get_by_label("Text to continue").input_value() == "two dogs" + text
    assert request_shown(page)[1]["prompt"] == "two dogs" + text
    assert shown.text_content().startswith("two dogs" + text)
    check_accessibility(page, *CORNERS)


def test_a_conversation_goes_on_and_begins_anew(service, open_tool):
    page = open_tool("chat")
    page.get_by_text("Settings").first.click()
    page.get_by_label("Temperature").locator("visible=true").fill("0")
    page.get_by_label("Maximum answer length in tokens").locator("visible=true").fill("8")
    talk, answers = page.locator(".talk"), page.locator(".turn.assistant .text")
    for number, question in enumerate(("a dog ?", "two dogs ?"), 1):
        page.get_by_label("Message").fill(question)
        press(page, "Send")
        message = ask_again(service, "chat", page)["choices"][0]["message"]
        assert answers.nth(number - 1).text_content() == message["content"]
    assert [m["role"] for m in request_shown(page)[1]["messages"]] == ["user", "assistant", "user"]
    check_accessibility(page, *CORNERS)
    press(page, "New conversation")
    assert talk.text_content() == ""
    page.get_by_label("Message").fill("dogs ?")
    press(page, "Send")
    assert len(request_shown(page)[1]["messages"]) == 1


def test_classes_are_shown_with_their_probabilities(service, open_tool):
    page = open_tool("classifier", "Classify")
    page.get_by_label("Texts").first.fill("a dog barks .\ndogs")
    press(page, "Classify")
    for bars, one in zip(
        panel_of(page).locator(".bars").all(), ask_again(service, "classifier", page)["data"], strict=True
    ):
        ordered = sorted(one["scores"].items(), key=lambda pair: -pair[1])
        assert bars.locator(".bar span").all_text_contents() == [label for label, _ in ordered]
        assert bars.locator("output").all_text_contents() == [
            f"{100 * p:.{1 if p >= 0.1 else 2}f} %" for _, p in ordered
        ]
    check_accessibility(page, *CORNERS)


def test_pairs_of_texts_are_classified(service, open_tool):
    page = open_tool("pairs", "Classify")
    page.get_by_label("Pairs of texts").fill("a dog barks .\tdogs")
    press(page, "Classify")
    assert request_shown(page)[1]["input"] == [["a dog barks .", "dogs"]]
    (one,) = ask_again(service, "pairs", page)["data"]
    assert panel_of(page).locator(".bar span").first.text_content() == one["label"]


def test_texts_are_ranked_by_their_scores(service, open_tool):
    page = open_tool("reranker", "Rank")
    page.get_by_label("Question").fill("dogs ?")
    page.get_by_label("Texts").first.fill("a dog barks .\ntwo dogs\nein hund bellt .")
    press(page, "Rank")
    texts = [text for _, text in request_shown(page)[1]["input"]]
    scores = [one["score"] for one in ask_again(service, "reranker", page)["data"]]
    ranked = sorted(zip(texts, scores, strict=True), key=lambda pair: -pair[1])
    rows = panel_of(page).locator(".row")
    assert rows.locator("span:first-child").all_text_contents() == [text for text, _ in ranked]
    assert rows.locator(".figure").all_text_contents() == [f"{score:.6f}" for _, score in ranked]
    check_accessibility(page, *CORNERS)


def test_hidden_words_are_filled_in(service, open_tool):
    page = open_tool("masked", "Fill in")
    text = page.get_by_label("Text with masks")
    text.fill("a dog ")
    press(page, "Insert <mask>")
    text.press_sequentially(" .")
    press(page, "Fill in")
    assert request_shown(page)[1]["input"] == "a dog <mask> ."
    ((fills,),) = (one["masks"] for one in ask_again(service, "masked", page)["data"])
    bars = panel_of(page).locator(".bar")
    assert bars.locator("span").all_text_contents() == [
        fill["token_str"].removeprefix("␣") or "␣" for fill in fills
    ]
    assert [bar.get_attribute("title") for bar in bars.all()] == [fill["sequence"] for fill in fills]
    check_accessibility(page, *CORNERS)


@pytest.mark.parametrize("model", ["masked", "vectors", "language model", "classifier"])
def test_texts_are_compared_by_the_cosines_of_their_vectors(service, open_tool, model):
    page = open_tool(model, None if model == "vectors" else "Compare")
    texts = panel_of(page).get_by_role("textbox", name="Texts")
    texts.fill("a dog barks .\ntwo dogs\nein hund")
    press(page, "Compare")
    vectors = torch.tensor([one["embedding"] for one in ask_again(service, model, page)["data"]])
    wanted = torch.nn.functional.cosine_similarity(vectors[:, None], vectors[None], dim=-1)
    cells = panel_of(page).locator("td").all_text_contents()[1:]
    shown = [float(cell) if cell else 1.0 for cell in cells]
    assert shown == pytest.approx(wanted.flatten().tolist(), abs=0.006)
    if model == "masked":
        check_accessibility(page, *CORNERS)


@pytest.mark.parametrize(
    "model", ["translator", "language model", "chat", "classifier", "reranker", "masked", "vectors"]
)
@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
def test_every_button_of_every_tool_can_be_pressed(open_tool, model, locale):
    page = open_tool(model, locale=locale)
    for tab in page.get_by_role("tab").all() or [None]:
        if tab:
            tab.click()
        panel = panel_of(page)
        panel.locator(".example").first.wait_for()
        names = panel.get_by_role("button").evaluate_all("all => all.map(one => one.textContent)")
        assert len(names) >= 3
        for i in range(len(names)):
            button = panel.get_by_role("button").nth(i)
            if button.is_visible() and button.is_enabled():
                button.click()
                panel.locator(".button.main:enabled").wait_for()
        assert panel.locator(".mistake").all_text_contents() == [""]


def test_a_mistake_is_shown_and_the_next_request_clears_it(open_tool):
    page = open_tool("translator", expected="status of 400")
    text = page.get_by_role("textbox").first
    text.fill("dogs bark " * 60)
    press(page, "Translate")
    mistake = page.locator("[role=alert]")
    assert mistake.text_content().startswith("the text has ")
    page.get_by_role("button", name="中文").click()
    assert mistake.text_content().startswith("文本有 ") and "请拆分" in mistake.text_content()
    check_accessibility(page, *CORNERS)
    text.fill("dogs")
    press(page, "翻译")
    assert mistake.text_content() == ""
