"""Configs of the reference implementation: encoders, by family."""

from typing import Any, NamedTuple

from tests.hf.families.case_table import read_table

MLM, CLASSES, BARE = "AutoModelForMaskedLM", "AutoModelForSequenceClassification", "AutoModel"


class Case(NamedTuple):
    """A config of the reference implementation, the class of its models, and what is not at its default."""

    config: str
    auto: str
    sizes: dict[str, Any]


BASES, TABLE = read_table("encoders_cases.yaml")
SIZES, ODD, MODERN, DEBERTA = (BASES[name] for name in ("SIZES", "ODD", "MODERN", "DEBERTA"))
ROBERTA = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1, "type_vocab_size": 1}
UNTIED_EMBEDDINGS = {"tie_word_embeddings": False}
NEAR_THETA = {"rope_type": "default", "rope_theta": 50.0}
THETAS = {"full_attention": NEAR_THETA | {"rope_theta": 500.0}, "sliding_attention": NEAR_THETA}
CASES = {family: [Case(*row) for row in rows] for family, rows in TABLE.items()}
