"""Encoder-decoders of a family against the reference: logits, translations, scores, files."""

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.hf.conftest import TEXTS, VOCABULARY, build_once, make
from tests.hf.families import laws
from tests.hf.families.seq2seq_cases import BOS, CASES, EOS, LANGUAGE, PAD
from tests.hf.load_helpers import load_model
from tokenizers.processors import TemplateProcessing

import polyhead as ph
from polyhead.core.errors import UserError
from polyhead.data.batching.collate import collate_pairs
from polyhead.nn.loss import IGNORE_INDEX
from polyhead.nn.state import named_state
from tokenizers import Tokenizer as Inner

SOURCES = ["the king of the sea", "a dog", "two kings went to sea and one came back", "barks at two"]
GENERATION_KEYS = (
    *("decoder_start_token_id", "forced_bos_token_id", "eos_token_id", "pad_token_id", "max_length"),
    *("num_beams", "length_penalty", "early_stopping", "bad_words_ids"),
)


def all_rows(names):
    return laws.list_rows(CASES, names)


DEFAULT_ROWS = ("t5-0", "bart-0", "m2m_100-0")


def two_rows(names):
    """Two rows of each family, and those with embeddings that are not tied, which are slow."""
    rows = all_rows(names)
    return [row for row in rows if row.id[-1] in "01" or "tie_word_embeddings" in row.values[0].sizes]


def family_rows(names):
    return [row for row in all_rows(names) if laws.is_first(row)]


@build_once
def make_seq2seq(directory, case, seed=0, dtype=torch.float32):
    """The reference model of a case and its tokenizer, saved; what is no size is a setting of generation."""
    sizes = dict(case.sizes)
    has_own_head, (prefix, suffix) = sizes.pop("own_head", False), sizes.pop("framed", ([], [EOS]))
    settings = {key: sizes.pop(key) for key in ("forced_bos_token_id", "bad_words_ids") if key in sizes}
    sizes = {"pad_token_id": PAD, "forced_eos_token_id": None} | sizes
    model = make(directory, case.config, seed, dtype, "AutoModelForSeq2SeqLM", **sizes)
    with torch.no_grad():
        if has_own_head:
            model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
            model.config.scale_decoder_outputs = False
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_(std=0.3)
            model.final_logits_bias[0, EOS] = 2.0  # so that outputs end
            if "bad_words_ids" in settings:
                model.final_logits_bias[0, PAD] = 3.0  # so probable that only the setting keeps it away
        else:
            model.get_output_embeddings().weight[EOS] *= 8  # now very probable, now very improbable
    settings |= {"eos_token_id": EOS, "bos_token_id": BOS, "pad_token_id": PAD, "max_length": 24}
    settings |= {"num_beams": 3, "length_penalty": 0.6, "early_stopping": True}
    settings |= {"decoder_start_token_id": sizes["decoder_start_token_id"]}
    model.generation_config = transformers.GenerationConfig(**settings)
    model.save_pretrained(directory)
    inner = Inner.from_file(str(directory / "tokenizer.json"))
    single = " ".join([*map(inner.id_to_token, prefix), "$A", *map(inner.id_to_token, suffix)])
    special_tokens = [(inner.id_to_token(i), i) for i in {*prefix, *suffix}]
    inner.post_processor = TemplateProcessing(
        single=single, pair=f"{single} $B", special_tokens=special_tokens
    )
    inner.save(str(directory / "tokenizer.json"))
    return model


def random_ids(*shape):
    return torch.randint(5, VOCABULARY, shape)


@torch.no_grad()
def assert_same_logits(model, reference):
    """For random sources and targets."""
    source, target = random_ids(2, 9), random_ids(2, 7)
    assert_close(model(source, target), reference(input_ids=source, decoder_input_ids=target).logits)


def assert_close(actual, expected):
    """Within 1e-5, of the largest logit where that is above 1: T5 does not scale its scores."""
    atol = 1e-5 * max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=atol)


def strip_ends(sequence, start):
    """The tokens of an output without its first ones, up to the end."""
    tokens = sequence[start:]
    return tokens[: tokens.index(EOS)] if EOS in tokens else tokens


def rewrite_weights(directory, tensors):
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, directory / "model.safetensors")


