"""Each tool of the service's page shows what the service answers, for each kind of model."""

import pytest
import torch
from tests.browser.conftest import check_accessibility, wait_until
from tests.browser.serving import MODELS, get_panel, press, read_request

from polyhead.evaluate.answering import ContextAnswer
from polyhead.run.run_examples import read_examples


def repeat_request(get_service, model, page):
    """The answer of the service to the request that the page shows."""
    path, body = read_request(page)
    response = get_service(model).ask(path, body)
    assert response.status_code == 200, response.text
    return response.json()


def test_translation_is_displayed_with_attention(get_service, open_tool):
    page = open_tool("translator")
    page.get_by_label("Text (English)").fill("a dog barks .\ntwo dogs bark .")
    press(page, "Translate")
    texts = [one["text"] for one in repeat_request(get_service, "translator", page)["data"]]
    assert page.get_by_role("log").text_content() == "\n".join(texts)
    assert get_service("translator").run.translate(["a dog barks .", "two dogs bark ."]) == texts
    assert page.get_by_role("heading", name="Attention").is_visible()
    assert page.get_by_label("Layer").locator("option").all_text_contents() == ["1", "2", "mean of layers"]
    assert page.locator(".thumb").count() == (2 + 1) * (2 + 1)
    check_accessibility(page)


@pytest.mark.slow
def test_why_explains_the_translated_text(get_service, open_tool):
    page = open_tool("translator")
    text, run = "a dog & two dogs =?", get_service("translator").run
    page.get_by_label("Text (English)").fill(text)
    press(page, "Translate")
    page.get_by_role("link", name="Why?").click()
    wait_until(page, "window.explain?.page.data")
    inputs = page.evaluate("explain.page.data.inputs")
    assert (inputs["text"], inputs["target_is"]) == (text, "output")
    tokens = run.hypotheses([text])[0][0].tokens  # also those of a character that is cut off
    assert run.tokenizer.target_tokenizer.decode([tokens]) == [inputs["target"]]
    assert inputs["target"].startswith(run.translate([text])[0])
    assert page.get_by_label("Text to explain").input_value() == text
    page.goto(page.url + "&target=zwei+hunde")
    wait_until(page, "window.explain?.page.data?.inputs.target === 'zwei hunde'")
    page.get_by_role("link", name="Polyhead", exact=True).first.click()
    page.locator(".button.main:visible").wait_for()


def test_layers_without_attention_keep_their_numbers(get_service, open_tool, monkeypatch):
    run = get_service("translator").run
    compute_maps = run.attention_maps

    def skip_layer(*texts):
        cross = compute_maps(*texts)["cross"]
        return {"cross": cross._replace(weights=cross.weights[[0, 1, 0]], layers=[1, 3, 4])}

    monkeypatch.setattr(run, "attention_maps", skip_layer)
    page = open_tool("translator")
    page.get_by_label("Text (English)").fill("a dog barks .")
    press(page, "Translate")
    assert page.get_by_label("Layer").locator("option").all_text_contents()[:3] == ["1", "3", "4"]
    page.get_by_role("button", name="layer 3, head 1").click()
    assert "(layer 3, head 1)" in page.locator(".readout").text_content()


def test_alternatives_are_listed_with_scores(get_service, open_tool):
    page = open_tool("translator")
    page.get_by_label("Text (English)").fill("a dog barks .")
    page.get_by_text("Settings").click()
    page.get_by_label("Alternatives").fill("3")
    press(page, "Translate")
    (best,) = repeat_request(get_service, "translator", page)["data"]
    hypotheses = [best, *best["alternatives"]]
    rows = page.locator(".answer .row")
    assert rows.locator("span:first-child").all_text_contents() == [one["text"] for one in hypotheses]
    assert rows.locator(".figure").all_text_contents() == [f"{one['score']:.3f}" for one in hypotheses]


def test_languages_are_selected_and_swapped(get_service, open_tool):
    page = open_tool("languages")
    text, output = page.get_by_label("Text", exact=True), page.get_by_role("log")

    def read_languages():
        return [page.get_by_label(name).input_value() for name in ("From", "To")]

    assert read_languages() == ["en", "de"]
    text.fill("a dog barks .")
    press(page, "Translate")
    assert not {"source", "target"} & read_request(page)[1].keys()
    translation = output.text_content()
    press(page, "Swap the languages")
    assert read_languages() == ["de", "en"]
    assert (text.input_value(), output.text_content()) == (translation, "")
    text.fill("ein hund bellt .")
    press(page, "Translate")
    (result,) = repeat_request(get_service, "languages", page)["data"]
    body = read_request(page)[1]
    assert (body["source"], body["target"], output.text_content()) == ("de", "en", result["text"])
    check_accessibility(page)


