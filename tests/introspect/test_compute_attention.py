"""The same weights are seen from training, stepwise decoding and search."""

import copy
import itertools
import re
import unicodedata
from threading import Event, Thread

import pytest
import torch
from tests.tokenizers.test_word_boundaries import foreign

import polyhead
from polyhead import Choice, ModelConfig, build
from polyhead.cache.static import StaticCache
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.errors import UserError
from polyhead.core.registry import CACHE
from polyhead.generation.decoding.beam_search import beam_search
from polyhead.introspect.attention_map import attention_text
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
from polyhead.viz.attention_page import heat_map_svg

V, BOS, EOS = 17, 1, 2
NAMES = {"encoder.layers.{}.attn", "decoder.layers.{}.attn", "decoder.layers.{}.cross"}


@pytest.fixture(
    params=[{}, {"position": "rope", "n_kv_heads": 1, "norm_first": True}], ids=["paper", "modern"]
)
def model(request):
    config = ModelConfig(
        vocab_size=V, d_model=16, n_heads=4, n_layers=2, d_ff=24, dropout=0.0, **request.param
    )
    model = build(config, seed=0).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return model


@pytest.fixture
def source():
    torch.manual_seed(1)
    return torch.randint(5, V, (2, 6))


def teacher_forced(model, source, target, training=False):
    model = copy.deepcopy(model).train(training)
    with record_attention(model) as maps_by_name:
        model(source, target)
    assert all(len(passes) == 1 for passes in maps_by_name.values())
    return {name: passes[0] for name, passes in maps_by_name.items()}


def test_all_attentions_are_recorded_with_normalized_rows(model, source):
    target = torch.randint(5, V, (2, 4))
    maps_by_name = teacher_forced(model, source, target, training=True)
    assert set(maps_by_name) == {name.format(i) for name in NAMES for i in range(2)}
    for name, weights in maps_by_name.items():
        T, S = (6, 6) if name.startswith("encoder") else (4, 4) if name.endswith("attn") else (4, 6)
        assert weights.shape == (2, 4, T, S)
        assert not weights.requires_grad
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, T))
        if name.startswith("decoder") and name.endswith("attn"):
            assert (weights.triu(1) == 0).all()
        else:
            assert (weights > 0).all()


def test_recording_changes_no_output(model, source):
    target = torch.randint(5, V, (2, 4))
    a, b = (teacher_forced(model, source, target, training) for training in (False, True))
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=0, atol=1e-6)
    plain = model(source, target)
    with record_attention(model):
        torch.testing.assert_close(model(source, target), plain, rtol=0, atol=1e-5)
    with pytest.raises(RuntimeError, match="inside"), record_attention(model):
        raise RuntimeError("inside")
    assert all(not m.weights_hooks for m in model.modules() if hasattr(m, "weights_hooks"))


def test_threads_record_attention_independently(model, source):
    target = torch.randint(5, V, (2, 4))
    other, inside, finished = target.flip(0), Event(), Event()
    single = [teacher_forced(model, source, target_tokens) for target_tokens in (target, other)]
    result = []

    def record_other():
        with record_attention(model) as maps_by_name:
            inside.set()
            finished.wait(10)  # the first has looked and left
            model(source, other)
            result.append(maps_by_name)

    thread = Thread(target=record_other)
    with record_attention(model) as maps_by_name:
        thread.start()
        inside.wait(10)
        model(source, target)
    finished.set()
    thread.join()
    for passes_of, expected in ((maps_by_name, single[0]), (result[0], single[1])):
        for name, weights in expected.items():
            assert len(passes_of[name]) == 1
            torch.testing.assert_close(passes_of[name][0], weights, rtol=0, atol=1e-6)
    assert all(not m.weights_hooks for m in model.modules() if hasattr(m, "weights_hooks"))


