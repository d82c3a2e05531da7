"""What the service's page says of the model, and what all its tools have: language, examples, copying,
files, counts, keys.
"""

from __future__ import annotations

import pytest
from tests.browser.conftest import CORNERS, SCREENS, check_accessibility
from tests.browser.serving import MODELS, live_services, open_file, press, request_shown
from tests.serve.conftest import living

from polyhead.core import i18n
from polyhead.serve.http.auth import ApiKeys


@pytest.fixture(scope="module")
def service():
    with live_services() as service:
        yield service


def opened(open_page, live, **options):
    page = open_page(live.url, **options)
    page.locator(".button.main:visible").wait_for()
    return page


@pytest.mark.parametrize(
    ("model", "english", "chinese"),
    [
        (
            "translator",
            "Translates English to Chinese; up to about 8 words.",
            "将英语译成中文；最长约 8 个词。",
        ),
        ("languages", "Translates between English and German; up to about ", "在英语和德语之间互译；最长约 "),
        ("language model", "Continues a text; context of up to about ", "续写文本；一次可见的上下文最长约 "),
        (
            "chat",
            "Answers in a conversation; context of up to about ",
            "在对话中作答；一次可见的上下文最长约 ",
        ),
        ("classifier", "Sorts texts into 2 classes: bad, good; up to ", "把文本分为 2 类：bad, good；最长"),
        (
            "pairs",
            "Sorts pairs of texts into 2 classes: bad, good; up to ",
            "把成对的文本分为 2 类：bad, good；最长",
        ),
        (
            "reranker",
            "Ranks texts by how well they answer a question; up to ",
            "按文本对问题的回答程度排序；最长",
        ),
        (
            "masked",
            "Fills in masked words, and compares texts by their embeddings; up to ",
            "填补被遮盖的词，并用向量比较文本；最长",
        ),
        ("vectors", "Compares texts by their embeddings; up to ", "用向量比较文本；最长"),
    ],
)
def test_the_page_says_what_the_model_does_in_both_languages(service, open_page, model, english, chinese):
    page = opened(open_page, service(model))
    lead = page.locator(".lead")
    assert lead.text_content().startswith(english)
    page.get_by_role("button", name="中文").click()
    assert lead.text_content().startswith(chinese)
    assert page.locator("html").get_attribute("lang") == "zh"
    page.get_by_role("button", name="EN", exact=True).click()
    assert lead.text_content().startswith(english)


def test_nothing_of_the_page_stays_english_in_chinese_and_nothing_is_lost_by_the_switch(service, open_page):
    page = opened(open_page, service("translator"))
    text = page.get_by_role("textbox").first
    text.fill("a dog barks .")
    press(page, "Translate")
    translation = page.get_by_role("log").text_content()
    page.get_by_role("button", name="中文").click()
    assert text.input_value() == "a dog barks ." and page.get_by_role("log").text_content() == translation
    for words in ("翻译", "复制", "打开文本文件", "模型在看哪里", "设置", "就绪", "各头平均"):
        assert words in page.locator("main").text_content(), words
    left = page.locator("main").inner_text().replace(translation, "")
    for words in (
        "Translate",
        "Copy",
        "Examples",
        "Settings",
        "looked",
        "tokens",
        "ready",
        "Layer",
        "of about",
    ):
        assert words not in left, words
    check_accessibility(page, *CORNERS)


@pytest.mark.parametrize("model", ["classifier", "reranker", "masked", "vectors"])
def test_an_answer_after_the_switch_can_be_copied_in_chinese(service, open_page, model):
    page = opened(open_page, service(model))
    page.get_by_role("button", name="中文").click()
    panel = page.get_by_role("tabpanel").filter(visible=True).or_(page.locator("main")).first
    panel.locator(".example").first.click()
    page.locator(".copy:visible").first.wait_for()
    assert {text.split()[0] for text in page.locator(".copy:visible").all_text_contents()} == {"复制"}


def test_the_language_is_that_of_the_browser_until_another_is_chosen_and_kept(service, open_page):
    page = opened(open_page, service("vectors"), locale="zh-CN")
    assert page.get_by_role("button", name="中文").get_attribute("aria-pressed") == "true"
    assert page.locator(".button.main").text_content().startswith("比较")
    page.get_by_role("button", name="EN", exact=True).click()
    page.reload()
    page.locator(".button.main:visible").wait_for()
    assert page.locator(".button.main").text_content().startswith("Compare")


