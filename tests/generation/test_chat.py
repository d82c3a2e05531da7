import pytest
import torch
from tests.generation.helpers import decode_plain
from tests.generation.run_helpers import make_run

from polyhead import Choice
from polyhead.chat.apply_template import encode_chat, encode_end_tokens
from polyhead.chat.base import Message, ToolCall
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError
from polyhead.core.registry import CHAT
from polyhead.generation.chat import ChatSession, parse_conversation
from polyhead.run.run import Run
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer

HELLO = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello 犬"}]


@pytest.fixture(scope="module")
def run():
    texts = ["hello you", "be kind 犬", "User: Assistant: System:"]
    tokenizer = train_tokenizer(texts * 5, Choice("bpe"), 300)
    tokenizer._inner.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    settings = {"chat": Choice("chatml"), "max_new_tokens": 12}
    return make_run("decoder", Tokenizer(tokenizer._inner), settings=settings, max_len=96)


@pytest.mark.parametrize("name", ["chatml", "plain", "llama2"])
def test_answer_continues_the_encoded_conversation(run, name):
    template = CHAT.build(Choice(name))
    prompt = encode_chat(template, run.tokenizer, parse_conversation(HELLO), add_generation_prompt=True).ids
    ends = encode_end_tokens(template, run.tokenizer)
    tokens = decode_plain(run.model, prompt, 12, eos_id=-1)
    tokens = tokens[: next((i for i, token in enumerate(tokens) if token in ends), 12)]
    context, full = (run.tokenizer.decode([ids])[0] for ids in (prompt, prompt + tokens))
    text, answer = full[len(context) :].rstrip("\ufffd"), run.chat(HELLO, chat=name, temperature=0)
    assert answer == (text.strip() if template.trim_content else text)
    assert "".join(run.stream_chat(HELLO, chat=name, temperature=0)) == answer
    assert run.chat(HELLO, chat=name, seed=4) == run.chat(HELLO, chat=name, seed=4) != answer


@pytest.mark.parametrize(("name", "is_end"), [("<|im_end|>", True), ("</s>", True), ("<s>", False)])
def test_any_end_token_ends_the_turn(run, name, is_end):
    request = run.chat_session().prepare_request(parse_conversation(HELLO), temperature=0)
    logits = torch.zeros(1, run.config.vocab_size)
    logits[0, run.tokenizer.token_to_id(name)] = 9.0
    request.state.strategy.advance([request.state], logits)
    assert (not request.state.rows) is is_end


@pytest.mark.acceptance("E12")
@pytest.mark.parametrize("n_dropped", [0, 150, 299])
def test_truncation_encodes_only_a_logarithm_of_turns(run, n_dropped, monkeypatch):
    session, lengths = run.chat_session(), []
    turns = [m for i in range(300) for m in (Message("user", f"hello {i}"), Message("assistant", "you"))]
    messages = [Message("system", "be kind"), *turns[:-1]]
    expected, encode = [messages[0], *messages[1 + 2 * n_dropped :]], session.encode_prompt
    room = len(encode(expected))

    def counting(messages, *tools):
        lengths.append(len(messages))
        return encode(messages, *tools)

    monkeypatch.setattr(session, "encode_prompt", counting)
    assert session.truncate_history(messages, room).messages == expected
    assert sum(lengths) <= len(messages) * 11  # a binary search of the turns, and the first encoding
    with pytest.raises(UserError, match="shorten the message"):
        session.truncate_history(messages, len(encode([messages[0], messages[-1]])) - 1)


NO_LIST = "a conversation is a list of messages"


@pytest.mark.parametrize(
    ("conversation", "message"),
    [
        ("hello", NO_LIST),
        ({"role": "user", "content": "x"}, NO_LIST),
        (None, NO_LIST),
        (Message("user", "x"), NO_LIST),
        ([1], "message 0 is 1, expected a role and a content"),
        ([("user", "x")], r"message 0 is \('user', 'x'\), expected a role and a content"),
        ([Message("user", None)], "message 0 has no text as its content: null"),
        ([Message("assistant", "", ToolCall("now"))], "call 0 of message 0 is 'now', expected an id and a"),
        ([Message("assistant", "", (ToolCall("now", "x"),))], "call 0 of message 0 has the arguments 'x'"),
        ([{"role": "user"}], "message 0 has no text as its content"),
        ([{"role": 1, "content": ""}], "message 0 has no text as its role"),
        ([{"role": "user", "content": "", "contents": ""}], "did you mean 'content'"),
    ],
)
def test_invalid_conversations_are_refused(run, conversation, message):
    for method in (run.chat, run.chat_session().answer, run.chat_session().reply):
        with pytest.raises(UserError, match=message):
            method(conversation)


