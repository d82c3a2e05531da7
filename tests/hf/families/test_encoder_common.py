import pytest
import torch
import transformers
from tests.hf.conftest import TEXTS, VOCABULARY, edit_weights, export_run, random_run
from tests.hf.families.encoders import assert_close, assert_same_outputs, make_encoder, reference_output
from tests.hf.families.encoders_cases import CASES
from tests.hf.families.laws import open_reference
from tests.hf.load_helpers import load_model
from tests.hf.save_helpers import CONFIGS, model_config

import polyhead as ph
from polyhead.hf.save import pick_family


def rows(**numbers):
    return [(name.replace("deberta", "deberta-v2"), i) for name in numbers for i in numbers[name]]


MASKED_ROWS = rows(bert=(0,), roberta=(0,), distilbert=(0,), modernbert=(0,), electra=(0, 2), albert=(0,))
MASKED_ROWS += rows(deberta=(0,), nomic_bert=(0,), gte=(1,), eurobert=(0,))
VECTOR_ROWS = rows(bert=(4, 3), roberta=(3,), distilbert=(4,), modernbert=(4,), electra=(3, 5), albert=(4,))
VECTOR_ROWS += rows(deberta=(5,), nomic_bert=(5,), gte=(6,), eurobert=(7,))
CLASS_ROWS = rows(bert=(3,), roberta=(2,), distilbert=(3,), modernbert=(2, 3), electra=(3,), albert=(2,))
CLASS_ROWS += rows(deberta=(3,), nomic_bert=(3,), gte=(3,), eurobert=(3, 4))


@pytest.mark.parametrize(("name", "number"), MASKED_ROWS)
def test_masks_filled_as_by_reference_pipeline(name, number, tmp_path):
    make_encoder(tmp_path, CASES[name][number])
    fill = transformers.pipeline("fill-mask", model=str(tmp_path))
    mask, size = fill.tokenizer.mask_token, len(fill.tokenizer)
    text = f"the {mask} of the sea"
    expected = [w for w in fill(text, top_k=VOCABULARY) if w["token"] < size]
    expected = [w for w in expected if w["token"] not in fill.tokenizer.all_special_ids][:30]
    (fills,) = ph.load(tmp_path).fill_mask([text], top_k=30)[0]
    probabilities = [w["score"] for w in expected]
    assert [one.probability for one in fills] == pytest.approx(probabilities, abs=1e-6, rel=1e-5)
    if name != "roberta":  # whose tokens are bytes, mostly no characters
        assert [one.token for one in fills] == [w["token_str"].replace(" ", "␣") for w in expected]


@pytest.mark.parametrize(("name", "number"), VECTOR_ROWS)
def test_vectors_equal_reference(name, number, tmp_path):
    reference, run = make_encoder(tmp_path, CASES[name][number]), ph.load(tmp_path)
    tokenizer, texts = transformers.AutoTokenizer.from_pretrained(tmp_path), [*TEXTS, "sea"]
    means, firsts = run.embed(texts), run.embed(texts, pooling="first")
    for text, mean, first in zip(texts, means, firsts, strict=True):
        with torch.no_grad():
            output = reference.base_model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        assert_close(mean, output.mean(0))
        assert_close(first, output[0])


@pytest.mark.parametrize(("name", "number"), CLASS_ROWS)
def test_texts_and_pairs_classified_as_by_reference(name, number, tmp_path):
    reference, run = make_encoder(tmp_path, CASES[name][number]), ph.load(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    names = list(reference.config.id2label.values())
    for inputs in ([(text,) for text in TEXTS], list(zip(TEXTS, reversed(TEXTS), strict=True))):
        predictions = run.classify([sides if len(sides) > 1 else sides[0] for sides in inputs])
        for sides, prediction in zip(inputs, predictions, strict=True):
            with torch.no_grad():
                expected = reference(**tokenizer(*sides, return_tensors="pt")).logits[0].softmax(-1)
            assert list(prediction.probabilities) == names
            assert list(prediction.probabilities.values()) == pytest.approx(expected.tolist(), abs=1e-5)
            assert prediction.label == names[int(expected.argmax())]


HEADS = {"bert": "cls.predictions", "roberta": "lm_head", "mpnet": "lm_head", "albert": "predictions"}
HEADS |= {"deberta-v2": "cls.predictions"}


@pytest.mark.parametrize("name", HEADS)
def test_untied_head_with_single_bias(name, tmp_path):
    """As in files of transformers 4, which tied the bias whether or not the matrix was."""
    reference = make_encoder(tmp_path, CASES[name][-1])
    older, newer = f"{HEADS[name]}.bias", f"{HEADS[name]}.decoder.bias"
    edit_weights(tmp_path, lambda tensors: tensors.update({older: tensors.pop(newer)}))
    assert_same_outputs(load_model(tmp_path), reference)


@pytest.mark.parametrize(("family", "auto", "parts"), CONFIGS["encoders"])
def test_exported_encoder_opens_in_reference(family, auto, parts, tmp_path):
    original = random_run(model_config(**parts), noise=0.1)
    assert pick_family(original.config) == family
    exported_dir = export_run(original, tmp_path)
    reference = open_reference(auto, exported_dir)
    run, tokenizer = ph.load(tmp_path / "run"), transformers.AutoTokenizer.from_pretrained(exported_dir)
    # both tokenizers put the same tokens around texts
    inputs, (first, second) = tokenizer(*TEXTS[:2], return_tensors="pt"), run.tokenizer.encode(TEXTS[:2])
    assert inputs["input_ids"][0].tolist() == [1, *first, 2, *second, 2]
    segments = inputs.get("token_type_ids")
    assert (segments is None) == (run.config.n_segments == 0)
    if segments is not None:
        assert segments[0].tolist() == [0] * (len(first) + 2) + [1] * (len(second) + 1)
    with torch.no_grad():
        output = original.model.eval()(inputs["input_ids"], None, segments)
        assert_close(output, reference_output(reference, **inputs))
    if run.config.labels:
        assert tuple(reference.config.id2label.values()) == run.config.labels
        (expected,), (actual,) = (one.classify([tuple(TEXTS[:2])]) for one in (run, ph.load(exported_dir)))
        assert actual.probabilities == pytest.approx(expected.probabilities, abs=1e-6)
