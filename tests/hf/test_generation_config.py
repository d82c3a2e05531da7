import json

import pytest
import torch
import transformers
from tests.chat.published_chats import PUBLISHED_TEMPLATES
from tests.hf.conftest import edit_json, export_run, make, random_run
from tests.hf.load_helpers import REFUSALS
from tests.hf.save_helpers import BASES, config
from transformers import AutoModelForCausalLM, AutoTokenizer

import polyhead as ph
from polyhead.cli import main
from polyhead.config.generation_config import GenerationConfig
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.export.gguf import write_gguf
from polyhead.generation.chat import parse_conversation
from polyhead.run.load import load
from polyhead.tokenizers.tokenizer import Tokenizer

# texts that look like special tokens
CHAT = [{"role": "user", "content": "the king </s> <|im_end|>"}, {"role": "assistant", "content": "a dog"}]
QUESTION = [*CHAT, {"role": "user", "content": "went to sea"}]
SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
SIZES |= {"num_key_value_heads": 2, "max_position_embeddings": 64}


@pytest.fixture
def checkpoint(tmp_path):
    directory = tmp_path / "llama"
    model = make(directory, "LlamaConfig", vocab_size=302, **SIZES)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = PUBLISHED_TEMPLATES["qwen2.5"]
    tokenizer.save_pretrained(directory)
    model.generation_config.eos_token_id = [2, tokenizer.convert_tokens_to_ids("<|im_end|>")]
    model.generation_config.save_pretrained(directory)
    return directory


def write_older_template(directory, template):
    (directory / "chat_template.jinja").unlink(missing_ok=True)
    edit_json(directory / "tokenizer_config.json", chat_template=template)


@pytest.mark.parametrize("format_name", ["chatml", "jinja", "own file"])
def test_chat_format_survives_import_and_export(checkpoint, tmp_path, format_name):
    run_dir, exported_dir = tmp_path / "run", tmp_path / "exported"
    system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
    expected = Choice("chatml", system=system, bos=False, thinks=False)
    if format_name == "jinja":
        template = PUBLISHED_TEMPLATES["qwen2.5"].replace("# Tools", "# Functions")
        (checkpoint / "chat_template.jinja").write_text(template)
        expected = Choice("jinja", template=template)
    if format_name == "own file":
        expected = Choice("jinja", template=PUBLISHED_TEMPLATES["openhermes"])
    own = tmp_path / "own.jinja"
    own.write_text(PUBLISHED_TEMPLATES["openhermes"])
    options = ["--chat-template", str(own)] if format_name == "own file" else []
    assert main(["import", str(checkpoint), str(run_dir), *options]) == 0
    assert main(["export", str(run_dir), str(exported_dir)]) == 0
    for directory in (checkpoint, run_dir, exported_dir)[bool(options) :]:
        assert load(directory).generation.chat == expected
    tokenizer = load(run_dir).tokenizer
    ends = json.loads((exported_dir / "generation_config.json").read_text())["eos_token_id"]
    assert ends == [tokenizer.eos_id, tokenizer.token_to_id("<|im_end|>")]
    reference = transformers.AutoTokenizer.from_pretrained(checkpoint)
    reference.chat_template = own.read_text() if options else reference.chat_template
    chat = [message | {"content": "a dog"} for message in QUESTION]
    for directory in (run_dir, exported_dir):
        tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(directory)
        for messages, has_prompt in ((chat, True), (chat[:2], False)):
            ids, expected_ids = (
                one.apply_chat_template(messages, add_generation_prompt=has_prompt, return_dict=False)
                for one in (tokenizer, reference)
            )
            assert ids == expected_ids


@pytest.mark.acceptance("F4")
def test_valid_and_invalid_templates_in_tokenizer_config(checkpoint):
    write_older_template(checkpoint, PUBLISHED_TEMPLATES["zephyr"])
    assert load(checkpoint).generation.chat == Choice("zephyr")
    names = {"tool_use": "zephyr", "default": "llama2"}
    templates = [
        {"name": name, "template": PUBLISHED_TEMPLATES[template]} for name, template in names.items()
    ]
    write_older_template(checkpoint, templates)
    assert load(checkpoint).generation.chat == Choice("llama2")
    for template in ("{{ cycler.__init__.__globals__.os.system('touch evil') }}", 7, [], [1], "{% for"):
        write_older_template(checkpoint, template)
        run = load(checkpoint)
        assert run.generation.chat is None
        with pytest.raises(UserError, match="set it with chat="):
            run.chat(QUESTION)
        assert not list(checkpoint.glob("evil"))
    assert isinstance(run.chat(QUESTION, chat="chatml", max_new_tokens=3), str)
    (checkpoint / "chat_template.jinja").write_text("x" * (1 << 21))
    with pytest.raises(UserError, match=r"chat_template.jinja has 2,097,152 bytes"):
        load(checkpoint)


def test_texts_in_unknown_template_stay_text(checkpoint):
    template = PUBLISHED_TEMPLATES["openhermes"].replace("message['content']", "message['content'].strip()")
    (checkpoint / "chat_template.jinja").write_text(template)
    run = load(checkpoint)
    assert run.generation.chat == Choice("jinja", template=template)
    assert isinstance(run.chat(CHAT[:1], max_new_tokens=3), str)
    session = run.chat_session()
    assert session.eos_ids == (run.tokenizer.token_to_id("<|im_end|>"), run.tokenizer.eos_id)
    plain, special_ids = [{"role": "user", "content": " the king "}], run.tokenizer.special_ids
    reference = transformers.AutoTokenizer.from_pretrained(checkpoint)
    expected = reference.apply_chat_template(plain, add_generation_prompt=True, return_dict=False)
    assert session.encode_prompt(parse_conversation(plain)) == expected
    ids = session.encode_prompt(parse_conversation(CHAT[:1]))
    # only the special tokens of the template
    assert [i for i in ids if i in special_ids] == [i for i in expected if i in special_ids]
    assert "the king </s> <|im_end|>" in run.tokenizer.decode([ids])[0]


