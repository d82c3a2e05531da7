import pytest
from tests.export.conftest import BASES, CONFIGS, SIZES, TEXTS, random_run, read_refused_configs

from polyhead import Choice
from polyhead.cli import main
from polyhead.cli.export import FORMATS
from polyhead.config.model import PART_REGISTRIES
from polyhead.config.presets import PRESETS
from polyhead.core.errors import UserError
from polyhead.export.ctranslate2 import check_ct2
from polyhead.export.onnx import check_onnx
from polyhead.export.targets import describe_targets, find_obstacles
from polyhead.run.run import Run
from polyhead.tokenizers.train_tokenizer import train_tokenizer


@pytest.mark.parametrize(("config", "message"), read_refused_configs("onnx"))
def test_unsupported_part_is_refused(config, message):
    with pytest.raises(UserError) as error:
        check_onnx(random_run(**config).model, "fp32")
    assert str(error.value).startswith(message)


WINDOW = {"name": "softmax", "window": 4}
REFUSED_PREFIX = "CTranslate2 does not support this model: "


@pytest.mark.whole
@pytest.mark.parametrize(("config", "message"), read_refused_configs("ctranslate2"))
def test_unsupported_component_is_refused(config, message):
    with pytest.raises(UserError) as error:
        check_ct2(random_run(**config).model, "fp32")
    assert str(error.value).startswith(REFUSED_PREFIX + message)


def test_all_unsupported_components_are_named(tmp_path, capsys):
    run = random_run(norm="batchnorm", feed_forward="prelu", attention=WINDOW)
    message = r"window of attention is 4.*; norm is 'batchnorm'.*; feed_forward is 'prelu'"
    with pytest.raises(UserError, match=message):
        check_ct2(run.model, "fp32")
    random_run(kind="decoder", attention=WINDOW).save(tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "new" / "out"), "--to", "ctranslate2"]) == 2
    assert capsys.readouterr().err.startswith(
        f"polyhead: {REFUSED_PREFIX}window of attention is 4, expected null"
    )
    assert [x.name for x in tmp_path.iterdir()] == ["run"]


KINDS = {"translator": {"kind": "encoder-decoder"}, "decoder": {"kind": "decoder"}}
KINDS |= {"masked": {"kind": "encoder"}}
KINDS |= {"classifier": {"kind": "encoder", "labels": ("bad", "good"), "pooling": "first"}}
LINEAR_LAYER, LSTM_LAYER = {"attention": "linear"}, {"block": "lstm"}


LLAMA = BASES["llama"]
# components and options that one exporter has and another has not, on models that some family has
VARIANTS = CONFIGS["targets"]


# small presets that differ, each part of each registry in each kind of model, and the variants
ALL_CONFIGS = {}
for preset_name, fields in PRESETS.items():
    if fields | SIZES | {"head_dim": None} not in ALL_CONFIGS.values():
        ALL_CONFIGS[preset_name] = fields | SIZES | {"head_dim": None}
ALL_CONFIGS |= VARIANTS | {
    f"{kind}, {field} {name}": fields | {field: name}
    for kind, fields in KINDS.items()
    for field in ("block", "attention", "position", "norm", "residual", "feed_forward")
    for name in PART_REGISTRIES[field].names()
}


def export_error(run, target, directory):
    """The message with which the export refuses a run; empty where it succeeds."""
    directory.mkdir()
    options = {"family": None, "shard_size": None} if target == "hf" else {}
    if run.config.generator_layers:
        run.model = run.model.encoder_only()
    try:
        FORMATS[target](run, "fp32", **options)(directory)
    except UserError as error:
        return str(error)
    return ""


def small_run(name):
    try:
        return random_run(**ALL_CONFIGS[name])
    except UserError as error:
        pytest.skip(f"not applicable: no such model: {error}")


@pytest.mark.parametrize("name", ALL_CONFIGS)
def test_obstacles_equal_export_errors(name, tmp_path):
    run = small_run(name)
    for target, obstacle in find_obstacles(run.config, run.tokenizer).items():
        if target != "onnx" or obstacle:  # graphs take long to write, and are refused at once
            message = export_error(run, target, tmp_path / target)
            assert bool(obstacle) == bool(message), (target, obstacle, message)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL_CONFIGS)
def test_graphs_are_written_without_obstacle(name, tmp_path):
    run = small_run(name)
    if not find_obstacles(run.config)["onnx"]:
        assert not export_error(run, "onnx", tmp_path / "onnx")


TOKENIZERS = ["bpe", "byte", "char", "unigram", "wordpiece", {"name": "bpe", "lowercase": True}]


@pytest.mark.parametrize("kind", TOKENIZERS, ids=str)
def test_obstacle_of_tokenizer(kind, tmp_path):
    run = random_run(**LLAMA)
    run = Run(run.model, train_tokenizer(TEXTS * 5, Choice.from_config(kind), 280), run.generation)
    obstacle = find_obstacles(run.config, run.tokenizer)["gguf"]
    assert bool(obstacle) == bool(export_error(run, "gguf", tmp_path / "out"))


def test_description_of_targets():
    assert describe_targets(find_obstacles(random_run(position="rope").config)) == (
        "exports: CTranslate2, ONNX; not Hugging Face: position is 'rope'; not GGUF: language models only"
    )
    description = describe_targets(find_obstacles(random_run(**LLAMA).config))
    assert description == "exports: Hugging Face, CTranslate2, ONNX, GGUF"