def test_messages_and_options_of_a_chat(run):
    calls = [{"id": "1", "function": {"name": "now", "arguments": '{"x":1}'}}]
    result = {"role": "tool", "content": "3", "tool_call_id": None}
    messages = parse_conversation([{"role": "assistant", "content": None, "tool_calls": calls}, result])
    assert messages == [Message("assistant", "", (ToolCall("now", '{"x": 1}', "1"),)), Message("tool", "3")]
    assert parse_conversation(messages) == messages
    assert parse_conversation([Message("assistant", "", (ToolCall("now", {"x": 1}, "1"),))]) == messages[:1]
    assert parse_conversation([Message("assistant", None, calls)]) == messages[:1]
    session, answer = run.chat_session(), run.chat(HELLO, seed=4)
    assert "".join(session.answer(HELLO, seed=4)) == answer == session.reply(HELLO, seed=4).content
    plain = Run(run.model, run.tokenizer, GenerationConfig())
    for request, message in (
        (lambda: plain.chat(HELLO), r"^[^\n]*set it with chat=: chatml, gemma[^\n]*$"),
        (lambda: plain.chat(HELLO, chat="chatlm"), "did you mean 'chatml'"),
        (lambda: plain.chat(HELLO, chat="llama3"), "needs the token"),
        (lambda: plain.generate(["x"], chat="plain"), "chat has no effect on sampled text"),
        (lambda: run.chat(HELLO, n=2, seed=4), "n is 2, but a chat has one answer"),
        (lambda: run.chat_session().reply(HELLO, n=2, seed=4), "n is 2, but a chat has one answer"),
    ):
        with pytest.raises(UserError, match=message):
            request()
    assert run.chat(HELLO, n=1, seed=4) and run.chat_session().reply(HELLO, n=1, seed=4)


def test_truncation_drops_the_oldest_turns(run):
    """System messages at the start stay always, a later one as long as the question after it."""
    session = run.chat_session()
    turns = [Message("user", f"hello {i}") if i % 2 == 0 else Message("assistant", "you") for i in range(9)]
    messages = [Message("system", "be kind"), *turns]
    room = len(session.encode_prompt([messages[0], *turns[4:]]))
    assert session.truncate_history(messages, room).messages == [messages[0], *turns[4:]]
    assert session.truncate_history(messages, room - 1).messages == [messages[0], *turns[6:]]
    assert session.truncate_history(messages, 10**6).messages == messages
    with pytest.raises(UserError, match=r"the conversation has \d+ tokens, but only 3 fit"):
        session.truncate_history(messages, 3)
    assert isinstance(run.chat([*messages, Message("assistant", "x"), Message("user", "y")], seed=1), str)
    request = session.prepare_request(messages)
    assert len(request.prompt) + request.state.max_new_tokens <= run.config.max_len + 1
    answer = {"role": "assistant", "content": "x"}
    m = parse_conversation([*HELLO[:1], *HELLO, answer, *HELLO, {"role": "assistant"}, *HELLO])
    for n_dropped, expected in ((0, m), (1, [*m[:2], *m[4:]]), (2, [*m[:2], *m[7:]])):
        ids = session.encode_prompt(expected)
        assert session.truncate_history(m, len(ids)) == (expected, ids), n_dropped


def test_second_question_reads_only_new_tokens(run, monkeypatch):
    session, counts = run.chat_session(cache=Choice("paged", block_size=4)), []
    decode_features = run.model.decode_features

    def counting(tokens, *rest):
        counts.append(tokens.numel())
        return decode_features(tokens, *rest)

    options = {"temperature": 0, "max_new_tokens": 4}
    with monkeypatch.context() as patch:
        patch.setattr(run.model, "decode_features", counting)
        first, n_first = "".join(session.answer(parse_conversation(HELLO), **options)), sum(counts)
        counts.clear()
        messages = [*parse_conversation(HELLO), Message("assistant", first), Message("user", "you")]
        n_new = len(session.encode_prompt(messages)) - len(session.encode_prompt(parse_conversation(HELLO)))
        second = "".join(session.answer(messages, **options))
    assert sum(counts) <= n_new + 8 < n_first + n_new
    assert second == run.chat(messages, **options) and isinstance(session, ChatSession)


def test_top_logprobs_of_each_request(run):
    """Requests that are decoded together; the first alternative is the greedy token itself."""
    engine, options = run.engine(), {"temperature": 0, "max_new_tokens": 5}
    requests = [
        (engine.submit(text, top_logprobs=top, **options), top)
        for text, top in (("hello", 0), ("kind", 3), ("you", 2))
    ]
    for stream, top in requests:
        stream.collect_texts()
        assert {len(alternatives) for alternatives in stream.top_logprobs[0]} == {top}
        assert len(stream.top_logprobs[0]) == len(stream.tokens[0])
        if top:
            assert [one[0][0] for one in stream.top_logprobs[0]] == stream.tokens[0]
            assert [one[0][1] for one in stream.top_logprobs[0]] == pytest.approx(stream.log_probs[0])
    assert requests[1][0].tokens != requests[2][0].tokens != requests[0][0].tokens
    with pytest.raises(UserError, match="only for sampled text of a language model"):
        engine.submit("hello", top_logprobs=2, beam_size=2)
