"""What the service's page shows of the model, and what all its tools share: language, examples, copying,
files, counts, keys.
"""

import pytest
from tests.browser.conftest import PHONE, check_accessibility, mark_slow
from tests.browser.serving import MODELS, get_panel, press, process_file, read_request
from tests.serve.conftest import serve_run

from polyhead.core.i18n import set_language
from polyhead.serve.auth import ApiKeys

LEADS = {
    "translator": ("Translates English to Chinese; up to about 8 words.", "将英语译成中文；最长约 8 个词。"),
    "languages": ("Translates between English and German; up to about ", "在英语和德语之间互译；最长约 "),
    "language model": ("Continues a text; context of up to about ", "续写文本；一次可见的上下文最长约 "),
    "chat": ("Answers in a conversation; context of up to about ", "在对话中作答；一次可见的上下文最长约 "),
    "classifier": ("Sorts texts into 2 classes: bad, good; up to ", "把文本分为 2 类：bad, good；最长"),
    "pairs": ("Sorts pairs of texts into 2 classes: bad, good; up to ", "把成对的文本分为 2 类：bad, good"),
    "spans": (
        "Finds in texts what these labels name: PER, LOC; texts of any length.",
        "在文本里查找这些标签所指的内容：PER, LOC；文本长度不限。",
    ),
    "answers": (
        "Answers a question with words of a text; texts of any length.",
        "用文本中的词回答问题；文本长度不限。",
    ),
    "reranker": (
        "Ranks texts by how well they answer a question; up to ",
        "按文本对问题的回答程度排序；最长",
    ),
    "masked": (
        "Fills in masked words, and compares texts by their embeddings",
        "填补被遮盖的词，并用向量比较文本",
    ),
    "vectors": ("Compares texts by their embeddings; up to ", "用向量比较文本；最长"),
}


@pytest.mark.parametrize("model", mark_slow(LEADS, "translator", "chat", "classifier", "masked", "spans"))
def test_lead_describes_model_in_both_languages(open_tool, model):
    page = open_tool(model)
    lead, (english, chinese) = page.locator(".lead"), LEADS[model]
    assert lead.text_content().startswith(english)
    page.get_by_role("button", name="中文").click()
    assert lead.text_content().startswith(chinese)
    assert page.locator("html").get_attribute("lang") == "zh"
    if model in ("classifier", "spans", "reranker", "masked", "vectors"):  # so is what comes with an answer
        get_panel(page).locator(".example").first.click()
        page.locator(".copy:visible").first.wait_for()
        assert {text.split()[0] for text in page.locator(".copy:visible").all_text_contents()} == {"复制"}
    page.get_by_role("button", name="English", exact=True).click()
    assert lead.text_content().startswith(english)


def test_language_switch_translates_and_keeps_content(open_tool):
    page = open_tool("translator")
    text = page.get_by_role("textbox").first
    text.fill("a dog barks .")
    press(page, "Translate")
    translation = page.get_by_role("log").text_content()
    page.get_by_role("button", name="中文").click()
    assert text.input_value() == "a dog barks ." and page.get_by_role("log").text_content() == translation
    for words in ("翻译", "复制", "打开文本文件", "模型在看哪里", "设置", "就绪", "各头平均"):
        assert words in page.locator("main").text_content(), words
    rest = page.locator("main").inner_text().replace(translation, "")
    english = ("Translate", "Copy", "Examples", "Settings", "looked", "tokens", "ready", "Layer", "of about")
    assert [words for words in english if words in rest] == []
    check_accessibility(page)
    page.reload()
    page.locator(".button.main:visible").wait_for()
    assert page.locator(".button.main").text_content().startswith("翻译"), "the choice is kept"