@torch.no_grad()
def test_stepwise_maps_equal_teacher_forced_maps(model, source):
    target = torch.randint(5, V, (2, 5))
    full_maps = teacher_forced(model, source, target)
    with record_attention(model) as maps_by_name:
        memory = model.encode(source)
        cache = CACHE.build(Choice("static"), model.cache_shape, 2, 5)
        for t in range(5):
            pos = torch.full((2, 1), t)
            cache.prepare_step(range(2), pos)
            model.decode(target[:, t : t + 1], pos, cache, memory)
    compare(maps_by_name, full_maps, [(t, [0, 1], [0, 1]) for t in range(5)])


def compare(maps_by_name, full_maps, steps):
    """Each step's weights of rows are row t of the whole maps; slots that hold nothing weigh nothing."""
    for name, weights in full_maps.items():
        if name.startswith("encoder"):
            torch.testing.assert_close(
                maps_by_name[name][0], weights[: len(maps_by_name[name][0])], rtol=0, atol=1e-6
            )
            continue
        assert len(maps_by_name[name]) == len(steps)
        for step, (t, rows, maps) in zip(maps_by_name[name], steps, strict=True):
            width = t + 1 if name.endswith(".attn") else weights.size(-1)
            expected = weights[maps, :, t, :width]
            torch.testing.assert_close(step[rows, :, 0, :width], expected, rtol=0, atol=2e-6)
            assert (step[..., width:] == 0).all()


def test_beam_search_records_maps_of_each_hypothesis(model, source, monkeypatch):
    """The beams move between rows; each row's weights are those of its own prefix."""
    prefixes, decode, select, moves = [], model.decode, StaticCache.select, []

    def decode_recording(tokens, pos, cache, memory):
        previous = (
            [[] for _ in tokens]
            if not prefixes
            else [prefixes[-1][row] for row in (moves.pop() if moves else range(len(tokens)))]
        )
        prefixes.append([[*prefix, int(token)] for prefix, token in zip(previous, tokens[:, 0], strict=True)])
        return decode(tokens, pos, cache, memory)

    def select_recording(cache, rows):
        moves.append([int(row) for row in rows])
        select(cache, rows)

    monkeypatch.setattr(model, "decode", decode_recording)
    monkeypatch.setattr(StaticCache, "select", select_recording)
    rules = {"bos_id": BOS, "eos_id": EOS, "beam_size": 3, "max_new_tokens": [6], "min_new_tokens": 5}
    with record_attention(model) as maps_by_name:
        beam_search(model, source[:1], None, **rules)
    assert len(prefixes) == 6
    assert [len(step) for step in prefixes] == [1, 3, 3, 3, 3, 3]
    moved_on = [
        (old, new[:-1])
        for was, now in itertools.pairwise(prefixes)
        for old, new in zip(was, now, strict=False)
    ]
    assert any(old != new for old, new in moved_on)
    for t, rows in enumerate(prefixes):
        target = torch.tensor(rows)
        full_maps = teacher_forced(model, source[:1].expand(len(rows), -1), target)
        maps_at_t = {
            name: passes if name.startswith("encoder") else passes[t : t + 1]
            for name, passes in maps_by_name.items()
        }
        compare(maps_at_t, full_maps, [(t, list(range(len(rows))), list(range(len(rows))))])


class Blind(torch.nn.Module):
    """An attention that has no weights to show."""

    def __init__(self, inner):
        super().__init__()
        self.hidden, self.project_kv = [inner], inner.project_kv

    def forward(self, x, pos=None, cache=None, memory=None):
        return self.hidden[0](x, pos, cache, memory)


def test_pair_attention_equals_teacher_forced_maps(model, source):
    target = torch.randint(5, V, (1, 4))
    full_maps = teacher_forced(model, source[:1], target)
    result = compute_pair_attention(model, source[:1], target)
    names = {
        "cross": "decoder.layers.{}.cross",
        "encoder": "encoder.layers.{}.attn",
        "decoder": "decoder.layers.{}.attn",
    }
    assert list(result) == list(names)
    for kind, weights in result.items():
        torch.testing.assert_close(
            weights.weights, torch.cat([full_maps[names[kind].format(i)] for i in range(2)]), rtol=0, atol=0
        )
    for layer in model.decoder.layers:
        layer.cross = Blind(layer.cross)
    assert list(compute_pair_attention(model, source[:1], target)) == ["encoder", "decoder"]