def test_continuation_becomes_next_input(get_service, open_tool):
    page = open_tool("language model")
    page.get_by_label("Text to continue").fill("two dogs")
    page.get_by_text("Settings").click()
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Maximum answer length in tokens").fill("6")
    press(page, "Continue")
    output = page.get_by_role("log", name="Continuation")
    text = repeat_request(get_service, "language model", page)["choices"][0]["text"]
    assert text and output.text_content() == "two dogs" + text
    press(page, "Use it as input")
    assert page.get_by_label("Text to continue").input_value() == "two dogs" + text
    assert read_request(page)[1]["prompt"] == "two dogs" + text
    assert output.text_content().startswith("two dogs" + text)
    check_accessibility(page)


def test_conversation_continues_and_restarts(get_service, open_tool):
    page = open_tool("chat")
    page.get_by_text("Settings").first.click()
    page.get_by_label("Temperature").locator("visible=true").fill("0")
    page.get_by_label("Maximum answer length in tokens").locator("visible=true").fill("8")
    for number, question in enumerate(("a dog ?", "two dogs ?")):
        page.get_by_label("Message").fill(question)
        press(page, "Send")
        message = repeat_request(get_service, "chat", page)["choices"][0]["message"]
        assert page.locator(".turn.assistant .text").nth(number).text_content() == message["content"]
    assert [m["role"] for m in read_request(page)[1]["messages"]] == ["user", "assistant", "user"]
    check_accessibility(page)
    press(page, "New conversation")
    assert page.locator(".talk").text_content() == ""
    page.get_by_label("Message").fill("dogs ?")
    press(page, "Send")
    assert len(read_request(page)[1]["messages"]) == 1


@pytest.mark.parametrize(
    ("model", "label", "text", "value"),
    [
        ("classifier", "Texts", "a dog barks .\ndogs", ["a dog barks .", "dogs"]),
        ("pairs", "Pairs of texts", "a dog barks .\tdogs", [["a dog barks .", "dogs"]]),
    ],
)
def test_classes_are_sorted_by_probability(get_service, open_tool, model, label, text, value):
    page = open_tool(model, "Classify")
    page.get_by_label(label).first.fill(text)
    press(page, "Classify")
    assert read_request(page)[1]["input"] == value
    results = repeat_request(get_service, model, page)["data"]
    for bars, result in zip(get_panel(page).locator(".bars").all(), results, strict=True):
        scores = sorted(result["scores"].items(), key=lambda pair: -pair[1])
        assert bars.locator(".bar span").all_text_contents() == [name for name, _ in scores]
        percent = [f"{100 * p:.{1 if p >= 0.1 else 2}f} %" for _, p in scores]
        assert bars.locator("output").all_text_contents() == percent
    check_accessibility(page)


def test_spans_are_found_in_each_text(get_service, open_tool):
    page = open_tool("spans")
    page.get_by_label("Texts").first.fill("a dog barks .\n.")
    press(page, "Find")
    results = repeat_request(get_service, "spans", page)["data"]
    assert any(result["spans"] for result in results)
    for bars, result in zip(get_panel(page).locator(".bars").all(), results, strict=True):
        names = [f"{span['text']} = {span['label']}" for span in result["spans"]]
        assert bars.locator(".bar span").all_text_contents() == (names or ["nothing found"])
        assert bars.locator("output").count() == len(names)
    check_accessibility(page)


def test_question_is_answered_with_words_of_context(get_service, open_tool):
    page = open_tool("answers")
    panel, run = get_panel(page), get_service("answers").run
    panel.locator(".example").first.click()
    panel.locator(".bar").wait_for()
    texts = [panel.get_by_label(name, exact=True) for name in ("Question", "Context")]
    assert tuple(text.input_value() for text in texts) == read_examples(run.directory)[0]
    texts[1].fill(" ".join(["two dogs bark"] * 30))
    press(page, "Answer")
    result = repeat_request(get_service, "answers", page)
    assert result["answer"] == texts[1].input_value()[result["start"] : result["end"]]
    name = result["answer"] or "no answer in this text"
    assert panel.locator(".bar span").all_text_contents() == [name]
    assert panel.locator("mark").all_text_contents() == [result["answer"]] * bool(result["answer"])
    assert panel.locator(".count.over").count() == 0
    check_accessibility(page)


