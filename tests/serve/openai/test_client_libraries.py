"""Client libraries as users call them, against ``polyhead serve`` in a process of its own.

Those that are not installed are skipped: pip install openai langchain-openai litellm lm-eval.
"""

import json

import numpy as np
import pytest
import torch
import transformers
from tests.cli.serve_helpers import serve_process
from tests.serve.conftest import build_run
from tests.serve.tool_call_helpers import TOOLS, build_tool_run

from polyhead.run.load import load

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PROMPT, QUESTION = "a dog barks .", [{"role": "user", "content": "zwei hunde bellen ."}]
THINKING_OUTPUT = "<think>\na dog barks .\n</think>\n\ntwo dogs bark"
PAIRS = [("dogs", "a dog barks ."), ("dogs", "zwei hunde"), ("dogs", "two dogs bark .")]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "talker"
    build_tool_run("chatml", None, thinks=True).save(directory)
    return load(directory, fast=True)


@pytest.fixture(scope="module")
def service(run):
    assert run.directory is not None
    with serve_process(run.directory, "--speculative", "lookup") as process:
        yield process


@pytest.fixture(scope="module")
def reranker(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "reranker"
    build_run("classifier", labels=("score",)).save(directory)
    with serve_process(directory) as process:
        yield load(directory, fast=True), process


def generate_greedy(run, prompt=PROMPT, tokens=12):
    (text,) = run.generate([prompt], temperature=0, max_new_tokens=tokens)
    return text


def answer_greedy(run, tokens=12):
    return run.chat(QUESTION, temperature=0, max_new_tokens=tokens)


def test_openai_reads_the_answers_of_the_run(run, service):
    client = pytest.importorskip("openai").OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0)
    options = {"model": "talker", "temperature": 0, "max_tokens": 12}
    assert [model.id for model in client.models.list()] == ["talker"]
    assert client.completions.create(prompt=PROMPT, **options).choices[0].text == generate_greedy(run)
    create = client.chat.completions.create
    assert create(messages=QUESTION, **options).choices[0].message.content == answer_greedy(run)
    chunks = list(create(messages=QUESTION, stream=True, stream_options={"include_usage": True}, **options))
    content = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert content == answer_greedy(run) and chunks[-1].usage.completion_tokens == 12


def test_langchain_reads_the_answers_of_the_run(run, service):
    langchain = pytest.importorskip("langchain_openai")
    options = {"base_url": f"{service.url}/v1", "api_key": "none", "model": "talker", "max_retries": 0}
    chat = langchain.ChatOpenAI(**options, temperature=0, max_tokens=12)
    talk = [("user", QUESTION[0]["content"])]
    assert chat.invoke(talk).content == answer_greedy(run)
    assert "".join(part.content for part in chat.stream(talk)) == answer_greedy(run)
    messages_list = [("system", "two"), ("system", "dogs"), *talk, ("assistant", "two")]
    assert isinstance(chat.invoke(messages_list).content, str)
    long_chat = langchain.ChatOpenAI(**options, temperature=0, max_tokens=200)
    tools = long_chat.bind_tools(TOOLS, tool_choice="now", parallel_tool_calls=False)
    (call,) = tools.invoke(talk).tool_calls
    assert (call["name"], call["args"]) == ("now", {})
    schema = {"title": "Dog", "type": "object", "properties": {"age": {"enum": [3, 33]}}, "required": ["age"],
        "additionalProperties": False}  # fmt: skip
    schema_chat = long_chat.with_structured_output(schema, method="json_schema")
    assert schema_chat.invoke(talk)["age"] in (3, 33)
    text = langchain.OpenAI(**options, temperature=0, max_tokens=12)
    assert text.invoke(PROMPT) == generate_greedy(run)
    embedder = langchain.OpenAIEmbeddings(**options, check_embedding_ctx_length=False, dimensions=5)
    result = embedder.embed_documents([PROMPT, "dogs"])
    np.testing.assert_allclose(result, run.embed([PROMPT, "dogs"]).numpy()[:, :5], atol=1e-4)


def test_litellm_reads_the_answers_of_the_run(run, service, reranker, monkeypatch):
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm = pytest.importorskip("litellm")
    options = {"api_base": f"{service.url}/v1", "api_key": "none"}
    talk = {"model": "openai/talker", "messages": QUESTION, **options}
    message = litellm.completion(**talk, temperature=0, max_tokens=12).choices[0].message
    assert message.content == answer_greedy(run)
    parts = litellm.completion(**talk, temperature=0, max_tokens=12, stream=True)
    assert "".join(part.choices[0].delta.content or "" for part in parts) == answer_greedy(run)
    for stream in (False, True):
        thinking = litellm.completion(
            **talk, max_tokens=200, stream=stream,
            extra_body={"structured_outputs": {"choice": [THINKING_OUTPUT]}, "ignore_eos": False},
        )  # fmt: skip
        messages = [part.choices[0].delta for part in thinking] if stream else [thinking.choices[0].message]
        for name, expected in (("reasoning_content", "a dog barks ."), ("content", "two dogs bark")):
            assert "".join(getattr(one, name, None) or "" for one in messages) == expected
    completion = litellm.text_completion(
        model="text-completion-openai/talker", prompt=PROMPT, temperature=0, max_tokens=12, **options
    )
    assert completion.choices[0].text == generate_greedy(run)
    result = litellm.embedding(model="openai/talker", input=[PROMPT], encoding_format="float", **options)
    np.testing.assert_allclose(result.data[0]["embedding"], run.embed([PROMPT]).numpy()[0], atol=1e-4)
    ranker, other = reranker
    scores = [one.probabilities["score"] for one in ranker.classify(PAIRS)]
    ranking = litellm.rerank(
        model="hosted_vllm/reranker", query="dogs", documents=[pair[1] for pair in PAIRS],
        api_base=f"{other.url}/v1", api_key="none", top_n=3,
    )  # fmt: skip
    order = [one["index"] for one in ranking.results]
    assert order == sorted(range(3), key=lambda i: -scores[i])
    assert ranking.results[0]["relevance_score"] == pytest.approx(max(scores), abs=1e-5)


