"""Generated text ends with a whole character, however its tokens cut the bytes of it."""

from __future__ import annotations

from typing import Any

from polyhead import Choice, ModelConfig, build
from polyhead.config.generation_config import GenerationConfig
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer

PROMPTS = ["你好", "a dog", "🙂"]
MARK = "\ufffd"


def untrained(kind: str, seed: int = 3) -> Run:
    """A run of random weights that says bytes, most of which are no character."""
    tokenizer = train_tokenizer(["a"], Choice("byte"), 261)
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 32, "max_len": 64}
    model = build(ModelConfig(kind=kind, vocab_size=tokenizer.vocab_size, **sizes), seed=seed)
    generation = GenerationConfig(max_new_tokens=7, max_length_ratio=0, max_length_extra=7)
    return Run(model, tokenizer, generation)


def is_cut(run: Run, rows: list[list[int]]) -> bool:
    """Whether the plain text of some row ends inside a character."""
    return any(text.endswith(MARK) for text in run.tokenizer.decode(rows))


def test_drawn_text_ends_with_a_whole_character_in_every_way_it_is_asked_for() -> None:
    run = untrained("decoder")
    asked: dict[str, Any] = {"n": 8, "seed": 5, "temperature": 1.0}
    texts = [text for found in run.generate(PROMPTS, **asked) for text in found]
    streamed = [""] * len(texts)
    for piece in run.stream(PROMPTS, **asked):
        streamed[piece.row] += piece.text
    engine = run.engine()
    requests = [engine.submit(prompt, **asked | {"seed": 5 + i}) for i, prompt in enumerate(PROMPTS)]
    served = [text for request in requests for text in request.collect_texts()]
    rows = [row for request in requests for row in request.tokens]
    assert texts == streamed
    assert served[:8] == texts[:8]
    for said in (texts, served):
        assert not any(text.endswith(MARK) for text in said)
    assert is_cut(run, rows), "some must have been cut, or nothing is tested"
    assert all(len(row) == 7 or row[-1] == run.tokenizer.eos_id for row in rows), "no token is taken back"


def test_what_beams_find_ends_with_a_whole_character() -> None:
    run = untrained("decoder")
    found = run.hypotheses(PROMPTS, beam_size=4, n_best=4)
    texts = [text for own in run.generate(PROMPTS, n=4, beam_size=4) for text in own]
    plain = [run.tokenizer.decode([one.tokens])[0] for own in found for one in own]
    assert texts == [text.rstrip(MARK) for text in plain]
    assert any(text.endswith(MARK) for text in plain)
    assert run.engine().submit(PROMPTS[1], n=4, beam_size=4).collect_texts() == texts[4:8]


def test_answers_of_a_conversation_end_with_a_whole_character() -> None:
    run = untrained("decoder")
    for seed in range(12):
        asked: dict[str, Any] = {"chat": "plain", "seed": seed, "temperature": 1.0}
        messages = [{"role": "user", "content": "你好"}]
        answer = run.chat(messages, **asked)
        assert answer == "".join(run.stream_chat(messages, **asked))
        assert not answer.endswith(MARK)