class Seq2SeqFamily(laws.FamilyLaws):
    @laws.over(all_rows, laws.is_first_or_sampled)
    def test_logits_equal_reference(self, case, tmp_path):
        reference, (source, target) = make_seq2seq(tmp_path, case), (random_ids(3, 20), random_ids(3, 17))
        model = load_model(tmp_path)
        with torch.no_grad():
            expected = reference(input_ids=source, decoder_input_ids=target).logits
            assert_close(model(source, target), expected)

    @laws.over(family_rows)
    def test_source_padding_is_inert(self, case, tmp_path):
        reference, lengths = make_seq2seq(tmp_path, case), torch.tensor([12, 7, 1])
        model, source, target = load_model(tmp_path), random_ids(3, 12), random_ids(3, 9)
        for side in ("left", "right"):
            mask, pos = laws.padding_mask(side, lengths, 12)
            with torch.no_grad():
                logits = model(source, target, pos.masked_fill(~mask, -1))
                for row in range(3):
                    expected = reference(
                        input_ids=source[row][mask[row]][None], decoder_input_ids=target[row : row + 1]
                    ).logits
                    assert_close(logits[row], expected[0])
                # the other families count padding on the left as positions
                if side == "right" or case.config in ("T5Config", "M2M100Config"):
                    expected = reference(
                        input_ids=source.masked_fill(~mask, PAD),
                        attention_mask=mask.long(),
                        decoder_input_ids=target,
                    ).logits
                    assert_close(logits, expected)

    @pytest.mark.parametrize(
        ("beams", "ngram"),
        [(3, 0), *(pytest.param(*row, marks=pytest.mark.slow) for row in ((1, 0), (5, 0), (1, 2), (3, 2)))],
    )
    @laws.over(two_rows, lambda row: row.id in DEFAULT_ROWS)
    def test_translations_and_scores_equal_reference(self, case, beams, ngram, tmp_path):
        checkpoint = tmp_path / "checkpoint"
        reference = make_seq2seq(checkpoint, case)
        run_dir, _ = laws.round_trip(checkpoint)
        tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
        start = 1 + ("forced_bos_token_id" in case.sizes)
        outputs, scores = [], []
        for text in SOURCES:
            inputs = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
            # the cache of the reference has one layer for every encoder layer of T5
            search = {"num_beams": beams, "num_return_sequences": beams} | laws.WITH_SCORES
            expected = reference.generate(**inputs, **search, no_repeat_ngram_size=ngram, use_cache=False)
            outputs += [[strip_ends(sequence, start) for sequence in expected.sequences.tolist()]]
            scores += [expected.sequences_scores.tolist() if beams > 1 else []]
        assert beams == 1 or ngram or len({len(tokens) for rows in outputs for tokens in rows}) > 1
        for run in (ph.load(checkpoint), ph.load(run_dir)):
            assert (run.generation.beam_size, run.generation.length_penalty) == (3, 0.6)
            assert run.generation.early_stopping is True
            opening = list(run.tokenizer.seq2seq_template.opening_ids)
            hypotheses = run.hypotheses(SOURCES, beam_size=beams, n_best=beams, no_repeat_ngram_size=ngram)
            for best, tokens, log_probs in zip(hypotheses, outputs, scores, strict=True):
                assert [h.tokens for h in best] == [
                    x[len(opening) :] if start == 1 and opening and x[: len(opening)] == opening else x
                    for x in tokens
                ]
                if beams > 1:
                    assert [h.score for h in best] == pytest.approx(log_probs, rel=2e-6, abs=1e-5)

    @laws.over(all_rows, lambda row: row.id in DEFAULT_ROWS)
    def test_half_precision_export_keeps_every_tensor(self, case, tmp_path):
        name, dtype = laws.half_dtype(CASES_IN_ORDER.index(case))
        make_seq2seq(tmp_path / "checkpoint", case, dtype=dtype)
        _, exported_dir = laws.round_trip(tmp_path / "checkpoint", "--dtype", name)
        laws.assert_same_tensors(tmp_path / "checkpoint", exported_dir, duplicates=unread_embedding)

    @laws.over(all_rows, laws.is_first)
    def test_from_pretrained_opens_exported_run(self, case, tmp_path):
        checkpoint = tmp_path / "checkpoint"
        reference, (source, target) = make_seq2seq(checkpoint, case), (random_ids(2, 15), random_ids(2, 11))
        _, exported_dir = laws.round_trip(checkpoint)
        laws.assert_same_tensors(checkpoint, exported_dir, duplicates=unread_embedding)
        exported_model = laws.open_reference("AutoModelForSeq2SeqLM", exported_dir)
        assert type(exported_model) is type(reference)
        inputs = {"input_ids": source, "decoder_input_ids": target}
        with torch.no_grad():
            assert_close(exported_model(**inputs).logits, reference(**inputs).logits)
        exported_settings, settings = exported_model.generation_config, reference.generation_config
        for key in GENERATION_KEYS:
            assert getattr(exported_settings, key) == getattr(settings, key), key
        assert exported_model.config.decoder_start_token_id == reference.config.decoder_start_token_id
        tokenizers = [transformers.AutoTokenizer.from_pretrained(path) for path in (checkpoint, exported_dir)]
        assert tokenizers[0](TEXTS)["input_ids"] == tokenizers[1](TEXTS)["input_ids"]

    @laws.over(two_rows, lambda row: row.id[-1] in "01")
    def test_losses_and_scores_equal_reference(self, case, tmp_path):
        reference, run = make_seq2seq(tmp_path, case), ph.load(tmp_path)
        template, targets = run.tokenizer.seq2seq_template, ["a dog barks", "the sea", "two", "a king"]
        pairs = run.tokenizer.encode(SOURCES), run.tokenizer.encode(targets)
        batch, start = collate_pairs(*pairs, run.tokenizer), case.sizes["decoder_start_token_id"]
        sources = transformers.AutoTokenizer.from_pretrained(tmp_path)(SOURCES)["input_ids"]
        assert [row[: len(ids)] for row, ids in zip(batch.source.tolist(), sources, strict=True)] == sources
        openings = {"BartConfig": [BOS], "MBartConfig": [LANGUAGE], "M2M100Config": [LANGUAGE]}
        has_prefix = case.sizes.get("framed", ([], []))[0]
        opening = openings.get(case.config, []) if has_prefix else []
        log_probs = []
        for row, (source, target) in enumerate(zip(sources, pairs[1], strict=True)):
            labels = [*opening, *target, EOS]
            assert batch.target[row, : len(labels)].tolist() == [start, *labels[:-1]]
            assert batch.labels[row, : len(labels)].tolist() == labels
            assert set(batch.labels[row, len(labels) :].tolist()) <= {IGNORE_INDEX}
            scored_labels = torch.tensor([labels])
            if template.opening_forced:
                scored_labels[:, : len(opening)] = IGNORE_INDEX
            inputs = {"input_ids": [source], "decoder_input_ids": [[start, *labels[:-1]]]}
            with torch.no_grad():
                logits = reference(**{key: torch.tensor(ids) for key, ids in inputs.items()}).logits
            loss = torch.nn.functional.cross_entropy(logits[0], scored_labels[0], reduction="sum")
            log_probs.append(-float(loss))
        scores = run.score(SOURCES, targets)
        assert [s.log_prob for s in scores] == pytest.approx(log_probs, rel=1e-5)
        n_opening = 0 if template.opening_forced else len(opening)
        assert [s.tokens for s in scores] == [len(ids) + 1 + n_opening for ids in pairs[1]]
        tokens, rows, cross = run.cross_attention(SOURCES[0], targets[0])
        assert (len(rows), len(tokens)) == (len(opening) + len(pairs[1][0]) + 1, len(sources[0]))
        assert cross.shape[-2:] == (len(rows), len(tokens))

    @laws.over(family_rows)
    def test_copies_and_buffers_of_older_files(self, case, tmp_path):
        make_seq2seq(tmp_path, case)
        expected, tensors = ph.load(tmp_path), load_file(tmp_path / "model.safetensors")
        prefix = "" if case.config in ("T5Config", "MT5Config") else "model."
        shared_embedding = tensors[f"{prefix}shared.weight"]
        tensors |= {
            f"{prefix}{side}.embed_tokens.weight": shared_embedding for side in ("encoder", "decoder")
        }
        if case.config != "MT5Config":  # whose head is not tied where it is in the file
            tensors["lm_head.weight"] = shared_embedding
        if not prefix:
            name = "decoder.block.0.layer.{}.{}Attention.relative_attention_bias.weight"
            tensors[name.format(1, "EncDec")] = tensors[name.format(0, "Self")]
        if case.config in ("MarianConfig", "M2M100Config", "PegasusConfig"):
            end = "weights" if case.config == "M2M100Config" else "weight"
            for side in ("encoder", "decoder"):
                tensors[f"model.{side}.embed_positions.{end}"] = torch.randn(64, 18)
        rewrite_weights(tmp_path, tensors)
        run = ph.load(tmp_path)
        assert run.config == expected.config
        state = named_state(run.model)
        assert all(torch.equal(tensor, state[name]) for name, tensor in named_state(expected.model).items())
        if case.config != "MT5Config":
            tensors["lm_head.weight"] = shared_embedding + 1
            rewrite_weights(tmp_path, tensors)
            message = r"lm_head.weight is not (model\.)?shared.weight, but according to config.json they are"
            with pytest.raises(UserError, match=message):
                ph.load(tmp_path)


def unread_embedding(name):
    """Where each side has its own embedding no code reads the shared one: it is written as the source's."""
    return "model.encoder.embed_tokens.weight" if name == "model.shared.weight" else name


CASES_IN_ORDER = [case for cases in CASES.values() for case in cases]
