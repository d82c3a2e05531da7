"""Answers are the continuations of the written conversation, up to the end of the turn; long conversations
lose their beginning.
"""

from __future__ import annotations

import pytest
import torch

from polyhead import Choice, ModelConfig, build
from polyhead.chat.apply_template import encode_chat, encode_end_tokens
from polyhead.chat.base import Message, ToolCall
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError
from polyhead.core.registry import CHAT
from polyhead.generation.chat import ChatSession, parse_conversation
from polyhead.generation.detokenizer import Detokenizer
from polyhead.run.run import Run
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer

HELLO = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello 犬"}]


@pytest.fixture(scope="module")
def run() -> Run:
    tokens = train_tokenizer(["hello you", "be kind 犬", "User: Assistant: System:"] * 5, Choice("bpe"), 300)
    tokens._inner.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokens = Tokenizer(tokens._inner)
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 32, "max_len": 96}
    model = build(ModelConfig(kind="decoder", vocab_size=tokens.vocab_size, **sizes), seed=1)
    torch.manual_seed(3)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return Run(model, tokens, GenerationConfig(chat=Choice("chatml"), max_new_tokens=12))


def greedy(run, ids, last, most):
    """The naive loop: the likeliest token, again and again."""
    new = []
    while len(new) < most:
        with torch.inference_mode():
            token = int(run.model(torch.tensor([ids + new]))[0, -1].argmax())
        if token in last:
            break
        new.append(token)
    return new


@pytest.mark.parametrize("name", ["chatml", "plain", "llama2"])
def test_an_answer_goes_on_from_the_written_conversation(run, name):
    part = CHAT.build(Choice(name))
    prompt = encode_chat(part, run.tokenizer, parse_conversation(HELLO), add_generation_prompt=True).ids
    new = greedy(run, prompt, encode_end_tokens(part, run.tokenizer), 12)
    wanted = run.tokenizer.decode([prompt + new])[0][len(run.tokenizer.decode([prompt])[0]) :].rstrip(
        "\ufffd"
    )
    said = run.chat(HELLO, chat=name, temperature=0)
    assert said == (wanted.strip() if part.trim_content else wanted)
    assert "".join(run.stream_chat(HELLO, chat=name, temperature=0)) == said
    assert run.chat(HELLO, chat=name, seed=4) == run.chat(HELLO, chat=name, seed=4) != said


def test_any_end_of_the_turn_ends_it(run):
    """Whatever token the model is made to say first, an answer is empty where it is one of the ends, and
    only there.
    """
    free, close, eos = (run.tokenizer.token_to_id(name) for name in ("<s>", "<|im_end|>", "</s>"))
    head = run.model.head
    for token, ended in ((close, True), (eos, True), (free, False)):
        asked = run.chat_session().prepare_request(parse_conversation(HELLO), temperature=0)
        logits = torch.full((1, run.config.vocab_size), 0.0)
        logits[0, token] = 9.0
        asked.state.strategy.advance([asked.state], logits)
        assert (not asked.state.rows) is ended, run.tokenizer.ids_to_tokens([token])
    assert head is run.model.head


def test_a_conversation_that_is_too_long_loses_its_oldest_questions(run):
    talker = run.chat_session()
    turns = [Message("user", f"hello {i}") if i % 2 == 0 else Message("assistant", "you") for i in range(9)]
    talk = [Message("system", "be kind"), *turns]
    room = len(talker.encode_prompt([talk[0], *turns[4:]]))
    assert talker.truncate_history(talk, room).messages == [talk[0], *turns[4:]]
    assert talker.truncate_history(talk, room - 1).messages == [talk[0], *turns[6:]]
    assert talker.truncate_history(talk, 10**6).messages == talk
    with pytest.raises(UserError, match=r"the conversation has \d+ tokens, but only 3 fit"):
        talker.truncate_history(talk, 3)
    assert isinstance(run.chat(talk * 1 + [Message("assistant", "x"), Message("user", "y")], seed=1), str)
    asked = talker.prepare_request(talk)
    assert len(asked.prompt) + asked.state.max_new_tokens <= run.config.max_len + 1


