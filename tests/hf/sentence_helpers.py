"""Checkpoints of sentence-transformers: a reference model with the files that define vectors of texts."""

import json

import torch
import transformers
from safetensors.torch import save_file
from tests.hf.conftest import TEXTS, make

from polyhead.tokenizers.tokenizer import Tokenizer

BERT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20}
BERT |= {"max_position_embeddings": 64}
POOLING = {"cls": lambda x: x[0], "mean": lambda x: x.mean(0), "max": lambda x: x.amax(0)}
POOLING |= {"lasttoken": lambda x: x[-1]}
# (inputs, outputs, bias, activation) of each dense map
DenseMap = tuple[int, int, bool, str]


def make_bert(directory, pooling, *modules):
    model = make(directory, "BertConfig", auto="AutoModel", **BERT)
    set_template(directory, [1], [2], has_segments=True)
    write_modules(directory, pooling, *modules)
    return model


def set_template(directory, prefix, suffix, **options):
    Tokenizer.load(directory).with_template(prefix, suffix).save(directory, **options)


def write_modules(directory, pooling, *modules):
    steps = []
    for i, name in enumerate(["Transformer", "Pooling", *modules]):
        kind = f"sentence_transformers.models.{name}"
        steps.append({"idx": i, "name": str(i), "path": f"{i}_{name}" if i else "", "type": kind})
    (directory / "modules.json").write_text(json.dumps(steps))
    (directory / "1_Pooling").mkdir()
    write_json(directory / "1_Pooling" / "config.json", {"word_embedding_dimension": 16, **pooling})


def write_json(path, content):
    path.write_text(json.dumps(content))


def read_json(path):
    return json.loads(path.read_text())


def write_dense(directory, maps):
    torch.manual_seed(3)
    layers = [torch.nn.Linear(inputs, outputs, bias) for inputs, outputs, bias, _ in maps]
    for i, (layer, (inputs, outputs, bias, activation)) in enumerate(zip(layers, maps, strict=True), 2):
        path = directory / f"{i}_Dense"
        path.mkdir()
        config = {"in_features": inputs, "out_features": outputs, "bias": bias}
        write_json(path / "config.json", config | {"activation_function": f"torch.nn.modules.{activation}"})
        save_file({f"linear.{key}": x for key, x in layer.state_dict().items()}, path / "model.safetensors")
    return layers


def reference_vectors(model, directory, mode, normalize, prompt="", max_len=64):
    """(texts, d_model): the vectors of TEXTS by the formulas of sentence-transformers."""
    tokenizer, rows = transformers.AutoTokenizer.from_pretrained(directory), []
    for text in TEXTS:
        inputs = tokenizer(prompt + text, truncation=True, max_length=max_len, return_tensors="pt")
        with torch.no_grad():
            rows.append(POOLING[mode](model(**inputs).last_hidden_state[0]))
    vectors = torch.stack(rows)
    return vectors / vectors.norm(dim=1, keepdim=True) if normalize else vectors
