"""No verb publishes a file of the user because a run, which somebody else made, names it or links to it."""

import json
import os
import shutil
from pathlib import Path

import pytest
from tests.cli.cli_helpers import save_run
from tests.serve.conftest import serve_run

import polyhead as ph
from polyhead.cli import main
from polyhead.cli.verbs import VERBS
from polyhead.config.recipe import Recipe
from polyhead.core.errors import UserError
from polyhead.serve.http.run_pages import RunPages

SECRET = "swordfish"
TEXTS = ["ein hund bellt .", "a dog barks .", "zwei hunde bellen .", "two dogs bark ."]
KINDS = {
    "encoder-decoder": ("translation", {}),
    "decoder": ("language-model", {}),
    "encoder": ("masked-lm", {}),
    "classifier": ("classification", {"labels": ("bad", "good"), "lm_head": False}),
}
LINES = "a dog barks .\ntwo dogs bark .\n"
COMMANDS = {  # RUN is the hostile one
    "eval": "eval RUN",
    "translate": "translate RUN lines",
    "generate": "generate RUN dogs",
    "chat": "chat RUN",
    "classify": "classify RUN lines",
    "tag": "tag RUN lines",
    "answer": "answer RUN lines --context text",
    "score": "score RUN lines",
    "fill-mask": "fill-mask RUN masks",
    "embed": "embed RUN lines",
    "search": "search RUN lines --query dogs",
    "attention": "attention RUN dogs --out page.html",
    "explain": "explain RUN dogs --out page.html",
    "visualize": "visualize RUN --out page.html",
    "report": "report RUN --output page.html",
    "verify": "verify RUN",
    "params": "params RUN",
    "export": "export RUN new",
    "convert-gqa": "convert-gqa RUN new --kv-heads 1",
    "shortlist": "shortlist RUN",
    "import": "import RUN new",
}
# these read the data of a recipe that the user names, or no run; serve has a test of its own
OTHER_VERBS = {"demo", "init", "train", "estimate", "compare", "components", "experiments", "env", "serve"}


def write_secrets(directory: Path) -> None:
    rows = [f"{SECRET} {SECRET} {number}" for number in range(40)]
    files = {"a": rows, "b": rows, "txt": rows, "tsv": ["text\tlabel", *(f"{row}\tgood" for row in rows)]}
    for suffix, lines in files.items():
        (directory / f"secret.{suffix}").write_text("\n".join(lines) + "\n")
    (directory / "secret.json").write_text(json.dumps({"const": SECRET, "step": 1, "x": {SECRET: SECRET}}))
    table = f"| measure | value |\n| --- | --- |\n| {SECRET} | {SECRET} |\n"
    (directory / "secret.md").write_text(table)
    (directory / "secret.yaml").write_text(f"data: {{train: {SECRET}}}\n{SECRET}: 1\n")
    (directory / "secret.jsonl").write_text(json.dumps({"step": 1, SECRET: 1.5, "loss": 1.0}) + "\n")


def plant_recipe(run: Path, secrets: Path, kind: str) -> None:
    task, _ = KINDS[kind]
    suffixes = {"translation": ["a", "b"], "classification": ["tsv"]}.get(task, ["txt"])
    files = [f"secret.{suffix}" for suffix in suffixes]
    data = {"root": secrets, "train": files, "valid": files, "test": files, "cache_dir": run / "data"}
    recipe = Recipe.model_validate({"task": task, "data": data, "train": {"steps": 1}, "out": run})
    (run / "recipe.yaml").write_text(recipe.dump_yaml())


def plant_schema(run: Path, secrets: Path, kind: str) -> None:
    settings = json.loads((run / "generation_config.json").read_text())
    settings["grammar"] = {"name": "json", "schema": os.path.relpath(secrets / "secret.json")}
    (run / "generation_config.json").write_text(json.dumps(settings))


def plant_link(name: str):
    def link(run: Path, secrets: Path, kind: str) -> None:
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(secrets / f"secret{Path(name).suffix}")

    return link


LINKS = ["recipe.yaml", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
LINKS += ["examples.json", "baseline.json", "metrics.jsonl", "report.json", "README.md"]
PLANTS = {"recipe": plant_recipe, "schema": plant_schema} | {name: plant_link(name) for name in LINKS}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    for kind, (_, fields) in KINDS.items():
        fields = {"kind": "encoder" if kind == "classifier" else kind, "max_len": 48} | fields
        save_run(directory / kind, TEXTS, **fields)
        (directory / kind / "metrics.jsonl").write_text('{"step": 1, "loss": 1.0}\n')
    return directory


@pytest.fixture(params=PLANTS)
def hostile(request, runs, tmp_path, monkeypatch):
    """A directory with a hostile run of each kind, and beside it the files of the user."""
    monkeypatch.chdir(tmp_path)
    for name in ("secrets", "work"):
        (tmp_path / name).mkdir()
    write_secrets(tmp_path / "secrets")
    shutil.copytree(runs, tmp_path / "hostile")
    for kind in KINDS:
        PLANTS[request.param](tmp_path / "hostile" / kind, tmp_path / "secrets", kind)
    monkeypatch.chdir(tmp_path / "work")
    Path("lines").write_text(LINES)
    Path("masks").write_text("a <mask> barks .\n")
    return tmp_path / "hostile"


def find_secret(directory: Path) -> list[Path]:
    """The files with the secret that are no link to it; a cache of tokens would hide it."""
    files = [path for path in directory.rglob("*") if path.is_file() and not path.is_symlink()]
    return [path for path in files if SECRET.encode() in path.read_bytes() and "tokenizer" not in path.name]


@pytest.mark.parametrize("verb", COMMANDS)
def test_verb_shows_no_other_file(verb, hostile, capsys):
    for kind in KINDS:
        arguments = [word.replace("RUN", str(hostile / kind)) for word in COMMANDS[verb].split()]
        code = main(arguments)
        shutil.rmtree("new", ignore_errors=True)
        assert code in (0, 2)
        out, err = capsys.readouterr()
        assert SECRET not in out + err and "Traceback" not in err and "bug" not in err, arguments
        assert not find_secret(Path.cwd()) + find_secret(hostile), arguments


def test_each_verb_is_tried():
    assert COMMANDS.keys() | OTHER_VERBS == VERBS.keys()


def test_service_shows_no_other_file(hostile):
    for kind in KINDS:
        try:
            run = ph.load(hostile / kind, fast=True, device="cpu")
        except UserError:
            continue
        with serve_run(run) as client:
            for path in ("/", "/explain", "/v1/models", "/metrics", "/model_info", "/health"):
                response = client.ask(path)
                assert response.status_code in (200, 404) and SECRET not in response.text, path
    pages = RunPages(hostile)
    for path in ("/", *(f"/runs/{kind}" for kind in KINDS), "/compare"):
        response = pages.respond("GET", path, {"run": [*KINDS]}, "localhost")
        assert SECRET not in response.body.decode(), path