@pytest.mark.acceptance("E12")
@pytest.mark.parametrize("kept", [0, 1, 2, 150, 298, 299])
def test_the_room_for_a_long_conversation_is_found_without_writing_it_anew_for_each_question(
    run, kept, monkeypatch
):
    talker = run.chat_session()
    turns = [one for i in range(300) for one in (Message("user", f"hello {i}"), Message("assistant", "you"))]
    talk = [Message("system", "be kind"), *turns[:-1]]
    wanted = [talk[0], *talk[1 + 2 * kept :]]
    room, plain, written = len(talker.encode_prompt(wanted)), talker.encode_prompt, []
    monkeypatch.setattr(
        talker, "encode_prompt", lambda talk, *tools: written.append(len(talk)) or plain(talk, *tools)
    )
    assert talker.truncate_history(talk, room).messages == wanted
    assert sum(written) <= len(talk) * 11  # the logarithm of the questions, and the first look
    with pytest.raises(UserError, match="shorten the message"):
        talker.truncate_history(talk, len(plain([talk[0], talk[-1]])) - 1)


def test_a_run_that_says_no_format_is_refused_in_one_line(run):
    bare = Run(run.model, run.tokenizer, GenerationConfig())
    with pytest.raises(UserError, match=r"set it with --chat or chat=: chatml, gemma") as refused:
        bare.chat(HELLO)
    assert "\n" not in str(refused.value)
    with pytest.raises(UserError, match="did you mean 'chatml'"):
        bare.chat(HELLO, chat="chatlm")
    with pytest.raises(UserError, match="needs the token"):
        bare.chat(HELLO, chat="llama3")
    with pytest.raises(UserError, match="chat has no effect on sampled text"):
        bare.generate(["x"], chat="plain")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("hello", "a conversation is a list of messages"),
        ({"role": "user", "content": "x"}, "a conversation is a list of messages"),
        (None, "a conversation is a list of messages"),
        (Message("user", "x"), "a conversation is a list of messages"),
        ([1], "message 0 is 1, expected a role and a content"),
        ([("user", "x")], r"message 0 is \('user', 'x'\), expected a role and a content"),
        ([Message("user", None)], "message 0 has no text as its content: null"),
        (
            [Message("assistant", "", ToolCall("now"))],
            "call 0 of message 0 is 'now', expected an id and a function",
        ),
        ([Message("assistant", "", (ToolCall("now", "x"),))], "call 0 of message 0 has the arguments 'x'"),
        ([{"role": "user"}], "message 0 has no text as its content"),
        ([{"role": 1, "content": ""}], "message 0 has no text as its role"),
        ([{"role": "user", "content": "", "contents": ""}], "did you mean 'content'"),
    ],
)
def test_what_is_no_conversation_is_refused(run, given, said):
    for ask in (run.chat, run.chat_session().answer, run.chat_session().reply):
        with pytest.raises(UserError, match=said):
            ask(given)


def test_messages_are_mappings_or_made_of_them(run):
    calls = [{"id": "1", "function": {"name": "now", "arguments": '{"x":1}'}}]
    result = {"role": "tool", "content": "3", "tool_call_id": None}
    wanted = parse_conversation([{"role": "assistant", "content": None, "tool_calls": calls}, result])
    assert wanted == [Message("assistant", "", (ToolCall("now", '{"x": 1}', "1"),)), Message("tool", "3")]
    assert parse_conversation(wanted) == wanted
    assert parse_conversation([Message("assistant", "", (ToolCall("now", {"x": 1}, "1"),))]) == wanted[:1]
    assert parse_conversation([Message("assistant", None, calls)]) == wanted[:1]
    talker = run.chat_session()
    assert (
        "".join(talker.answer(HELLO, seed=4))
        == run.chat(HELLO, seed=4)
        == talker.reply(HELLO, seed=4).content
    )


