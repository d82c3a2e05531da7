import time

import pytest

from polyhead.chat.apply_template import encode_pieces
from polyhead.chat.base import ChatPiece
from polyhead.serve.limits import Limits
from polyhead.tokenizers.mask_tokens import encode_masked

FAMILIES = {
    "letter": "a", "letters": "ab", "carets": "^", "blanks": " ", "lines": "\n", "digits": "1234567890",
    "accents": "e\u0301",
    "marks": "\u0301", "joined": "👩\u200d", "wide": "我们今天", "signs": "!?.,;:'\"-–“”", "masks": "<mask>",
    "specials": "</s><s><pad><mask>", "marker": "<|im_start|>user\n<start_of_turn>[INST] <",
    "replacement": "\ufffd",
}  # fmt: skip
KINDS = ["bpe", "byte", "char", "unigram", "wordpiece"]


def cpu_seconds(function, argument):
    """The least of three runs."""
    times = []
    for _ in range(3):
        start = time.process_time()
        function(argument)
        times.append(time.process_time() - start)
    return min(times)


@pytest.mark.slow
@pytest.mark.acceptance("E12")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
def test_time_grows_linearly(get_tokenizer, kind, family, monkeypatch):
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    tokenizer, max_chars = get_tokenizer(kind), Limits().max_chars

    def encode_chat(text):
        answer = ChatPiece(text, is_assistant=True)
        encode_pieces([ChatPiece("user\n"), answer, ChatPiece("</s>", "token", True)], tokenizer)

    functions = {
        "encode": lambda text: tokenizer.encode([text]),
        "encode_with_offsets": lambda text: tokenizer.encode_with_offsets(text, after_special=True),
        "encode_masked": lambda text: encode_masked(tokenizer, [text[:-7] + " <mask>"]),
        "chat": encode_chat,
        "decode": lambda ids: tokenizer.decode([ids]),
    }
    unit = FAMILIES[family]
    texts = [(unit * (size // len(unit) + 1))[:size] for size in (max_chars // 4, max_chars // 2, max_chars)]
    for name, function in functions.items():
        arguments = [tokenizer.encode([text])[0] for text in texts] if name == "decode" else texts
        seconds = [cpu_seconds(function, argument) for argument in arguments]
        # quadratic time takes seconds for the longest text, and four times as long for each doubling; below a
        # tenth of a second the noise of the machine is larger
        assert seconds[2] < 0.1 or seconds[2] / seconds[0] < 3.5**2, (name, seconds)
        assert seconds[2] < 2, (name, seconds)
