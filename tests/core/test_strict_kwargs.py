import pytest
import torch
from tests.run.run_helpers import make_run

import polyhead as ph
from polyhead.core.errors import UserError, command_line
from polyhead.core.strict_kwargs import to_python_words

DECODE = "decode expects a list of ids per text, got"
IDS_TO_TOKENS = "ids_to_tokens expects the ids of one text, got"
ENGINE = "unknown option of the engine"


@pytest.mark.whole
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda run: run.tokenizer.decode([1, 2]), f"{DECODE} those of one; write decode([ids])"),
        (lambda run: run.tokenizer.decode(torch.tensor([1, 2])), f"{DECODE} those of one; write"),
        (lambda run: run.tokenizer.decode([[1], [2, -1]]), f"{DECODE} -1 among them"),
        (lambda run: run.tokenizer.decode([["a"]]), f"{DECODE} 'a' among them"),
        (lambda run: run.tokenizer.ids_to_tokens([[1, 2]]), f"{IDS_TO_TOKENS} those of several; write"),
        (lambda run: run.tokenizer.ids_to_tokens(["a"]), f"{IDS_TO_TOKENS} 'a' among them"),
        (lambda run: run.tokenizer.token_to_id(3), "no token 3 in the vocabulary"),
        (lambda run: run.display_token("x"), "token is 'x'; expected an integer, 0 or more"),
        (lambda run: run.classify(["a"], batch_size=3), "batch_size: unknown key; did you mean"),
        (lambda run: run.score(["a"], ["b"], batch_tokens="3"), "batch_tokens is '3'; expected an integer,"),
        (lambda run: run.perplexity(["a"], ["b"], xyz=3), "xyz: unknown key; known: sources, targets"),
        (lambda run: run.attention_maps("a", traget="b"), "traget: unknown key; did you mean 'target'?"),
        (lambda run: run.translate(["a"], ["b"]), "translate takes texts by position, got 2; pass the"),
        (lambda run: run.translate(), "translate: missing a required argument: texts"),
        (lambda run: run.engine(max_num_seq=3), f"{ENGINE} 'max_num_seq'; did you mean 'max_num_seqs'?"),
        (lambda run: run.engine(max_num_seqs="3"), "engine: max_num_seqs is '3'; expected an integer, 1 or"),
        (lambda run: run.engine().submit(5), "a request must be one text or its tokens, got 5"),
        (lambda run: run.engine().submit("a", seed="x"), "seed is 'x'; expected an integer, 0 or more"),
        (lambda run: ph.load("runs/no", devic="cpu"), "devic: unknown key; did you mean 'device'?"),
        (lambda run: ph.build(run.config, sed=1), "sed: unknown key; did you mean 'seed'?"),
        (lambda run: ph.load("runs/no", fast="no"), "fast is 'no'; expected true or false"),
        (lambda run: run.translate(["a"], shortlist="x"), "shortlist is 'x'; expected true or false"),
        (lambda run: run.translate({"a": "b"}), "run.translate expects a list of texts, got dict"),
        (lambda run: run.hypotheses(["a"], progress=5), "progress is 5; expected a function"),
        (lambda run: run.evaluate(["a"], ["b"], lang=5), "lang is 5; expected a text"),
        (lambda run: run.save(5), "directory is 5; expected a text or a path"),
        (lambda run: run.save(__file__), f"directory {__file__} is a file; give a directory"),
        (lambda run: run.engine(deterministic="yes"), "deterministic is 'yes'; expected true or false"),
        (lambda run: run.engine().submit("a", trim=5), "trim is 5; expected true or false"),
        (lambda run: run.engine().submit("a", stop_token_ids=5), "stop_token_ids is 5; expected a list"),
        (lambda run: run.engine().submit("a", top_logprobs=-1), "top_logprobs is -1; expected an integer, 0"),
        (lambda run: run.translate(["a"], truncate="no"), "truncate is 'no'; expected true or false"),
        (lambda run: run.translate(["a"], refusals=5), "refusals is 5; expected a dict"),
        (lambda run: run.hypotheses(["a"], row_offset="x"), "row_offset is 'x'; expected an integer, 0 or"),
        (lambda run: make_run(kind="decoder").generate(["a"], refusals=5), "refusals is 5; expected a dict"),
        (lambda run: make_run(kind="decoder").generate(["a"], seed=""), "seed is ''; expected an integer"),
        (
            lambda run: make_run(kind="decoder").generate(["a"], unknown_rows=[]),
            "unknown_rows is []; expected",
        ),
        (
            lambda run: make_run(kind="decoder").engine().submit("a", source_lang="de"),
            "source_lang and target_lang are supported only for translations",
        ),
        (lambda run: ph.estimate(run.config, seconds="x"), "seconds is 'x'; expected a number above 0"),
        (lambda run: ph.estimate(run.config, layout=5), "layout is 5; expected a ParallelLayout"),
        (lambda run: ph.estimate(run.config, decode_batches=2), "decode_batches: unknown key; did you mean"),
    ],
)
def test_invalid_argument_is_refused_in_one_line(call, message):
    with pytest.raises(UserError) as error:
        call(make_run())
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


def test_messages_outside_of_commands_have_python_words():
    for text, expected in (
        ("--resume: set --api-key-file", "resume=True: set api_key_file"),
        (
            "first: polyhead init 'a b' c --output d.yaml",
            "first: ph.init_recipe('a b', 'c', output='d.yaml')",
        ),
        ("train it: polyhead train x --resume", "train it: ph.train('x', resume=True)"),
        ("start with polyhead train x --processes 2", "start with polyhead train x --processes 2"),
        ("create one: polyhead shortlist x", "create one: polyhead shortlist x"),
        ("no file '--x'", "no file '--x'"),
    ):
        assert to_python_words(text) == expected
    with command_line(), pytest.raises(UserError, match=r"first: polyhead train recipes/trec\.yaml"):
        ph.load("recipes/trec.yaml")
