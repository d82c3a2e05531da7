import json

import pytest
import transformers
from tests.chat.published_chats import PUBLISHED_TEMPLATES
from tests.hf.conftest import edit_json, make

from polyhead.cli import main
from polyhead.core.choice import Choice
from polyhead.core.errors import UserError
from polyhead.generation.chat import parse_conversation
from polyhead.run.load import load

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
        with pytest.raises(UserError, match="set it with --chat"):
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