@pytest.mark.parametrize("kind", ["decoder", "encoder"])
def test_self_attention_of_decoders_and_encoders(kind, source):
    config = ModelConfig(kind=kind, vocab_size=V, d_model=16, n_heads=4, n_layers=2, d_ff=24, dropout=0.0)
    model = build(config, seed=0).eval()
    with record_attention(model) as maps_by_name:
        model(source[:1])
    layers = [weights[0] for (weights,) in maps_by_name.values()]
    maps = compute_self_attention(model, source[:1])
    assert maps.layer_numbers == [1, 2] and maps.weights.shape == (2, 4, 6, 6)
    assert torch.equal(maps.weights, torch.stack(layers))
    assert bool((maps.weights.triu(1) == 0).all()) == (kind == "decoder")
    assert compute_self_attention(torch.nn.Embedding(V, 4), source[:1]) is None


TEXTS = ["中文分词很难。", "我们喜欢 emoji 😀😁", "中国人民", "naïve café"] * 3
SENTENCE = "中文 我爱😀🚀é"


def make_byte_level():
    """Merges for 中 and for a part of the emoji; most characters stay in pieces."""
    return train_tokenizer(TEXTS, Choice("bpe"), 275)


def make_fallback():
    """A vocabulary with a token <0xE4> for each byte."""
    return foreign("llama")


def is_mojibake(text):
    """Whether a text of Chinese, emoji and é holds what bytes look like when they are read as characters."""
    return "\ufffd" in text or any("\x80" <= c <= "\u024f" and c not in "éï\xa0" for c in text)


@pytest.mark.parametrize(
    ("utf8", "text"),
    [
        ("中".encode(), "中"),
        ("中".encode()[:2], "⟨E4 B8⟩"),
        (b"a\xb8\xad b", "a⟨B8 AD⟩ b"),
        ("😀".encode()[1:] + "é".encode(), "⟨9F 98 80⟩é"),
        (b"", ""),
    ],
)
def test_partial_characters_are_escaped(utf8, text):
    assert escape_bytes(utf8).replace("\xa0", " ") == text


@pytest.mark.parametrize("make", [make_byte_level, make_fallback])
def test_axis_labels_hold_all_bytes(make):
    tokenizer = make()
    names = axis_labels(tokenizer, tokenizer.encode([SENTENCE])[0])
    assert any("⟨" in name for name in names)
    assert not any(map(is_mojibake, names)), names
    data = b"".join(
        bytes.fromhex(part[1:-1]) if part.startswith("⟨") else part.encode()
        for part in re.split("(⟨[^⟩]*⟩)", "".join(names).replace("\xa0", " "))
    )
    assert data.decode().replace("▁", "").strip() == SENTENCE


@pytest.mark.parametrize("make", [make_byte_level, make_fallback])
def test_visible_tokens_have_no_mojibake(make):
    tokenizer = make()
    for token in range(tokenizer.vocab_size):
        label = visible_token(tokenizer, token)
        assert "\ufffd" not in label
        assert label
        assert " " not in label


def test_partial_character_is_shown_as_bytes():
    tokenizer = make_byte_level()
    ids = tokenizer.encode(["中文"])[0]
    assert tokens_to_text(tokenizer, ids) == "中文"
    assert tokens_to_text(tokenizer, ids[:-1]).replace("\xa0", " ") == "中⟨E6⟩⟨96⟩".replace("⟩⟨", " ")


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    tokenizer = make_byte_level()
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "max_len": 48}
    model = build(ModelConfig(kind="decoder", vocab_size=tokenizer.vocab_size, **sizes), seed=0)
    place = tmp_path_factory.mktemp("bytes") / "run"
    Run(model, tokenizer, GenerationConfig()).save(place)
    return place


