"""Classifiers of one label, as rerankers are published."""

import json

import torch
import transformers
from tests.hf.conftest import TEXTS, edit_json
from tests.hf.families.encoders import make_encoder
from tests.hf.families.encoders_cases import CLASSES, ROBERTA, SIZES, Case

PAIRS = [(a, b) for a in TEXTS for b in TEXTS]
# where versions 2, 4 and 5 of sentence-transformers name the activation of the scores
OLDEST, NEWER = "sbert_ce_default_activation_function", "sentence_transformers"
NEWEST = "config_sentence_transformers.json"


def reranker(directory, keys, seed=0):
    config, sizes = ("BertConfig", {}) if seed else ("RobertaConfig", ROBERTA)
    model = make_encoder(directory, Case(config, CLASSES, {**SIZES, **sizes, "num_labels": 1}), seed=seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    with torch.no_grad():
        logits = [model(**tokenizer(*pair, return_tensors="pt")).logits[0, 0] for pair in PAIRS]
    edit_json(directory / "config.json", **{key: keys[key] for key in keys if key != NEWEST})
    if NEWEST in keys:
        (directory / NEWEST).write_text(json.dumps({"activation_fn": keys[NEWEST]}))
    return torch.stack(logits)
