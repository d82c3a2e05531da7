import copy
import itertools
import re
import unicodedata
from threading import Event, Thread

import pytest
import torch
from tests.generation.helpers import perturb

from polyhead import Choice, ModelConfig, build
from polyhead.cache.contiguous import StaticCache
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE
from polyhead.generation.decoding.beam_search import beam_search
from polyhead.introspect.compute_attention import (
    axis_labels,
    compute_pair_attention,
    compute_self_attention,
    record_attention,
)
from polyhead.run.run import Run
from polyhead.tokenizers.display import tokens_to_text, visible_token
from polyhead.tokenizers.token_bytes import escape_bytes
from polyhead.tokenizers.train_tokenizer import train_tokenizer

V, BOS, EOS = 17, 1, 2
NAMES = {"cross": "decoder.layers.{}.cross"}
NAMES |= {kind: f"{kind}.layers.{{}}.attn" for kind in ("encoder", "decoder")}


def build_model(kind="encoder-decoder", vocab_size=V, **parts):
    sizes = {"d_model": 16, "n_heads": 4, "n_layers": 2, "d_ff": 24, "dropout": 0.0} | parts
    return build(ModelConfig(kind=kind, vocab_size=vocab_size, **sizes), seed=0).eval()


@pytest.fixture(params=[{}, {"position": "rope", "n_kv_heads": 1, "norm_first": True}], ids=str)
def model(request):
    return perturb(build_model(**request.param), 0.2)


@pytest.fixture
def source():
    torch.manual_seed(1)
    return torch.randint(5, V, (2, 6))


def teacher_forced_maps(model, source, target, training=False):
    model = copy.deepcopy(model).train(training)
    with record_attention(model) as maps:
        model(source, target)
    assert all(len(passes) == 1 for passes in maps.values())
    return {name: passes[0] for name, passes in maps.items()}


def test_recording_has_all_weights_and_changes_no_output(model, source):
    maps = teacher_forced_maps(model, source, torch.randint(5, V, (2, 4)), training=True)
    assert set(maps) == {name.format(i) for name in NAMES.values() for i in range(2)}
    for name, weights in maps.items():
        T, S = (6, 6) if name.startswith("encoder") else (4, 4) if name.endswith("attn") else (4, 6)
        assert weights.shape == (2, 4, T, S) and not weights.requires_grad
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, T))
        if name.startswith("decoder") and name.endswith("attn"):
            assert (weights.triu(1) == 0).all()
        else:
            assert (weights > 0).all()
    target = torch.randint(5, V, (2, 4))
    evaluation, training = (teacher_forced_maps(model, source, target, flag) for flag in (False, True))
    for name in evaluation:
        torch.testing.assert_close(evaluation[name], training[name], rtol=0, atol=1e-6)
    expected = model(source, target)
    with record_attention(model):
        torch.testing.assert_close(model(source, target), expected, rtol=0, atol=1e-5)
    with pytest.raises(RuntimeError, match="inside"), record_attention(model):
        raise RuntimeError("inside")
    assert not any(getattr(module, "weights_hooks", ()) for module in model.modules())


def test_threads_record_attention_independently(model, source):
    target = torch.randint(5, V, (2, 4))
    other_target, has_entered, has_left, other_maps = target.flip(0), Event(), Event(), []

    def record_other():
        with record_attention(model) as maps:
            has_entered.set()
            has_left.wait(100)
            model(source, other_target)
            other_maps.append(maps)

    thread = Thread(target=record_other)
    with record_attention(model) as maps:
        thread.start()
        has_entered.wait(100)
        model(source, target)
    has_left.set()
    thread.join()
    for actual, inputs in ((maps, target), (other_maps[0], other_target)):
        for name, weights in teacher_forced_maps(model, source, inputs).items():
            torch.testing.assert_close(actual[name], [weights], rtol=0, atol=1e-6)
    assert not any(getattr(module, "weights_hooks", ()) for module in model.modules())


@torch.no_grad()
def test_stepwise_maps_equal_teacher_forced_maps(model, source):
    target = torch.randint(5, V, (2, 5))
    expected = teacher_forced_maps(model, source, target)
    with record_attention(model) as maps:
        memory = model.encode(source)
        cache = CACHE.build(Choice("static"), model.cache_shape, 2, 5)
        for t in range(5):
            pos = torch.full((2, 1), t)
            cache.prepare_step(range(2), pos)
            model.decode(target[:, t : t + 1], pos, cache, memory)
    assert_steps_close(maps, expected, range(5))


