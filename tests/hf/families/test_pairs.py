import pytest
import torch
import transformers
from tests.hf.conftest import TEXTS, VOCABULARY, edit_json, edit_weights
from tests.hf.families.encoders import assert_close, make_encoder, train_recipe, unread_bias
from tests.hf.families.encoders_cases import BARE, CLASSES, MLM, SIZES, UNTIED_EMBEDDINGS, Case
from tests.hf.families.laws import assert_same_tensors, open_reference, round_trip
from tests.hf.families.test_bert import rename_as_in_2018
from tests.hf.load_helpers import load_model

import polyhead as ph
from polyhead.cli import main
from polyhead.core.errors import UserError
from polyhead.hf.save import pick_family
from polyhead.models import MaskedLM, NSPModel, SentenceEncoder
from polyhead.nn.state import named_state
from polyhead.train.init_from import load_init_weights

PRETRAINING = "AutoModelForPreTraining"
BERT = Case("BertConfig", PRETRAINING, SIZES)
CASES = [
    pytest.param(BERT, id="bert"),
    pytest.param(
        Case("BertConfig", PRETRAINING, {**SIZES, **UNTIED_EMBEDDINGS, "hidden_act": "relu"}), id="untied"
    ),
    pytest.param(Case("AlbertConfig", PRETRAINING, {**SIZES, "embedding_size": 14}), id="albert"),
]


@pytest.mark.parametrize("case", CASES)
def test_both_heads_and_pooler_equal_reference(case, tmp_path):
    reference, model = make_encoder(tmp_path, case), load_model(tmp_path)
    message = "its model is NSPModel, expected MaskedLM or Classifier or TokenClassifier or Question"
    with pytest.raises(UserError, match=message):
        pick_family(model.config, "roberta")
    tokens, segments = torch.randint(5, VOCABULARY, (3, 20)), torch.randint(0, 2, (3, 20))
    assert isinstance(model, NSPModel)
    with torch.no_grad():
        expected = reference(tokens, token_type_ids=segments)
        pair_logits = expected.get("seq_relationship_logits", expected.get("sop_logits"))
        vectors = model.pooler(model.encoder(tokens, None, segments))
        assert_close(model(tokens, None, segments), expected.prediction_logits)
        assert_close(model.follows(vectors), pair_logits)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for vector, text in zip(ph.load(tmp_path).embed(TEXTS, pooling="own"), TEXTS, strict=True):
        with torch.no_grad():
            output = reference.base_model(**tokenizer(text, return_tensors="pt"))
        assert_close(vector, output.pooler_output[0])
    reference, info = getattr(transformers, CLASSES).from_pretrained(tmp_path, output_loading_info=True)
    new_weights = {"classifier.weight", "classifier.bias"}
    assert {*info["missing_keys"]} == new_weights
    origin = ph.load(tmp_path)
    config = origin.config.model_copy(update={"labels": ("sad", "merry"), "nsp_head": False})
    model = ph.build(config, seed=1).eval()
    assert "; new: classifier; unused: " in load_init_weights(model, origin)
    assert named_state(model).keys() - named_state(origin.model).keys() == new_weights
    tokens = torch.randint(5, VOCABULARY, (3, 20))
    with torch.no_grad():
        reference.classifier.load_state_dict(model.classifier.state_dict())
        assert_close(model(tokens), reference.eval()(tokens).logits)


@pytest.mark.parametrize("architecture", ["PreTraining", "MaskedLM"])
@pytest.mark.parametrize("case", CASES)
def test_export_has_both_heads(case, architecture, tmp_path, caplog):
    """Whatever the architecture: bert-base-uncased says MaskedLM, and its files hold both heads."""
    checkpoint, prefix = tmp_path / "checkpoint", f"{case.config.removesuffix('Config')}For"
    reference, tokens = make_encoder(checkpoint, case), torch.randint(5, VOCABULARY, (2, 15))
    edit_json(checkpoint / "config.json", architectures=[prefix + architecture])
    _, exported_dir = round_trip(checkpoint)
    exported_model = open_reference(PRETRAINING, exported_dir)
    assert exported_model.config.architectures == [f"{prefix}PreTraining"]
    assert_same_tensors(checkpoint, exported_dir, duplicates=unread_bias)
    with torch.no_grad():
        outputs = exported_model(tokens).to_tuple(), reference(tokens).to_tuple()
        for output, expected in zip(*outputs, strict=True):
            assert_close(output, expected)
    assert not caplog.messages


def test_masked_training_drops_pair_head(tmp_path, capsys):
    make_encoder(tmp_path / "checkpoint", BERT)
    (tmp_path / "text.txt").write_text("\n".join(TEXTS * 4))
    data = {"root": str(tmp_path), "train": "text.txt", "valid": "text.txt", "max_len": 40}
    run = train_recipe(tmp_path, task="masked-lm", data=data, train={"steps": 1, "max_tokens": 128})
    assert "unused: follows" in "".join(capsys.readouterr()) and type(run.model) is MaskedLM
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "exported")]) == 0
    open_reference(MLM, tmp_path / "exported")


def drop_pair_head(tensors):
    """As in files of transformers 3 that fill masks."""
    rename_as_in_2018(tensors)
    del tensors["cls.seq_relationship.weight"], tensors["cls.seq_relationship.bias"]


def add_pair_head(tensors):
    for name in list(tensors):
        tensors[f"bert.{name}"] = tensors.pop(name)
    tensors |= {"cls.seq_relationship.weight": torch.ones(2, 24), "cls.seq_relationship.bias": torch.ones(2)}


@pytest.mark.parametrize(
    ("auto", "change", "model_class", "part"),
    [
        (MLM, drop_pair_head, MaskedLM, "bert.pooler.dense"),
        (BARE, add_pair_head, SentenceEncoder, "cls.seq_relationship"),
    ],
)
def test_unused_part_of_pairs_is_ignored(auto, change, model_class, part, tmp_path, caplog):
    make_encoder(tmp_path, Case("BertConfig", auto, SIZES))
    edit_weights(tmp_path, change)
    run = ph.load(tmp_path)
    assert type(run.model) is model_class and run.config.pooling is not None
    ignored = f"ignored tensors that this model does not have: {part}.bias, {part}.weight"
    assert caplog.messages == [f"{tmp_path}: {ignored}"]