FILE = "generation_config.json"


def language_model(parts=None, **settings):
    return random_run(config(**(parts or {})), GenerationConfig(**settings))


def warnings(checkpoint, *settings):
    hints = {"max_length": "; set max_new_tokens", "num_beams": "; set beam_size"}
    pairs = [one.split(" is ") for one in settings]
    return [f"{checkpoint / FILE}: {key} {value} is ignored{hints.get(key, '')}" for key, value in pairs]


def test_sampling_settings_are_read(gpt2):
    edit_json(gpt2 / FILE, do_sample=True, temperature=0.7, top_p=0.9)
    generation = ph.load(gpt2).generation
    # 50 is the default of the reference
    assert (generation.temperature, generation.top_p, generation.top_k) == (0.7, 0.9, 50)
    edit_json(gpt2 / FILE, do_sample=False)
    generation = ph.load(gpt2).generation
    assert (generation.temperature, generation.top_p) == (0, 1)
    message = r"generation_config.json: (sequence_bias is .*, expected lists|.*not a token id)"
    for value in (3, "a", [3], [[5, 1.0]], [[[5], "a"]], [[[5]]], {"5": 1}, [[["a"], 1.0]]):
        edit_json(gpt2 / FILE, sequence_bias=value)
        with pytest.raises(UserError, match=message):
            ph.load(gpt2)


@pytest.mark.parametrize(("neutral", "keys", "fields", "messages"), REFUSALS["generation"])
def test_unsupported_settings_warn(neutral, keys, fields, messages, gpt2, caplog):
    edit_json(gpt2 / FILE, **neutral)
    assert ph.load(gpt2).generation.max_new_tokens == neutral.get("max_new_tokens", 200)
    assert not caplog.messages
    edit_json(gpt2 / FILE, **keys)
    generation = ph.load(gpt2).generation
    assert fields.items() <= generation.model_dump().items()
    assert caplog.messages == warnings(gpt2, *messages)


@pytest.mark.parametrize("penalty", [1.0, 1.8])
def test_logit_biases_and_penalties_as_in_reference(penalty, tmp_path):
    """Two tokens are favoured that would not be generated, and one is forbidden; the penalty is of logits
    with their biases.
    """
    plain = language_model(temperature=0)
    [text] = plain.generate(["the king"], max_new_tokens=20)
    forbidden = plain.tokenizer.encode([text])[0][0]
    biases = {forbidden: -100, 70: 3.2, 90: 3.1}
    run = language_model(temperature=0, repetition_penalty=penalty, logit_bias=biases, max_new_tokens=20)
    exported_dir = export_run(run, tmp_path)
    reference = AutoModelForCausalLM.from_pretrained(exported_dir).eval()
    ids = run.tokenizer.encode(["the king"])[0]
    tokens = reference.generate(torch.tensor([ids]), pad_token_id=0)[0, len(ids) :].tolist()
    assert forbidden not in tokens and {70, 90} & {*tokens}
    expected, exported_model = run.tokenizer.decode([tokens])[0], ph.load(exported_dir)
    assert run.generate(["the king"])[0] == exported_model.generate(["the king"])[0] == expected != text
    assert exported_model.generation.logit_bias == run.generation.logit_bias


def test_exported_tokenizer_truncates_and_has_no_invented_padding(tmp_path):
    run = language_model()
    roles = {role: token for role, token in run.tokenizer.roles.items() if role != "pad_token"}
    run.tokenizer = Tokenizer(run.tokenizer._inner, roles)
    exported_dir = export_run(run, tmp_path)
    tokenizer, max_len = AutoTokenizer.from_pretrained(exported_dir), run.config.max_len
    assert tokenizer.model_max_length == max_len
    assert tokenizer.pad_token is None  # collators mask padding: as the end token it would mask every end
    tokenizer.pad_token = tokenizer.eos_token
    inputs = tokenizer(["the king", "the king " * 200], padding=True, truncation=True, return_tensors="pt")
    assert inputs["input_ids"].shape == (2, max_len)
    assert int(inputs["input_ids"][0, -1]) == run.tokenizer.eos_id
    reference = AutoModelForCausalLM.from_pretrained(exported_dir)
    assert reference(**inputs).logits.isfinite().all()
    assert reference.get_input_embeddings().padding_idx is None  # else the end had no gradient
    assert "pad_token" not in ph.load(exported_dir).tokenizer.role_ids


def test_settings_unknown_to_other_formats_warn(tmp_path, caplog):
    grammar = Choice("choice", choices=["yes", "no"])
    settings = {"frequency_penalty": 0.5, "grammar": grammar, "logit_bias": {5: 2.0}}
    fields = "does not support generation.frequency_penalty, generation.grammar"
    export_run(language_model(**settings), tmp_path)
    assert caplog.messages == [f"generation_config.json {fields}; there sampling ignores it"]
    caplog.clear()
    write_gguf(language_model(BASES["llama"], **settings), tmp_path)
    assert caplog.messages == [f"model.gguf {fields}, generation.logit_bias; there sampling ignores it"]
