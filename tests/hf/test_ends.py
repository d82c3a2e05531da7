import json

import pytest
import torch
from tests.hf.conftest import TEXTS, edit_json, export_run, make
from tests.hf.families.causal_cases import LLAMA
from tests.hf.families.laws import WITH_SCORES, round_trip
from tests.hf.families.seq2seq import SOURCES, make_seq2seq
from tests.hf.families.seq2seq_cases import CASES
from transformers import AutoModelForCausalLM, AutoTokenizer

import polyhead as ph
from polyhead import Choice
from polyhead.cli import main
from polyhead.tokenizers.tokenizer import Tokenizer

EOS, MAX_NEW_TOKENS = 2, 12


@torch.no_grad()
def greedy_tokens(model, ids):
    tokens = list(ids)
    for _ in range(MAX_NEW_TOKENS):
        tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(ids) :]


@pytest.fixture
def checkpoint(tmp_path):
    directory = tmp_path / "llama"
    model, tokenizer = make(directory, "LlamaConfig", **LLAMA), Tokenizer.load(directory)
    outputs = [greedy_tokens(model, ids) for ids in tokenizer.encode(TEXTS)]
    candidates = dict.fromkeys(token for row in outputs for token in row[1:6])
    extra = [token for token in candidates if token not in {EOS, *(row[0] for row in outputs)}][:5]
    assert len(extra) == 5
    edit_json(directory / "generation_config.json", eos_token_id=[EOS, *extra])
    return directory


def read_ends(directory):
    return json.loads((directory / "generation_config.json").read_text())["eos_token_id"]


def before_end(tokens, ends):
    return tokens[: next((i for i, token in enumerate(tokens) if token in ends), len(tokens))]


def decode_complete(tokenizer, tokens):
    return tokenizer.decode([tokens])[0].rstrip("\ufffd")


@pytest.mark.parametrize("speculative", [None, Choice("lookup"), "draft"])
def test_greedy_text_stops_at_any_end(checkpoint, speculative, tmp_path):
    reference, tokenizer = AutoModelForCausalLM.from_pretrained(checkpoint), Tokenizer.load(checkpoint)
    run_dir, ends = tmp_path / "run", read_ends(checkpoint)
    assert main(["import", str(checkpoint), str(run_dir)]) == 0
    choice = Choice("draft", run=str(run_dir)) if speculative == "draft" else speculative
    texts, reasons = [], []
    for text in TEXTS:
        ids = torch.tensor(tokenizer.encode([text]))
        output = reference.generate(ids, max_new_tokens=MAX_NEW_TOKENS, pad_token_id=0)
        tokens = output[0, ids.shape[1] :].tolist()
        texts.append(decode_complete(tokenizer, before_end(tokens, ends)))
        reasons.append("stop" if tokens[-1] in ends else "length")
    assert "stop" in reasons
    for run in (ph.load(checkpoint), ph.load(run_dir)):
        assert run.generate(TEXTS, max_new_tokens=MAX_NEW_TOKENS, speculative=choice) == texts
        if choice is None:
            engine = run.engine()
            streams = [engine.submit(text, max_new_tokens=MAX_NEW_TOKENS) for text in TEXTS]
            assert [stream.collect_texts() for stream in streams] == [[text] for text in texts]
            assert [stream.finish_reasons for stream in streams] == [[reason] for reason in reasons]