@pytest.mark.parametrize("n_before", [0, 40])
def test_answer_is_marked_in_its_context(get_service, open_tool, monkeypatch, n_before):
    before, answer = "😀 two dogs bark . " * n_before + "😀 a ", "dog"
    at = len(before)
    found = ContextAnswer(answer, at, at + len(answer), 0.75)
    monkeypatch.setattr(get_service("answers").run, "answer_all", lambda pairs: [found] * len(pairs))
    page = open_tool("answers")
    panel, context = get_panel(page), before + answer + " barks ."
    panel.get_by_label("Question", exact=True).fill("who ?")
    panel.get_by_label("Context", exact=True).fill(context)
    press(page, "Answer")
    assert panel.locator("mark").text_content() == answer
    excerpt = "…" + context[at - 300 :] if n_before else context
    assert panel.locator("p.text").text_content() == excerpt
    check_accessibility(page)


def test_texts_are_ranked_by_score(get_service, open_tool):
    page = open_tool("reranker", "Rank")
    page.get_by_label("Question").fill("dogs ?")
    page.get_by_label("Texts").first.fill("a dog barks .\ntwo dogs\nein hund bellt .")
    press(page, "Rank")
    texts = [text for _, text in read_request(page)[1]["input"]]
    scores = [one["score"] for one in repeat_request(get_service, "reranker", page)["data"]]
    order = sorted(zip(texts, scores, strict=True), key=lambda pair: -pair[1])
    rows = get_panel(page).locator(".row")
    assert rows.locator("span:first-child").all_text_contents() == [text for text, _ in order]
    assert rows.locator(".figure").all_text_contents() == [f"{score:.6f}" for _, score in order]
    check_accessibility(page)


def test_masked_words_are_filled_in(get_service, open_tool):
    page = open_tool("masked", "Fill in")
    text = page.get_by_label("Text with masks")
    text.fill("a dog ")
    press(page, "Insert <mask>")
    text.press_sequentially(" .")
    press(page, "Fill in")
    assert read_request(page)[1]["input"] == "a dog <mask> ."
    ((fills,),) = (one["masks"] for one in repeat_request(get_service, "masked", page)["data"])
    bars = get_panel(page).locator(".bar")
    names = [fill["token_str"].removeprefix("␣") or "␣" for fill in fills]
    assert bars.locator("span").all_text_contents() == names
    assert [bar.get_attribute("title") for bar in bars.all()] == [fill["sequence"] for fill in fills]
    check_accessibility(page)


@pytest.mark.parametrize("model", ["masked", "vectors", "language model", "classifier"])
def test_texts_are_compared_by_cosine_similarity(get_service, open_tool, model):
    page = open_tool(model, None if model == "vectors" else "Compare")
    get_panel(page).get_by_role("textbox", name="Texts").fill("a dog barks .\ntwo dogs\nein hund")
    press(page, "Compare")
    vectors = [one["embedding"] for one in repeat_request(get_service, model, page)["data"]]
    vectors = torch.nn.functional.normalize(torch.tensor(vectors))
    cells = get_panel(page).locator("td").all_text_contents()[1:]
    values = [float(cell) if cell else 1.0 for cell in cells]
    assert values == pytest.approx((vectors @ vectors.T).flatten().tolist(), abs=0.006)
    if model == "masked":
        check_accessibility(page)


@pytest.mark.parametrize("model", [model for model in MODELS if model not in ("languages", "pairs")])
@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
def test_every_button_of_every_tool_works(open_tool, model, locale):
    page = open_tool(model, locale=locale)
    for tab in page.get_by_role("tab").all() or [None]:
        if tab:
            tab.click()
        panel = get_panel(page)
        panel.locator(".example").first.wait_for()
        n_buttons = panel.get_by_role("button").count()
        assert n_buttons >= 3
        for i in range(n_buttons):
            button = panel.get_by_role("button").nth(i)
            if button.is_visible() and button.is_enabled():
                button.click()
                panel.locator(".button.main:enabled").wait_for()
        assert panel.locator(".mistake").all_text_contents() == [""]


def test_next_request_clears_error_message(open_tool):
    page = open_tool("translator", expected="status of 400")
    text, error = page.get_by_role("textbox").first, page.locator("[role=alert]")
    text.fill("dogs")
    press(page, "Translate")
    answer = page.get_by_role("log", name="Translation")
    assert answer.text_content() and page.locator(".attention").count()
    text.fill("dogs bark " * 60)
    press(page, "Translate")
    assert error.text_content().startswith("The text is too long for this model, which reads up to ")
    assert error.get_attribute("title").startswith("the text has ")
    assert answer.text_content() == "" and not page.locator(".attention").count()
    page.get_by_role("button", name="中文").click()
    assert error.text_content().startswith("文本太长")
    check_accessibility(page)
    text.fill("dogs")
    press(page, "翻译")
    assert error.text_content() == ""
