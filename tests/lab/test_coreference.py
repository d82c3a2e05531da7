import numpy as np
import pytest
import torch
import transformers
from tests.hf.conftest import make
from tests.hf.families.seq2seq import make_seq2seq
from tests.hf.families.seq2seq_cases import CASES
from tests.hf.sentence_helpers import BERT, set_template

import polyhead as ph
from polyhead.core.errors import UserError
from polyhead.introspect.attention_map import AttentionMap
from polyhead_lab import coreference as lab
from polyhead_lab.registry import LabContext
from polyhead_lab.short_training import make_small_config

ANGRY, SMALL = (lab.build_sentence(0, 1, 0, answer, 0) for answer in (0, 1))


def test_adjective_decides_noun():
    assert " ".join(ANGRY.words) == "the dog is barking at the bird because it is angry ."
    assert " ".join(ANGRY.german) == "der Hund ist bellend an den Vogel weil Hund ist wütend ."
    assert [ANGRY.words[at] for at in ANGRY[2:]] == ["it", "dog", "bird"]
    assert [SMALL.words[at] for at in SMALL[2:]] == ["it", "bird", "dog"]
    assert SMALL.german[SMALL.pronoun] == "Vogel"
    # a dative object of a feminine noun, after an adverb
    sentence = lab.build_sentence(16, 8, 6, 0, 1, 2)
    assert " ".join(sentence.german) == "oft das Pferd ist laufend vor der Katze weil Pferd ist müde ."


def test_noun_pairs_of_splits_are_disjoint():
    parts = lab.split_noun_pairs(1)
    assert [len(part) for part in parts] == [184, 46, 46]
    assert len({frozenset(pair) for part in parts for pair in part}) == 276
    sentences = lab.draw_sentences(np.random.default_rng(0), 400, parts[2])
    german = {frozenset((s.german[s.noun], s.german[s.other_noun])) for s in sentences}
    names = [noun[1] for _, noun in lab.NOUNS]
    assert german <= {frozenset(names[i] for i in pair) for pair in parts[2]}
    tokens, _, labels = lab.encode_sentences(sentences)
    assert tokens.max() < lab.make_gloss_task(None).vocab_size
    row, sentence = 7, sentences[7]
    assert labels[row, sentence.pronoun] == labels[row, sentence.noun] != labels[row, sentence.other_noun]


