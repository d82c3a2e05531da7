import random

import pytest
from tests.chat.chat_helpers import NOW_TEXT, parse_output


@pytest.mark.parametrize(
    ("text", "content", "n_calls"),
    [
        (f"a\n{NOW_TEXT}\n", "a", 1),
        (f"\n\n{NOW_TEXT}", "", 1),
        (f"{NOW_TEXT}{NOW_TEXT}\n{NOW_TEXT}", "", 3),
        (f"a {NOW_TEXT} b\n{NOW_TEXT} \n ", "a  b", 2),
        (f"<tool_call>\nno\n</tool_call>\n{NOW_TEXT}", "<tool_call>\nno\n</tool_call>", 1),
        (f"<tool_call> {NOW_TEXT}", "<tool_call> ", 1),
        (NOW_TEXT.removesuffix("\n</tool_call>"), "", 1),
        (NOW_TEXT.replace("\n", " ").replace(" ", "  "), "", 1),
        (NOW_TEXT.replace("arguments", "parameters"), "", 1),
    ],
)
def test_calls_are_split_from_the_text_around_them(text, content, n_calls):
    for cuts in (None, *map(random.Random, range(10))):
        assert parse_output("chatml", text, cuts) == (content, [("now", "{}")] * n_calls)
        start, calls = parse_output("chatml", text, cuts, parallel_tool_calls=False)
        assert calls == [("now", "{}")] and content.startswith(start)