def test_maps_and_pictures_have_no_mojibake(language_model):
    result = polyhead.load(language_model).attention_maps(SENTENCE)["self"]
    for picture in (attention_text(result), heat_map_svg(result)):
        assert "⟨F0\xa09F\xa098⟩" in picture
        assert "中" in picture
        assert not is_mojibake(picture)


@pytest.mark.parametrize("verb", [["attention", SENTENCE], ["visualize", "--tokens", "270"]])
def test_pages_show_no_mojibake(verb, language_model, tmp_path, capsys):
    page = tmp_path / "page.html"
    name, *rest = verb
    assert main([name, str(language_model), *rest, "--out", str(page)]) == 0
    html = page.read_text()
    assert "⟨F0\xa09F\xa098⟩" in html
    assert "\ufffd" not in html + capsys.readouterr().out
    assert not [c for c in html if unicodedata.name(c, "").startswith("LATIN") and ord(c) > 0xFF]


PAIRS = ["a dog runs", "the cat sat", "a red house", "dogs and cats"] * 5


def make_run(kind):
    tokenizer = train_tokenizer(PAIRS, Choice("bpe"), 300)
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 2, "d_ff": 24, "max_len": 48, "dropout": 0.0}
    model = build(ModelConfig(kind=kind, vocab_size=tokenizer.vocab_size, **sizes), seed=0).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return Run(model, tokenizer, GenerationConfig())


@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder"])
def test_beam_attention_equals_recorded_weights(kind):
    """Each row of a map is among the weights that were recorded during the search."""
    run, text = make_run(kind), "a red dog"
    lengths = {"max_new_tokens": 6} if kind == "decoder" else {"max_length_extra": 6, "max_length_ratio": 0}
    rules = {"beam_size": 4, "n_best": 3, **lengths}
    with record_attention(run.model) as maps_by_name:
        (found_hypotheses,) = run.hypotheses([text], **rules)
    result = run.beam_attention(text, **rules)
    assert [one.hypothesis.tokens for one in result] == [one.tokens for one in found_hypotheses]
    assert len({str(one.tokens) for one in found_hypotheses}) == 3
    (ids,) = run.tokenizer.encode([text])
    layer_name = "layers.{}.attn" if kind == "decoder" else "decoder.layers.{}.cross"
    for one in result:
        n, names = len(one.hypothesis.tokens), axis_labels(run.tokenizer, one.hypothesis.tokens)
        assert list(one.maps) == (["self"] if kind == "decoder" else ["cross", "encoder", "decoder"])
        label = next(iter(one.maps.values()))
        start = len(label.target_tokens) - n - (kind != "decoder")  # a translation has a row for its end
        assert list(label.target_tokens)[start : start + n] == names
        if kind == "encoder-decoder":
            assert label.weights.shape[2:] == (n + 1, len(ids) + 1)
        for layer in range(2):
            passes = next(x for name, x in maps_by_name.items() if name.endswith(layer_name.format(layer)))
            decode_recording = [beam[:, q] for step in passes for beam in step for q in range(step.size(2))]
            for t in range(start, start + n - 1):
                row = label.weights[layer, :, t]
                width = t + 1 if kind == "decoder" else row.size(-1)
                candidates = [
                    x for x in decode_recording if x.size(-1) >= width and (x[:, width:] == 0).all()
                ]
                assert min((x[:, :width] - row[:, :width]).abs().max() for x in candidates) < 1e-5, (layer, t)


def test_beams_of_a_model_without_search_are_refused():
    with pytest.raises(UserError, match="encoder"):
        make_run("encoder").beam_attention("a dog")
    with pytest.raises(UserError, match="target_lang: unknown key"):
        make_run("decoder").beam_attention("a dog", target_lang="de")