@pytest.mark.parametrize(
    ("header", "language"),
    [
        ("zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        ("en-GB,en;q=0.9,zh;q=0.8", "en"),
        ("de-DE,de;q=0.9,zh;q=0.5,en;q=0.3", "zh"),
        ("zh;q=0.1, en;q=0.7", "en"),
        ("zh;q=0", "en"),
        ("fr", "en"),
        ("zh;q=much", "en"),
        ("", "en"),
    ],
)
def test_the_page_begins_in_a_language_that_is_accepted(service, header, language):
    answer = service("vectors").ask("/", headers={"accept-language": header})
    assert answer.headers["content-language"] == language and answer.headers["vary"] == "accept-language"
    assert f'<html lang="{language}">' in answer.text


def test_the_language_of_the_command_line_wins(service):
    i18n.set_language("zh")
    try:
        answer = service("vectors").ask("/", headers={"accept-language": "en"})
    finally:
        i18n.set_language(None)
    assert answer.headers["content-language"] == "zh"


def test_what_is_shown_can_be_copied(service, open_page):
    page = opened(open_page, service("translator"), permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("textbox").first.fill("a dog barks .\ndogs")
    press(page, "Translate")
    copied = page.evaluate_handle("navigator.clipboard")
    press(page, "Copy the translation")
    page.get_by_role("button", name="Copied the translation").wait_for()
    assert copied.evaluate("c => c.readText()") == page.get_by_role("log").text_content()
    assert page.locator("#announcement").text_content() == "Copied"
    page.get_by_text("The same request from a program").click()
    page.get_by_role("button", name="Copy the request").click()
    page.get_by_role("button", name="Copied the request").wait_for()
    assert copied.evaluate("c => c.readText()") == page.locator(".program pre").text_content()


def test_an_example_is_put_in_its_place_and_tried(service, open_page):
    page = opened(open_page, service("translator"))
    examples = service("translator").ask("/v1/models").json()["data"][0]["polyhead"]["examples"]
    shown = page.get_by_role("group", name="Examples").get_by_role("button")
    assert shown.all_text_contents() == examples and len(examples) >= 2
    shown.nth(1).click()
    page.locator(".note").filter(has_text="tokens").wait_for()
    assert page.get_by_role("textbox").first.input_value() == examples[1]
    assert request_shown(page)[1]["input"] == [examples[1]]


def test_characters_are_counted_beside_the_limit(service, open_page):
    page = opened(open_page, service("translator"))
    most = service("translator").ask("/v1/models").json()["data"][0]["polyhead"]["text_limit"]["characters"]
    text, count = page.get_by_role("textbox").first, page.locator(".count").first
    assert count.text_content() == f"0 of about {most} characters"
    text.fill("两只狗 😀")
    assert count.text_content() == f"5 of about {most} characters"
    text.fill("a dog\n\ntwo dogs")
    assert count.text_content() == f"2 lines; the longest has 8 of about {most} characters"
    text.fill("x" * (most + 1))
    assert count.text_content().endswith("; longer than its training texts")
    assert text.get_attribute("aria-describedby") == count.get_attribute("id")


def test_a_file_is_translated_line_by_line_and_the_result_downloaded(service, open_page, tmp_path):
    page, file = opened(open_page, service("translator"), expected="status of 400"), tmp_path / "texts.txt"
    texts = ["a dog barks ."] + ["two dogs", "dogs", "ein hund bellt ."] * 20
    file.write_text(
        "\ufeff" + "\r\n".join([texts[0], "", *texts[1:], "dogs bark " * 60, "dogs"]), encoding="utf-8"
    )
    got = open_file(page, file)
    run = service("translator").run
    wanted = [" ".join(one.split("\n")) for one in run.translate([*texts, "dogs"])]
    assert got == "\n".join([wanted[0], "", *wanted[1:-1], "", wanted[-1]]) + "\n"
    failures = page.locator(".failure").all_text_contents()
    assert len(failures) == 1 and failures[0].startswith(f"line {len(texts) + 2}: the text has ")
    assert page.locator(".note").text_content() == f"{len(texts) + 2} lines"
    check_accessibility(page, SCREENS[0])


@pytest.mark.parametrize(
    ("model", "tab", "lines", "wanted"),
    [
        ("classifier", "Classify", ["a dog", "dogs"], lambda run,
            texts: [f"{c.label}\t" for c in run.classify(texts)]),
        ("masked", "Fill in", ["a <mask> ."], lambda run, texts: ["a "]),
        ("vectors", None, ["a dog", "dogs"], lambda run,
            texts: [f"{v[0]:.4f}"[:5] for v in run.embed(texts).tolist()]),
        ("language model", "Continue", ["a dog", "dogs"], lambda run, texts: ["", ""]),
    ],
)  # fmt: skip
def test_other_tools_read_files_too(service, open_page, tmp_path, model, tab, lines, wanted):
    page, file = opened(open_page, service(model)), tmp_path / "texts.txt"
    if tab:
        page.get_by_role("tab", name=tab).click()
    file.write_text("\n".join(lines), encoding="utf-8")
    got = open_file(page, file).removesuffix("\n").split("\n")
    for line, begin in zip(got, wanted(service(model).run, lines), strict=True):
        assert line.startswith(begin), line


def test_a_file_that_is_no_text_is_refused_with_a_reason(service, open_page, tmp_path):
    page = opened(open_page, service("translator"))
    for name, content, reason in (
        ("a.txt", b"\xff\xfe\x00", "not UTF-8 text"),
        ("b.txt", b"\n \n", "has no text"),
    ):
        (tmp_path / name).write_bytes(content)
        page.locator("input[type=file]").set_input_files(tmp_path / name)
        page.locator("[role=alert]").filter(has_text=reason).wait_for()
        assert page.locator("a[download]").count() == 0


def test_a_service_with_keys_asks_for_one_and_shows_no_text_of_the_run(open_page):
    key = "0123456789abcdef0123456789"
    with living(MODELS["translator"](), keys=ApiKeys([key])) as live:
        page = open_page(live.url, expected="status of 401")
        page.get_by_role("heading", name="A key is required").wait_for()
        check_accessibility(page, *CORNERS)
        page.get_by_label("key").fill("wrong")
        page.get_by_role("button", name="Enter").click()
        page.get_by_text("Invalid key.").wait_for()
        page.get_by_label("key").fill(key)
        page.keyboard.press("Enter")
        page.locator("textarea").first.fill("dogs")  # a password field is a textbox, too
        press(page, "Translate")
        assert key not in page.content() and "Bearer $KEY" in page.locator(".program pre").text_content()


def test_all_can_be_done_by_the_keyboard(service, open_page):
    page = opened(open_page, service("chat"))
    assert page.evaluate_handle("document.activeElement").get_property("tagName").json_value() == "TEXTAREA"
    page.keyboard.type("a dog ?")
    page.keyboard.press("Control+Enter")
    page.locator(".note").filter(has_text="tokens").first.wait_for()
    assert page.locator(".turn.assistant").count() == 1
    page.get_by_role("tab", name="Chat").focus()
    page.keyboard.press("ArrowRight")
    selected = page.get_by_role("tab", selected=True)
    assert selected.text_content() == "Continue" and page.get_by_role("tabpanel").count() == 1
    page.keyboard.press("End")
    assert selected.text_content() == "Compare"
    page.keyboard.press("Home")
    assert selected.text_content() == "Chat"


# passes a stream on and never ends it, as a model does that is not done yet: a small one would be done before
# Escape
ENDLESS = """() => {
  const real = window.fetch;
  window.fetch = async (path, options) => {
    const answer = await real(path, options);
    if (!options?.signal) return answer;
    const reader = answer.body.getReader();
    return new Response(new ReadableStream({
      async start(sink) {
        options.signal.addEventListener("abort", () => sink.error(options.signal.reason));
        for (;;) {
          const { value, done } = await reader.read();
          if (done || new TextDecoder().decode(value).includes("[DONE]")) return;
          sink.enqueue(value);
        }
      },
    }), answer);
  };
}"""


def test_work_can_be_stopped(service, open_page):
    """Also by Escape; what came is kept."""
    page = opened(open_page, service("language model"), expected="ERR_ABORTED")
    page.evaluate(ENDLESS)
    page.get_by_text("Settings").click()
    page.get_by_label("Maximum answer length in tokens").fill("1000")
    page.get_by_role("textbox").first.fill("two dogs")
    page.keyboard.press("Control+Enter")
    page.locator(".new:not(:empty)").wait_for()
    page.keyboard.press("Escape")
    page.locator(".note").filter(has_text="stopped").wait_for()
    assert page.locator(".new").text_content()