def make_map(sentence, *rows):
    """A map of two layers of two heads, in which *it* attends to these words with weights."""
    weights = torch.zeros(2, len(rows) // 2, len(sentence.words), len(sentence.words))
    for head, row in enumerate(rows):
        for word, weight in row.items():
            weights[divmod(head, 2)][sentence.pronoun, sentence.words.index(word)] = weight
    return AttentionMap(sentence.words, sentence.words, weights)


def test_scores_of_maps_made_by_hand():
    to_dog, to_bird = {"dog": 0.6, "bird": 0.4}, {"dog": 0.1, "bird": 0.9}
    rather_dog, to_neither = {"dog": 0.3, "bird": 0.2, "because": 0.5}, {"because": 1.0}
    sentences = [ANGRY, ANGRY, ANGRY, SMALL]  # in the last the bird is right
    maps = [make_map(sentence, to_dog, to_bird, rather_dog, to_neither) for sentence in sentences]
    scores = lab.score_heads(maps, sentences)
    assert scores.of_two.tolist() == [[0.75, 0.25], [0.75, 0.0]]
    assert scores.of_all.tolist() == [[0.75, 0.25], [0.0, 0.0]]


def test_words_of_several_tokens_and_special_tokens():
    tokens = ["[CLS]", "the", "do", "##g", "b", "##ark", "##s", ".", "[SEP]"]
    assert lab.align_words(tokens, ["the", "dog", "barks", "."]) == [[1], [2, 3], [4, 5, 6], [7]]
    assert lab.align_words(["▁The", "▁d", "og", "</s>"], ["the", "dog"]) == [[0], [1, 2]]
    with pytest.raises(UserError, match=r"\['the', '\[UNK\]'\] do not spell the words of 'the dog'"):
        lab.align_words(["the", "[UNK]"], ["the", "dog"])


def test_changed_values_change_answers():
    """A head without values adds as much as one without columns of the output projection."""
    task = lab.make_gloss_task(None)
    model = ph.build(make_small_config(task, kind="encoder", n_layers=1), 1).eval()
    sentences = lab.draw_sentences(np.random.default_rng(0), 50, lab.split_noun_pairs(1)[0])
    attention, outputs = model.encoder.stack.layers[0].attn, []
    attention.o_proj.register_forward_hook(lambda *args: outputs.append(args[2].clone()))

    def zero(values):
        values[..., 16:32] = 0

    lab.resolve_pronouns(model, sentences, 0, zero)
    with torch.no_grad():
        attention.o_proj.weight[:, 16:32] = 0
    plain = lab.resolve_pronouns(model, sentences)
    torch.testing.assert_close(*outputs)
    # by single sentences, without padding
    answers = []
    for sentence in sentences:
        tokens, _, labels = map(torch.from_numpy, lab.encode_sentences([sentence]))
        answer = model(tokens)[0, sentence.pronoun].argmax()
        answers.append([answer == labels[0, at] for at in (sentence.noun, sentence.other_noun)])
    torch.testing.assert_close(plain, torch.tensor(answers).double().mean(0))


def test_shares_are_those_of_changed_values(monkeypatch):
    """Answers are made up: by the head without values, or of the other noun if values are swapped."""

    def resolve(model, sentences, layer=0, change=None):
        values = torch.arange(1.0, 13)[:, None].expand(len(sentences), -1, 4).clone()
        before = values.clone()
        if change:
            change(values)
        is_zero = (values == 0).all((0, 1))
        if is_zero.any():
            return torch.tensor([0.9 - 0.1 * layer - 0.01 * is_zero.int().argmax(), 0])
        for row, old, sentence in zip(values, before, sentences, strict=True):
            pair = [sentence.noun, sentence.other_noun]
            places = (
                [*range(12)] if not change else [pair[pair[0] == i] if i in pair else i for i in range(12)]
            )
            assert torch.equal(row, old[places])
        return torch.tensor([0.9, 0.05] if not change else [0.2, 0.6 + 0.1 * layer], dtype=torch.double)

    monkeypatch.setattr(lab, "resolve_pronouns", resolve)
    measured = lab.measure_links(LabContext(1, True), {}, 0)
    costs = torch.tensor([[0.0, 0.01, 0.02, 0.03], [0.1, 0.11, 0.12, 0.13]])
    torch.testing.assert_close(measured.costs, costs)
    cost = costs[measured.best].item()
    expected = {"accuracy": 0.9, "swapped": 0.6 + 0.1 * measured.best[0], "cost": cost}
    expected |= {"mean_cost": (costs.sum().item() - cost) / 7}
    assert {name: measured.shares[name] for name in expected} == pytest.approx(expected)


def test_claims_follow_from_shares():
    """All held; with swapped and cost below their bounds, the last two are not."""
    shares = {"accuracy": 0.99, "baseline": 0.5, "of_two": 0.9, "of_all": 0.8, "swapped": 0.9}
    shares |= {"cost": 0.3, "mean_cost": 0.1}

    def judge(changes):
        seeds = {name: [share, share + 1e-4] for name, share in (shares | changes).items()}
        return [
            claim.is_supported
            for claim in lab.make_link_claims({name: {"pre-norm": s, "BERT": s} for name, s in seeds.items()})
        ]

    assert judge({}) == [True] * 4
    assert judge({"accuracy": 0.9, "swapped": 0.4, "cost": 0.0}) == [False, True, False, False]
    assert judge({"of_all": 0.4})[1] is False and judge({"of_two": 0.4})[1] is False


def make_bert(directory):
    model = make(directory, "BertConfig", auto="AutoModelForMaskedLM", **BERT)
    set_template(directory, [1], [2], has_segments=True)
    return model


def make_marian(directory):
    return make_seq2seq(directory, CASES["marian"][1])


def score_by_loops(tokenizer, model, sentences):
    """Hits of every head, from the attention and the offsets of transformers."""
    heads = {}
    for sentence in sentences:
        text = " ".join(sentence.words)
        encoded = tokenizer(text, return_offsets_mapping=True)
        words = [text[:end].count(" ") if text[start:end].strip() else -1
                 for start, end in encoded["offset_mapping"]]  # fmt: skip
        encoder = model.get_encoder() if model.config.is_encoder_decoder else model
        ids = torch.tensor([encoded["input_ids"]])
        for layer, weights in enumerate(encoder(ids, output_attentions=True).attentions):
            for head, matrix in enumerate(weights[0].tolist()):
                to_word = [0.0] * len(sentence.words)
                for query, row in zip(words, matrix, strict=True):
                    for word, weight in zip(words, row, strict=True):
                        if query == sentence.pronoun and word >= 0:
                            to_word[word] += weight
                true, other = to_word[sentence.noun], to_word[sentence.other_noun]
                heads.setdefault((layer, head), []).append((true > other, true == max(to_word)))
    return {
        head: [sum(hits) / len(hits) for hits in zip(*pairs, strict=True)] for head, pairs in heads.items()
    }


@pytest.mark.parametrize(("make_checkpoint", "kind"), [(make_bert, "self"), (make_marian, "encoder")])
def test_scores_of_imported_checkpoints_match_transformers(make_checkpoint, kind, tmp_path):
    model = make_checkpoint(tmp_path)
    model.set_attn_implementation("eager")
    sentences = lab.draw_sentences(np.random.default_rng(0), 8, lab.split_noun_pairs(1)[2])
    run = ph.load(tmp_path)
    maps = [
        run.attention_maps(" ".join(s.words), *(["x"] if kind == "encoder" else []))[kind] for s in sentences
    ]
    scores = lab.score_heads(maps, sentences)
    expected = score_by_loops(transformers.AutoTokenizer.from_pretrained(tmp_path), model, sentences)
    assert len(expected) == scores.of_two.numel() > 1
    for head, pair in expected.items():
        assert [scores.of_two[head].item(), scores.of_all[head].item()] == pair
    assert 0 < scores.of_two.mean() < 1