@pytest.mark.parametrize("min_new_tokens", [0, 6])
@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("beams", [1, 2, 4])
def test_beams_stop_at_any_end(checkpoint, beams, early_stopping, min_new_tokens):
    reference, tokenizer = AutoModelForCausalLM.from_pretrained(checkpoint), Tokenizer.load(checkpoint)
    run, ends = ph.load(checkpoint), read_ends(checkpoint)
    lengths = {"min_new_tokens": min_new_tokens, "max_new_tokens": MAX_NEW_TOKENS}
    search = {"length_penalty": 0.6, "early_stopping": early_stopping}
    options = {"beam_size": beams, **lengths, **search}
    hypotheses = run.hypotheses(TEXTS, n_best=beams, **options)
    texts, n_stopped = run.generate(TEXTS, n=beams, **options), 0
    for prompt, best, outputs in zip(TEXTS, hypotheses, texts, strict=True):
        ids = torch.tensor(tokenizer.encode([prompt]))
        beam_options = {"num_beams": beams, "num_return_sequences": beams, "pad_token_id": 0} | WITH_SCORES
        output = reference.generate(ids, **beam_options, **lengths, **(search if beams > 1 else {}))
        expected = [before_end(row[ids.shape[1] :].tolist(), ends) for row in output.sequences]
        assert [h.tokens for h in best] == expected
        assert outputs == [decode_complete(tokenizer, row) for row in expected]
        assert min(map(len, expected)) >= min_new_tokens
        n_stopped += sum(len(row) < MAX_NEW_TOKENS for row in expected)
        if beams > 1:
            scores = torch.tensor([h.score for h in best])
            torch.testing.assert_close(scores, output.sequences_scores, rtol=1e-4, atol=1e-4)
        assert run.engine().submit(prompt, n=beams, **options).collect_texts() == outputs
    assert n_stopped > 1


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize(
    ("name", "row", "seed"),
    [("m2m_100", 0, 0), ("t5", 1, 0), pytest.param("t5", 1, 2, marks=pytest.mark.slow)],
)
def test_translations_stop_at_any_end(name, row, seed, beams, tmp_path):
    case, checkpoint = CASES[name][row], tmp_path / "checkpoint"
    reference, start = make_seq2seq(checkpoint, case, seed), 1 + ("forced_bos_token_id" in case.sizes)
    outputs = [h[0].tokens for h in ph.load(checkpoint).hypotheses(SOURCES, beam_size=beams)]
    ends = [EOS, next((row[-1] for row in outputs if len({*row}) > 1), outputs[0][0])]
    edit_json(checkpoint / "generation_config.json", eos_token_id=ends)
    reference.generation_config.eos_token_id = ends
    tokenizer, run = AutoTokenizer.from_pretrained(checkpoint), ph.load(checkpoint)
    expected = []
    for text in SOURCES:
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        output = reference.generate(ids, num_beams=beams, use_cache=False)
        expected.append(before_end(output[0, start:].tolist(), ends))
    assert [h[0].tokens for h in run.hypotheses(SOURCES, beam_size=beams)] == expected != outputs
    engine = run.engine()
    streams = [engine.submit(text, beam_size=beams) for text in SOURCES]
    translations = run.translate(SOURCES, beam_size=beams)
    assert [stream.collect_texts() for stream in streams] == [[text] for text in translations]
    # sampling stops there too; among one token there is no choice
    sampled_hypotheses, greedy = (
        run.hypotheses(SOURCES, **options) for options in ({"temperature": 1.0, "top_k": 1}, {"beam_size": 1})
    )
    assert [h[0].tokens for h in sampled_hypotheses] == [h[0].tokens for h in greedy]
    assert main(["export", str(checkpoint), str(tmp_path / "exported")]) == 0
    assert read_ends(tmp_path / "exported") == ends


def test_ends_are_read_from_either_file(checkpoint, tmp_path, caplog):
    ends, run = read_ends(checkpoint), ph.load(checkpoint)
    assert run.tokenizer.eos_id == EOS
    assert list(run.generation.stop_tokens) == run.tokenizer.ids_to_tokens(ends[1:])
    assert not caplog.messages
    run_dir, exported_dir = round_trip(checkpoint)
    assert read_ends(exported_dir) == ends
    for directory in (run_dir, exported_dir):
        assert ph.load(directory).generation == run.generation
    # those of a chat and of texts are written once
    chat_run = ph.load(checkpoint)
    chat_run.generation = run.generation.model_copy(update={"chat": Choice("zephyr")})
    assert read_ends(export_run(chat_run, tmp_path / "chat")) == ends
    (checkpoint / "generation_config.json").unlink()
    assert ph.load(checkpoint).generation.stop_tokens == ()
    edit_json(checkpoint / "config.json", eos_token_id=ends)
    assert ph.load(checkpoint).generation.stop_tokens == run.generation.stop_tokens
    # a list without the end of the tokenizer: its first token is the end
    edit_json(checkpoint / "config.json", eos_token_id=ends[1:3])
    other = ph.load(checkpoint)
    assert other.tokenizer.eos_id == ends[1]
    assert other.generation.stop_tokens == run.generation.stop_tokens[1:2]
