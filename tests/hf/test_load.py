import sys
from pathlib import Path

import pytest
import torch
import transformers
from tests.hf.conftest import edit_json, edit_weights, make
from tests.hf.load_helpers import load_model, read_rows
from tests.hf.tables import make_case, read_table

import polyhead as ph
from polyhead.core.errors import UserError

ROWS = read_table(Path(__file__).parent / "refused_configs.txt", json_column=1)


@pytest.mark.whole
@pytest.mark.acceptance("F1", "F3", "F6", "F10")
@pytest.mark.parametrize(("case", "changes", "message"), ROWS)
def test_unsupported_config_is_refused(case, changes, message, tmp_path):
    make_case(tmp_path, case)
    edit_json(tmp_path / "config.json", **changes)
    with pytest.raises(UserError) as error:
        load_model(tmp_path)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("architectures", [["GPT2ForSequenceClassification"], None])
def test_unused_tensors_with_other_architecture(architectures, gpt2):
    edit_json(gpt2 / "config.json", architectures=architectures)
    edit_weights(gpt2, lambda tensors: tensors.update({"score.weight": torch.zeros(2, 16)}))
    name = (architectures or ["no architectures"])[0]
    message = f"score.weight. It was read as GPT2LMHeadModel; config.json names {name}"
    with pytest.raises(UserError) as error:
        ph.load(gpt2)
    assert str(error.value).endswith(message)


FORBIDDEN_EVENTS = {"pickle.find_class", "socket.connect", "os.system"}


@pytest.mark.acceptance("F3", "F5")
def test_loading_runs_no_code_of_checkpoint(gpt2):
    """Only the chat template runs, in a sandbox of its own."""
    values = {"chat_template": "{{ 1/0 }}", "tokenizer_class": "Evil", "icon": "http://127.0.0.1:9/x"}
    edit_json(gpt2 / "tokenizer_config.json", **values)
    (gpt2 / "modeling_evil.py").write_text("raise SystemExit('executed')")
    (gpt2 / "evil.pkl").write_bytes(b"cos\nsystem\n(S'echo executed'\ntR.")
    events, is_active = [], True

    def audit(event, args):
        # a hook stays until the process ends
        if not is_active:
            return
        if (
            event in FORBIDDEN_EVENTS
            or (event == "import" and "evil" in args[0])
            or (event == "subprocess.Popen" and args[1][1:] != ["-m", "polyhead.chat.sandbox.worker"])
        ):
            events.append((event, args))

    sys.addaudithook(audit)
    try:
        text = ph.load(gpt2).generate(["a dog"], max_new_tokens=3)
    finally:
        is_active = False
    assert len(text) == 1 and not events


@pytest.mark.whole
@pytest.mark.parametrize(("config", "sizes", "newer", "older"), read_rows("older_keys.jsonl"))
def test_older_keys_have_same_meaning(config, sizes, newer, older, tmp_path):
    reference, tokens = make(tmp_path, config, **sizes), torch.randint(5, 300, (2, 9))
    expected, path = ph.load(tmp_path).config, tmp_path / "config.json"
    edit_json(path, tuple(newer), **older)
    run = ph.load(tmp_path)
    assert run.config == expected
    other_model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=False).eval()
    with torch.no_grad():
        for other in (reference, other_model):
            torch.testing.assert_close(run.model(tokens), other(tokens).logits, rtol=1e-5, atol=1e-5)
