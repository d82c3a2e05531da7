"""Models and texts of tests of tool calls."""

import re

from polyhead import Choice, ModelConfig, build
from polyhead.config.generation_config import GenerationConfig
from polyhead.run.run import Run
from polyhead.tokenizers.tokenizer import Tokenizer
from polyhead.tokenizers.train_tokenizer import train_tokenizer
from tokenizers import AddedToken

DAYS = {"type": "integer", "minimum": 1, "maximum": 9}
PROPERTIES = {"place": {"enum": ["Rome", "Oslo"]}, "days": DAYS}
SCHEMA = {"type": "object", "properties": PROPERTIES, "required": ["place", "days"]}
SCHEMA["additionalProperties"] = False
WEATHER = {"name": "weather", "description": "What falls", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": function} for function in (WEATHER, {"name": "now"})]
CALL_NOW = {"type": "function", "function": {"name": "now"}}
CALL_FUNCTION = {"name": "weather", "arguments": '{"place": "Rome", "days": 2}'}
CALL_TEXT = '<tool_call>\n{"name": "weather", "arguments": {"place": "Rome", "days": 2}}\n</tool_call>'
QUESTION = [{"role": "user", "content": "hunde"}]
TEXTS = ["ein hund bellt .", "a dog barks .", "zwei hunde bellen .", "two dogs bark 犬 .", "dogs"]


def build_tool_run(chat: str, special: bool | None, **options: object) -> Run:
    """A model with the tokens of a format; those of calls are special, plain, or (None) missing."""
    inner = train_tokenizer([*TEXTS, CALL_TEXT, '"parameters" Oslo'] * 5, Choice("bpe"), 330)._inner
    inner.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|eot_id|>"])
    inner.add_special_tokens(["<|start_header_id|>", "<|end_header_id|>"])
    marks = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]") if special is not None else ()
    inner.add_tokens([AddedToken(mark, special=bool(special), normalized=False) for mark in marks])
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 32, "max_len": 2500}
    model = build(ModelConfig(kind="decoder", vocab_size=inner.get_vocab_size(), **sizes), seed=1)
    generation = GenerationConfig(chat=Choice(chat, **options), max_new_tokens=200)
    return Run(model, Tokenizer(inner), generation)


def to_format(chat: str, text: str) -> str:
    """A text of ChatML as another format writes it."""
    if chat == "llama3":
        return re.sub("\n?</?tool_call>\n?", "", text).replace("arguments", "parameters")
    if chat == "mistral":
        return re.sub("<tool_call>\n(.*)\n</tool_call>", r"[TOOL_CALLS] [\1]", text)
    return text