def assert_steps_close(maps, expected, steps):
    """The weights of each step are row t of the full maps; unused slots have no weight."""
    for name, weights in expected.items():
        if name.startswith("encoder"):
            torch.testing.assert_close(maps[name][0], weights[: len(maps[name][0])], rtol=0, atol=1e-6)
            continue
        assert len(maps[name]) == len(steps)
        for step, t in zip(maps[name], steps, strict=True):
            width = t + 1 if name.endswith(".attn") else weights.size(-1)
            torch.testing.assert_close(step[:, :, 0, :width], weights[:, :, t, :width], rtol=0, atol=2e-6)
            assert (step[..., width:] == 0).all()


def test_beam_search_records_maps_of_each_hypothesis(model, source, monkeypatch):
    prefixes, decode, select, selections = [], model.decode_features, StaticCache.select, []

    def decode_recording(tokens, pos, cache, memory):
        rows = selections.pop() if selections else range(len(tokens))
        previous = [prefixes[-1][row] if prefixes else [] for row in rows]
        prefixes.append([[*prefix, int(t)] for prefix, t in zip(previous, tokens[:, 0], strict=True)])
        return decode(tokens, pos, cache, memory)

    def select_recording(cache, rows):
        selections.append([int(row) for row in rows])
        select(cache, rows)

    monkeypatch.setattr(model, "decode_features", decode_recording)
    monkeypatch.setattr(StaticCache, "select", select_recording)
    options = {"bos_id": BOS, "eos_id": EOS, "beam_size": 3, "max_new_tokens": [6], "min_new_tokens": 5}
    with record_attention(model) as maps:
        beam_search(model, source[:1], None, **options)
    assert [len(step) for step in prefixes] == [1, 3, 3, 3, 3, 3]
    pairs = (zip(a, b, strict=False) for a, b in itertools.pairwise(prefixes))
    assert any(old != new[:-1] for step in pairs for old, new in step), "no beam has moved"
    for t, rows in enumerate(prefixes):
        expected = teacher_forced_maps(model, source[:1].expand(len(rows), -1), torch.tensor(rows))
        step = {name: x if name.startswith("encoder") else x[t : t + 1] for name, x in maps.items()}
        assert_steps_close(step, expected, [t])