def test_system_messages_are_kept_with_what_follows_them(run):
    """Those at the start always, a later one as long as the question after it."""
    talk = parse_conversation(
        [*HELLO[:1], *HELLO, {"role": "assistant", "content": "x"}, *HELLO, {"role": "assistant"}, *HELLO]
    )
    session = run.chat_session()
    for start, kept in ((0, talk), (1, [*talk[:2], *talk[4:]]), (2, [*talk[:2], *talk[7:]])):
        ids = session.encode_prompt(kept)
        assert session.truncate_history(talk, len(ids)) == (kept, ids), start


def test_a_chat_has_one_answer(run):
    for ask in (run.chat, run.chat_session().reply):
        assert ask(HELLO, n=1, seed=4)
        with pytest.raises(UserError, match="n is 2, but a chat has one answer"):
            ask(HELLO, n=2, seed=4)


@pytest.mark.acceptance("C7", "C8")
def test_blanks_about_an_answer_are_taken_away_piece_by_piece():
    pieces = [" ", "\n", " he", "l", "l ", " ", "o\n", "  ", "y", " ", "u", " \n", ""]
    for stop, wanted in (((), "hell  o\n  y u"), (("o\n ",), "hell"), (("y",), "hell  o")):
        stream = Detokenizer(lambda ids: "".join(pieces[i] for i in ids), stop, trim=True)
        said = ""
        for i in range(len(pieces)):
            new = stream.feed(i, i == len(pieces) - 1)
            said += new
            assert wanted.startswith(said) and not (
                said and said != wanted and said[-1].isspace() and not new.strip()
            )
        assert said == wanted


def test_what_was_read_is_not_read_again(run):
    """The second question of a conversation costs what is new in it."""
    talker = run.chat_session(cache=Choice("paged", block_size=4))
    counted = []
    read = run.model.decode_features
    run.model.decode_features = lambda tokens, *rest: counted.append(tokens.numel()) or read(tokens, *rest)
    try:
        first = "".join(talker.answer(parse_conversation(HELLO), temperature=0, max_new_tokens=4))
        once = sum(counted)
        counted.clear()
        talk = [*parse_conversation(HELLO), Message("assistant", first), Message("user", "you")]
        new = len(talker.encode_prompt(talk)) - len(talker.encode_prompt(parse_conversation(HELLO)))
        again = "".join(talker.answer(talk, temperature=0, max_new_tokens=4))
    finally:
        del run.model.decode_features
    assert sum(counted) <= new + 8 < once + new
    assert again == run.chat(talk, temperature=0, max_new_tokens=4)
    assert isinstance(talker, ChatSession)


def test_each_request_is_told_the_likeliest_in_its_own_places(run):
    """Of two that are decoded together one asks for them; what it says is the first of them, as the
    likeliest is taken.
    """
    engine = run.engine()
    wishes = {"temperature": 0, "max_new_tokens": 5}
    silent, asking, other = (
        engine.submit(text, top_logprobs=top, **wishes)
        for text, top in (("hello", 0), ("kind", 3), ("you", 2))
    )
    for stream in (silent, asking, other):
        stream.collect_texts()
    assert silent.top_logprobs[0] == [()] * len(silent.tokens[0])
    for stream, top in ((asking, 3), (other, 2)):
        assert [one[0][0] for one in stream.top_logprobs[0]] == stream.tokens[0]
        assert [one[0][1] for one in stream.top_logprobs[0]] == pytest.approx(stream.log_probs[0])
        assert {len(one) for one in stream.top_logprobs[0]} == {top}
    assert asking.tokens != other.tokens != silent.tokens
    with pytest.raises(UserError, match="only for sampled text of a language model"):
        engine.submit("hello", top_logprobs=2, beam_size=2)