def test_lm_eval_reads_the_answers_of_the_run(run, service, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    pytest.importorskip("lm_eval")
    datasets = pytest.importorskip("datasets")
    evaluator = pytest.importorskip("lm_eval.evaluator")
    task = pytest.importorskip("lm_eval.api.task")
    rows = [{"text": "a dog", "choices": [" barks .", " bark", " bellen"], "label": i} for i in range(3)]
    data = {"test": datasets.Dataset.from_list(rows)}
    common = {"custom_dataset": lambda **_: data, "test_split": "test", "doc_to_text": "{{text}}",
        "target_delimiter": ""}  # fmt: skip
    choices = task.ConfigurableTask(config={
        **common, "task": "choices", "output_type": "multiple_choice", "doc_to_choice": "{{choices}}",
        "doc_to_target": "label", "metric_list": [{"metric": "acc"}],
    })  # fmt: skip
    free = task.ConfigurableTask(config={
        **common, "task": "free", "output_type": "generate_until", "doc_to_target": "{{choices[0]}}",
        "generation_kwargs": {"until": ["\n\n"], "do_sample": False, "max_gen_toks": 12},
        "metric_list": [{"metric": "exact_match"}],
    })  # fmt: skip
    assert run.directory is not None
    transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(run.directory / "tokenizer.json"), eos_token="</s>", pad_token="<pad>"
    ).save_pretrained(tmp_path)
    options = {"model": "talker", "tokenizer": str(tmp_path), "tokenizer_backend": "huggingface"}
    result = evaluator.simple_evaluate(
        model="local-completions", tasks=[choices, free], bootstrap_iters=0, log_samples=True,
        model_args={**options, "base_url": f"{service.url}/v1/completions"},
    )  # fmt: skip
    expected = []
    for choice in rows[0]["choices"]:
        prefix_ids, ids = run.tokenizer.encode(["a dog", "a dog" + choice])
        with torch.inference_mode():
            log_probs = run.model(torch.tensor([ids]))[0].log_softmax(-1)
        expected.append(sum(float(log_probs[t - 1, ids[t]]) for t in range(len(prefix_ids), len(ids))))
    assert result["results"]["choices"]["acc,none"] == pytest.approx(1 / 3)
    for sample in result["samples"]["choices"]:
        assert [float(one[0][0]) for one in sample["resps"]] == pytest.approx(expected, abs=1e-4)
    assert result["samples"]["free"][0]["resps"][0][0].strip() == generate_greedy(run, "a dog").strip()
    chat = evaluator.simple_evaluate(
        model="local-chat-completions", tasks=[free], bootstrap_iters=0, log_samples=True,
        apply_chat_template=True, model_args={**options, "base_url": f"{service.url}/v1/chat/completions"},
    )  # fmt: skip
    answer = run.chat([{"role": "user", "content": "a dog"}], temperature=0, max_new_tokens=12)
    assert chat["samples"]["free"][0]["resps"][0][0].strip() == answer.strip()


def test_requests_of_vllm_bench_are_answered(run, service):
    """As ``vllm bench serve`` sends them: nulls, ignore_eos, and usage at the end of a stream."""
    nulls = dict.fromkeys(("logprobs", "best_of", "logit_bias", "top_p", "top_k", "min_p", "stop", "seed"))
    common = {"model": "talker", "temperature": 0.0, "repetition_penalty": 1.0, "ignore_eos": True,
        "stream": True, "stream_options": {"include_usage": True}, **nulls}  # fmt: skip
    for path, fields in (
        ("/v1/completions", {"prompt": PROMPT, "max_tokens": 17}),
        ("/v1/chat/completions", {"max_completion_tokens": 17, "messages": [
            {"role": "user", "content": [{"type": "text", "text": PROMPT}]}]}),
    ):  # fmt: skip
        answer = service.http.post(path, json=common | fields)
        assert answer.status_code == 200 and "x-warnings" not in answer.headers, answer.text
        lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
        assert lines[-1] == "[DONE]"
        assert json.loads(lines[-2])["usage"]["completion_tokens"] == 17