class BlindAttention(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.hidden, self.project_kv = [inner], inner.project_kv

    def forward(self, x, pos=None, cache=None, memory=None):
        return self.hidden[0](x, pos, cache, memory)


def test_pair_attention_equals_teacher_forced_maps(model, source):
    target = torch.randint(5, V, (1, 4))
    expected = teacher_forced_maps(model, source[:1], target)
    result = compute_pair_attention(model, source[:1], target)
    assert list(result) == list(NAMES)
    for kind, attention_map in result.items():
        assert torch.equal(
            attention_map.weights, torch.cat([expected[NAMES[kind].format(i)] for i in (0, 1)])
        )
    for layer in model.decoder.layers:
        layer.cross = BlindAttention(layer.cross)
    assert list(compute_pair_attention(model, source[:1], target)) == ["encoder", "decoder"]


@pytest.mark.parametrize("kind", ["decoder", "encoder"])
def test_self_attention_of_decoders_and_encoders(kind, source):
    model = build_model(kind)
    with record_attention(model) as maps:
        model(source[:1])
    result = compute_self_attention(model, source[:1])
    assert result.layer_numbers == [1, 2] and result.weights.shape == (2, 4, 6, 6)
    assert torch.equal(result.weights, torch.stack([weights[0] for (weights,) in maps.values()]))
    assert bool((result.weights.triu(1) == 0).all()) == (kind == "decoder")
    assert compute_self_attention(torch.nn.Embedding(V, 4), source[:1]) is None


TEXTS = ["中文分词很难。", "我们喜欢 emoji 😀😁", "中国人民", "naïve café"] * 3
SENTENCE = "中文 我爱😀🚀é"


@pytest.fixture(scope="module")
def byte_level():
    return train_tokenizer(TEXTS, Choice("bpe"), 275)


@pytest.fixture(params=["byte-level", "byte fallback"])
def tokenizer(request, byte_level):
    if request.param == "byte-level":
        return byte_level
    texts = ["the dog runs, tired", "a man sits; the dogs run"] * 20
    return train_tokenizer(texts, Choice("unigram", byte_fallback=True), 400)


def is_mojibake(text):
    """Whether a text of Chinese, emoji and é has what bytes look like when read as characters."""
    return "\ufffd" in text or any("\x80" <= c <= "\u024f" and c not in "éï\xa0" for c in text)


def test_partial_characters_are_escaped(byte_level):
    for utf8, text in (
        ("中".encode(), "中"),
        ("中".encode()[:2], "⟨E4 B8⟩"),
        (b"a\xb8\xad b", "a⟨B8 AD⟩ b"),
        ("😀".encode()[1:] + "é".encode(), "⟨9F 98 80⟩é"),
        (b"", ""),
    ):
        assert escape_bytes(utf8).replace("\xa0", " ") == text
    ids = byte_level.encode(["中文"])[0]
    assert tokens_to_text(byte_level, ids) == "中文"
    assert tokens_to_text(byte_level, ids[:-1]).replace("\xa0", " ") == "中⟨E6 96⟩"


def test_axis_labels_and_visible_tokens_have_all_bytes(tokenizer):
    labels = axis_labels(tokenizer, tokenizer.encode([SENTENCE])[0])
    assert any("⟨" in label for label in labels)
    assert not any(map(is_mojibake, labels)), labels
    parts = re.split("(⟨[^⟩]*⟩)", "".join(labels).replace("\xa0", " "))
    data = b"".join(bytes.fromhex(p[1:-1]) if p.startswith("⟨") else p.encode() for p in parts)
    assert " ".join(data.decode().replace("▁", " ").split()) == SENTENCE
    for text in (visible_token(tokenizer, token) for token in range(tokenizer.vocab_size)):
        assert text and "\ufffd" not in text and " " not in text


@pytest.fixture(scope="module")
def run_dir(byte_level, tmp_path_factory):
    model = build_model("decoder", byte_level.vocab_size, n_heads=2, n_layers=1, max_len=48)
    directory = tmp_path_factory.mktemp("bytes") / "run"
    Run(model, byte_level, GenerationConfig()).save(directory)
    return directory


@pytest.mark.parametrize("arguments", [["attention", SENTENCE], ["visualize", "--tokens", "270"]])
def test_pages_have_no_mojibake(arguments, run_dir, tmp_path, capsys):
    page, (verb, *options) = tmp_path / "page.html", arguments
    assert main([verb, str(run_dir), *options, "--out", str(page)]) == 0
    html = page.read_text()
    assert "⟨F0\xa09F\xa098⟩" in html and "\ufffd" not in html + capsys.readouterr().out
    assert not [c for c in html if unicodedata.name(c, "").startswith("LATIN") and ord(c) > 0xFF]


def make_run(kind):
    texts = ["a dog runs", "the cat sat", "a red house", "dogs and cats"]
    tokenizer = train_tokenizer(texts * 5, Choice("bpe"), 300)
    model = build_model(kind, tokenizer.vocab_size, n_heads=2, max_len=48)
    return Run(perturb(model, 0.3, 1), tokenizer, GenerationConfig())


@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder"])
def test_beam_attention_equals_recorded_weights(kind):
    run, text = make_run(kind), "a red dog"
    lengths = {"max_new_tokens": 6} if kind == "decoder" else {"max_length_extra": 6, "max_length_ratio": 0}
    options = {"beam_size": 4, "n_best": 3, **lengths}
    with record_attention(run.model) as maps:
        (hypotheses,) = run.hypotheses([text], **options)
    result = run.beam_attention(text, **options)
    assert [one.hypothesis.tokens for one in result] == [one.tokens for one in hypotheses]
    assert len({str(one.tokens) for one in hypotheses}) == 3
    (ids,) = run.tokenizer.encode([text])
    layer_name = "layers.{}.attn" if kind == "decoder" else "decoder.layers.{}.cross"
    for one in result:
        n, labels = len(one.hypothesis.tokens), axis_labels(run.tokenizer, one.hypothesis.tokens)
        assert list(one.maps) == (["self"] if kind == "decoder" else ["cross", "encoder", "decoder"])
        attention_map = next(iter(one.maps.values()))
        start = len(attention_map.target_tokens) - n - (kind != "decoder")  # a row for the end
        assert list(attention_map.target_tokens)[start : start + n] == labels
        if kind == "encoder-decoder":
            assert attention_map.weights.shape[2:] == (n + 1, len(ids) + 1)
        for layer in range(2):
            passes = next(x for name, x in maps.items() if name.endswith(layer_name.format(layer)))
            rows = [beam[:, q] for step in passes for beam in step for q in range(step.size(2))]
            for t in range(start, start + n - 1):
                row = attention_map.weights[layer, :, t]
                width = t + 1 if kind == "decoder" else row.size(-1)
                candidates = [x for x in rows if x.size(-1) >= width and (x[:, width:] == 0).all()]
                errors = [(x[:, :width] - row[:, :width]).abs().max() for x in candidates]
                assert min(errors) < 1e-5, (layer, t)


def test_beam_attention_of_encoders_is_refused():
    with pytest.raises(UserError, match="encoder"):
        make_run("encoder").beam_attention("a dog")
    with pytest.raises(UserError, match="target_lang: unknown key"):
        make_run("decoder").beam_attention("a dog", target_lang="de")