@pytest.mark.parametrize(
    ("header", "language"),
    [
        ("zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        ("en-GB,en;q=0.9,zh;q=0.8", "en"),
        ("de-DE,de;q=0.9,zh;q=0.5,en;q=0.3", "zh"),
        ("zh;q=0.1, en;q=0.7", "en"),
        *((header, "en") for header in ("zh;q=0", "fr", "zh;q=much", "")),
    ],
)
def test_accept_language_selects_page_language(get_service, header, language):
    response = get_service("vectors").ask("/", headers={"accept-language": header})
    assert response.headers["content-language"] == language
    assert response.headers["vary"] == "accept-language"
    assert f'<html lang="{language}">' in response.text
    set_language("zh")
    try:
        response = get_service("vectors").ask("/", headers={"accept-language": header})
    finally:
        set_language(None)
    assert response.headers["content-language"] == "zh", "the option of the command"


def test_output_and_request_are_copied(open_tool):
    page = open_tool("translator", permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("textbox").first.fill("a dog barks .\ndogs")
    press(page, "Translate")
    clipboard = page.evaluate_handle("navigator.clipboard")
    press(page, "Copy the translation")
    page.get_by_role("button", name="Copied the translation").wait_for()
    assert clipboard.evaluate("c => c.readText()") == page.get_by_role("log").text_content()
    assert page.locator("#announcement").text_content() == "Copied"
    page.get_by_text("The same request from a program").click()
    page.get_by_role("button", name="Copy the request").click()
    page.get_by_role("button", name="Copied the request").wait_for()
    assert clipboard.evaluate("c => c.readText()") == page.locator(".program pre").text_content()


def test_example_is_inserted_and_sent(get_service, open_tool):
    page = open_tool("translator")
    examples = get_service("translator").ask("/v1/models").json()["data"][0]["polyhead"]["examples"]
    buttons = page.get_by_role("group", name="Examples").get_by_role("button")
    assert buttons.all_text_contents() == examples and len(examples) >= 2
    buttons.nth(1).click()
    page.locator(".note").filter(has_text="tokens").wait_for()
    assert page.get_by_role("textbox").first.input_value() == examples[1]
    assert read_request(page)[1]["input"] == [examples[1]]


def test_characters_are_counted_against_limit(get_service, open_tool):
    page = open_tool("translator")
    model = get_service("translator").ask("/v1/models").json()["data"][0]
    limit = model["polyhead"]["text_limit"]["characters"]
    text, count = page.get_by_role("textbox").first, page.locator(".count").first
    for content, expected in (
        ("", f"0 of about {limit} characters"),
        ("两只狗 😀", f"5 of about {limit} characters"),
        ("a dog\n\ntwo dogs", f"2 lines; the longest has 8 of about {limit} characters"),
    ):
        text.fill(content)
        assert count.text_content() == expected
    text.fill("x" * (limit + 1))
    assert count.text_content().endswith("; longer than its training texts")
    assert text.get_attribute("aria-describedby") == count.get_attribute("id")


def test_file_is_translated_line_by_line(get_service, open_tool, tmp_path):
    page, file = open_tool("translator", expected="status of 400"), tmp_path / "texts.txt"
    texts = ["a dog barks ."] + ["two dogs", "dogs", "ein hund bellt ."] * 20
    lines = [texts[0], "", *texts[1:], "dogs bark " * 60, "dogs"]
    file.write_text("\ufeff" + "\r\n".join(lines), encoding="utf-8")
    output = process_file(page, file)
    translations = get_service("translator").run.translate([*texts, "dogs"])
    expected = [" ".join(one.split("\n")) for one in translations]
    assert output == "\n".join([expected[0], "", *expected[1:-1], "", expected[-1]]) + "\n"
    (failure,) = page.locator(".failure").all_text_contents()
    assert failure.startswith(f"line {len(texts) + 2}: the text has ")
    assert page.locator(".note").text_content() == f"{len(texts) + 2} lines"
    check_accessibility(page, PHONE)


@pytest.mark.parametrize(
    ("model", "tab", "lines", "compute_starts"),
    [
        ("classifier", "Classify", ["a dog", "dogs"], lambda r, t: [f"{c.label}\t" for c in r.classify(t)]),
        ("masked", "Fill in", ["a <mask> ."], lambda r, t: ["a "]),
        ("vectors", None, ["a dog", "dogs"], lambda r, t: [f"{v[0]:.4f}"[:5] for v in r.embed(t).tolist()]),
        ("language model", "Continue", ["a dog", "dogs"], lambda r, t: ["", ""]),
    ],
)
def test_other_tools_process_files(get_service, open_tool, tmp_path, model, tab, lines, compute_starts):
    page, file = open_tool(model, tab), tmp_path / "texts.txt"
    file.write_text("\n".join(lines), encoding="utf-8")
    output = process_file(page, file).removesuffix("\n").split("\n")
    for line, start in zip(output, compute_starts(get_service(model).run, lines), strict=True):
        assert line.startswith(start), line


def test_line_breaks_of_a_continuation_are_spaces(open_tool, tmp_path):
    page, file = open_tool("language model", "Continue"), tmp_path / "texts.txt"
    choices = [{"text": " one\r\ntwo\rthree\n four"}]
    page.route("**/v1/completions", lambda route: route.fulfill(json={"choices": choices}))
    file.write_text("a dog")
    assert process_file(page, file) == " one two three four\n"
    page.unroute("**/v1/completions")


def test_file_without_text_is_an_error(open_tool, tmp_path):
    page = open_tool("translator")
    contents = {b"\xff\xfe\x00": "not UTF-8 text", b"\n \n": "has no text"}
    for name, (content, reason) in zip(("a.txt", "b.txt"), contents.items(), strict=True):
        (tmp_path / name).write_bytes(content)
        page.locator("input[type=file]").set_input_files(tmp_path / name)
        page.locator("[role=alert]").filter(has_text=reason).wait_for()
        assert page.locator("a[download]").count() == 0


def test_page_asks_for_api_key_and_hides_it(open_page):
    key = "0123456789abcdef0123456789"
    with serve_run(MODELS["translator"](), keys=ApiKeys([key])) as live:
        page = open_page(live.url, expected="status of 401")
        page.get_by_role("heading", name="A key is required").wait_for()
        check_accessibility(page)
        page.get_by_label("key").fill("wrong")
        page.get_by_role("button", name="Enter").click()
        page.get_by_text("Invalid key.").wait_for()
        page.get_by_label("key").fill(key)
        page.keyboard.press("Enter")
        page.locator("textarea").first.fill("dogs")  # a password field is a textbox, too
        press(page, "Translate")
        assert key not in page.content() and "Bearer $KEY" in page.locator(".program pre").text_content()


def test_page_works_by_keyboard(open_tool):
    page = open_tool("chat")
    assert page.evaluate("document.activeElement.tagName") == "TEXTAREA"
    page.keyboard.type("a dog ?")
    page.keyboard.press("Control+Enter")
    page.locator(".note").filter(has_text="tokens").first.wait_for()
    assert page.locator(".turn.assistant").count() == 1
    page.get_by_role("tab", name="Chat").focus()
    selected_tab = page.get_by_role("tab", selected=True)
    for key, name in (("ArrowRight", "Continue"), ("End", "Compare"), ("Home", "Chat")):
        page.keyboard.press(key)
        assert selected_tab.text_content() == name and page.get_by_role("tabpanel").count() == 1


# forwards a stream but never ends it, as a slow model would: a small one would finish before Escape
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
          if (done) return;
          // a fast model sends its whole text and the end at once
          sink.enqueue(new TextEncoder().encode(new TextDecoder().decode(value).replace("data: [DONE]", "")));
        }
      },
    }), answer);
  };
}"""


def test_escape_stops_generation_and_keeps_output(open_tool):
    page = open_tool("language model", expected="ERR_ABORTED")
    page.evaluate(ENDLESS)
    page.get_by_text("Settings").click()
    page.get_by_label("Maximum answer length in tokens").fill("1000")
    page.get_by_label("Temperature").fill("0")  # the text is not empty
    page.get_by_role("textbox").first.fill("two dogs")
    page.keyboard.press("Control+Enter")
    page.locator(".new:not(:empty)").wait_for()
    page.keyboard.press("Escape")
    page.locator(".note").filter(has_text="stopped").wait_for()
    assert page.locator(".new").text_content()
