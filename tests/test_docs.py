"""What the documentation says is run, parsed, looked up and compared with the code."""

from __future__ import annotations

import inspect
import io
import json
import os
import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import typer
import yaml

from polyhead.cli import main
from polyhead.cli.part_docs import parse_docstring, read_part_doc
from polyhead.cli.recipe_keys import list_keys
from polyhead.cli.verbs import VERBS
from polyhead.config import yaml_io
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.recipe import Recipe
from polyhead.core.registry import ALL_REGISTRIES, Registry
from polyhead.run.recipe import load_recipe, validate_recipe

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "recipes").glob("*.md"),
        *(ROOT / "notebooks").glob("*.md"),
    ]
)
TRANSLATED = (
    "guide", "explain", "serving", "other_engines", "compare", "cost", "distributed", "checkpoints",
)  # fmt: skip
PAIRS = [
    ("README.md", "README.zh-CN.md"),
    *((f"docs/{page}.md", f"docs/{page}.zh-CN.md") for page in TRANSLATED),
]
WITHIN_ATTENTION = {"feature_map", "similarity"}  # options of an attention, listed on its own page
WITHOUT_EQUATION = {"cache", "tokenizer", "none"}  # kinds, and parts
WITHOUT_PAPER = {"none", "tanh", "static", "constant", "char", "byte", "exp", "plain"}
EXCERPT = re.compile(r"# (src/\S+)\n")
FILE = re.compile(r"# ((?!src/)\S+/\S+\.py)\n")
SHOWN_BY_ACTING = {  # pages whose blocks for the shell are run as well
    "docs/own_parts.md", "docs/export.md", "docs/other_engines.md", "docs/other_engines.zh-CN.md",
}  # fmt: skip
TINY = {
    "tokenizer.vocab_size": 280, "model.d_model": 16, "model.n_layers": 1, "model.n_heads": 2,
    "model.max_len": 128,
    "train.steps": 4, "train.max_tokens": 512, "train.save_every": 2, "train.log_every": 2, "train.ema": 0.9,
}  # fmt: skip
SHORT = {"generation.max_length_ratio": 1.0, "generation.max_length_extra": 2}  # translations


def parts() -> list[tuple[Registry[Any], str]]:
    return [(registry, part) for registry in ALL_REGISTRIES for part in registry.names()]


class Fence(NamedTuple):
    """A fenced block, and the line it begins on."""

    language: str
    text: str
    line: int


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def fences(text: str) -> list[Fence]:
    found = re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
    return [Fence(m[1], m[2], text[: m.start()].count("\n") + 1) for m in found]


def prose(text: str) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)


def headings(text: str) -> list[str]:
    return re.findall(r"^(#+ .*)$", prose(text), re.M)


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    plain = re.sub(r"[^\w\- ]", "", heading.lstrip("#").strip().lower())
    return plain.replace(" ", "-")


def table(text: str, first: str) -> list[list[str]]:
    """The cells of the tables whose head begins with that word, escapes undone."""
    rows, inside = [], False
    for line in text.splitlines():
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        inside = bool(cells) and (inside or cells[0] == first)
        if inside and cells[0] != first and not set(cells[0]) <= set("-: "):
            rows.append(cells)
    return rows


def section(text: str, title: str) -> str:
    """What stands under a heading of the second level."""
    parts = re.split(r"^## (.*)$", text, flags=re.M)
    found = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert title in found, f"no section '## {title}'"
    return found[title]


def commands(text: str) -> Iterator[list[str]]:
    """Every call of ./dev or polyhead in blocks for the shell and in code spans, as words."""
    spans = re.findall(r"`((?:polyhead|\./dev) [^`]+)`", prose(text))
    blocks = [fence.text.replace("\\\n", " ") for fence in fences(text) if fence.language == "sh"]
    lines = [line for block in blocks for line in block.splitlines()]
    for line in [*lines, *spans]:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if not set(word) <= set("|&;<>()"):
                words.append(word)
                continue
            if words and words[0] in ("polyhead", "./dev"):
                yield words
            words = []


def guide_recipe() -> dict[str, Any]:
    """The recipe of a translator that the guide explains."""
    blocks = [fence.text for fence in fences(section((ROOT / "docs/guide.md").read_text(), "The recipe"))]
    (recipe,) = [text for text in blocks if text.startswith("data:\n  root: .")]
    tree: dict[str, Any] = yaml_io.parse_yaml(recipe)
    return tree


def language_recipe() -> dict[str, Any]:
    """The recipe of a language model in the guide."""
    (recipe,) = (
        f.text
        for f in fences((ROOT / "docs/guide.md").read_text())
        if f.text.startswith("task: language-model")
    )
    tree: dict[str, Any] = yaml_io.parse_yaml(recipe)
    return tree


def classes_recipe() -> dict[str, Any]:
    """The recipe of a classifier in the guide."""
    (recipe,) = (
        f.text
        for f in fences((ROOT / "docs/guide.md").read_text())
        if f.text.startswith("task: {name: classification")
    )
    tree: dict[str, Any] = yaml_io.parse_yaml(recipe)
    return tree


def act(line: str) -> None:
    """Run a line for the shell: a call of polyhead, or an echo into one."""
    said = re.match(r'echo "(.*)" \| ', line)
    (words,) = commands(f"```sh\n{line}\n```")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(said[1].encode() + b"\n" if said else b"")))
        assert main(words[1:]) == 0, line


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory to stand in, with the files that the pages tell to write; what is imported from it is
    forgotten.
    """
    monkeypatch.chdir(tmp_path)
    for page in PAGES:
        for fence in fences(page.read_text()):
            if file := FILE.match(fence.text):
                (tmp_path / file[1]).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / file[1]).write_text(fence.text)
    yield tmp_path
    for module in [m for m in sys.modules if m.partition(".")[0] == "my_pkg"]:
        del sys.modules[module]


def lines_of(rows: list[list[str]]) -> str:
    return "".join(" ".join(row) + "\n" for row in rows)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with text, the recipes of the guide, and their runs, but tiny."""
    home = tmp_path_factory.mktemp("docs")
    words = {
        "a": "ein",
        "dog": "hund",
        "barks": "bellt",
        "two": "zwei",
        "red": "rot",
        "here": "hier",
        "cat": "katze",
    }
    order = [[*words][i * 3 % 7 :] + [*words][: i % 5] for i in range(40)]
    for split, rows in (("train", order), ("valid", order[:6]), ("test", order[6:9])):
        (home / f"{split}.en").write_text(lines_of(rows))
        (home / f"{split}.de").write_text(lines_of([[words[w] for w in row] for row in rows]))
    (home / "plays.txt").write_text("".join(f"ROMEO:\n{' '.join(row)}.\n\n" for row in order))
    reviews = [f"{'ab'[len(row) % 2]}\t{' '.join(row)}\n" for row in order]
    (home / "reviews.tsv").write_text("label\tsentence\n" + "".join(reviews))
    for file, shrunk, sizes in (
        ("mine.yaml", guide_recipe(), TINY | SHORT),
        ("plays.yaml", language_recipe(), TINY),
        ("reviews.yaml", classes_recipe(), TINY),
    ):
        for key, value in sizes.items():
            yaml_io.assign(shrunk, key.split("."), value, Recipe)
        (home / file).write_text(yaml_io.dump_yaml(shrunk))
    before = Path.cwd()
    os.chdir(home)
    try:
        assert main(["train", "mine.yaml"]) == 0
        assert main(["train", "plays.yaml"]) == 0
        assert main(["train", "reviews.yaml"]) == 0
    finally:
        os.chdir(before)
    return home


@pytest.fixture
def home(trained: Path, beside: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of it, to stand in; what an example registers is forgotten again."""
    shutil.copytree(trained, beside, dirs_exist_ok=True)
    for registry in ALL_REGISTRIES:
        registry.names()
        monkeypatch.setattr(registry, "_parts", dict(registry._parts))
    threads = torch.get_num_threads()
    yield beside
    torch.set_num_threads(threads)


WITH_PYTHON = [page for page in PAGES if any(f.language == "python" for f in fences(page.read_text()))]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("page", WITH_PYTHON, ids=name)
def test_the_examples_run(page: Path, home: Path) -> None:
    namespace: dict[str, Any] = {"__name__": "docs"}
    for fence in fences(page.read_text()):
        if fence.language == "sh" and name(page) in SHOWN_BY_ACTING:
            for line in fence.text.splitlines():
                act(line)
        elif fence.language == "python" and not EXCERPT.match(fence.text) and not FILE.match(fence.text):
            # blank lines before it, so that a traceback names the line of the page
            exec(compile("\n" * fence.line + fence.text, str(page), "exec"), namespace)


@pytest.mark.parametrize("page", WITH_PYTHON, ids=name)
def test_excerpts_stand_in_the_source(page: Path) -> None:
    for fence in fences(page.read_text()):
        if cited := EXCERPT.match(fence.text):
            source = iter((ROOT / cited[1]).read_text().splitlines())
            for line in filter(None, fence.text.splitlines()[1:]):
                assert line in source, f"{cited[1]} has no line {line!r} there"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_parse(page: Path, beside: Path) -> None:
    verbs_of_dev = runpy.run_path(str(ROOT / "dev"))["EXTRAS"]
    for words in commands(page.read_text()):
        program, verb, *rest = words
        if words[:2] == ["./dev", "--torch"]:
            program, _, _, verb, *rest = words
        if program == "./dev":
            assert verb in verbs_of_dev, words
        elif not verb.startswith("-"):
            assert verb in VERBS, words
            if rest:  # a verb alone is only a mention of it
                parse(verb, rest)


def without_language(arguments: list[str]) -> list[str]:
    """The arguments without ``--lang LANGUAGE``, which every verb takes and none parses."""
    place = arguments.index("--lang") if "--lang" in arguments else len(arguments)
    return [*arguments[:place], *arguments[place + 2 :]]


def parse(verb: str, arguments: list[str]) -> None:
    """Fail if the verb does not take the arguments; changes to a recipe must be a recipe's keys."""
    arguments = without_language(arguments)
    app = typer.Typer(add_completion=False)
    app.command(verb)(import_module(f"polyhead.cli.{VERBS[verb][0]}").run)
    command = typer.main.get_command(app)
    try:
        context = command.make_context(verb, list(arguments))
    except typer.Exit:  # --keys, --help
        return
    if changes := context.params.get("changes"):
        tree = guide_recipe()
        for place, value in yaml_io.parse_overrides(changes, Recipe):
            yaml_io.assign(tree, place, value, Recipe)
        if tree["data"].get("valid_fraction"):  # of another recipe, which names no files
            del tree["data"]["valid"]
        validate_recipe(tree)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_recipes_are_valid(page: Path, beside: Path) -> None:
    for fence in fences(page.read_text()):
        if fence.language == "yaml":
            given = yaml_io.parse_yaml(fence.text)
            shared = "valid_fraction" in given.get("data", {})
            base = {"data": {"train": ["a"], **({} if shared else {"valid": ["b"]})}, "train": {"steps": 1}}
            validate_recipe(given | {key: base[key] | given.get(key, {}) for key in base})


def test_the_recipes_folder_is_listed_and_loads() -> None:
    listed = (ROOT / "recipes/README.md").read_text()
    for path in (ROOT / "recipes").glob("*.yaml"):
        assert f"({path.name})" in listed
        load_recipe(path)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text())):
        if re.match(r"https?://", target):
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        assert path.exists(), f"{name(page)} links to {target}, which is missing"
        if anchor:
            assert anchor in map(slug, headings(path.read_text())), f"{name(page)}: no heading {target}"


@pytest.mark.parametrize("registry", ALL_REGISTRIES, ids=lambda registry: registry.kind)
def test_the_page_of_a_kind_is_what_the_docstrings_say(registry: Registry[Any]) -> None:
    written = runpy.run_path(str(ROOT / "docs/parts/write.py"))["pages"]()
    path = ROOT / f"docs/parts/{registry.kind}.md"
    assert path.read_text() == written[path], "./dev docs writes it anew"


@pytest.mark.parametrize(("registry", "part"), parts(), ids=lambda x: getattr(x, "kind", x))
def test_every_part_is_told_whole(registry: Registry[Any], part: str) -> None:
    about, doc = read_part_doc(registry, part), inspect.cleandoc(registry.get(part).__doc__ or "")
    assert about.summary.endswith("."), "its first sentence"
    assert all(about.options.values()), "an option without a meaning"
    assert parse_docstring(doc).options.keys() <= registry.options(part).keys(), (
        "the meaning of an option that is gone"
    )
    assert about.fields.get("When"), "when to use it"
    assert about.fields.get("Paper") or part in WITHOUT_PAPER, "where it comes from"
    assert about.fields.get("Equation") or WITHOUT_EQUATION & {registry.kind, part}, "what it computes"
    assert len(doc.splitlines()) <= 30, "a docstring that needs a page"


def test_what_was_measured_is_of_parts_that_exist() -> None:
    facts = yaml.safe_load((ROOT / "docs/parts/measured.yaml").read_text())
    kinds = {registry.kind: registry for registry in ALL_REGISTRIES}
    for kind, of_parts in facts.items():
        assert set(of_parts) <= set(kinds[kind].names())
        for fact in [fact for facts in of_parts.values() for fact in facts]:
            assert set(fact) == {"fact", "command"}


def test_the_page_of_parts_lists_every_part() -> None:
    text = (ROOT / "docs/parts/README.md").read_text()
    for registry in ALL_REGISTRIES:
        (row,) = [line for line in text.splitlines() if f"]({registry.kind}.md)" in line]
        named = set(re.findall(r"`([\w-]+)`", row.split("|")[3]))
        assert named == set(registry.names()), registry.kind


def test_the_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 130
    blocks = re.split(r"\n\n|\n(?=[-|#])", re.sub(r"\]\([^)]*\)", "]", prose(text)))
    sentences = [
        s for block in blocks for s in re.split(r"(?<=[.:!?])\s+", block) if not block.startswith("|")
    ]
    assert [s for s in sentences if len(s.split()) > 25] == []
    assert len((ROOT / "README.zh-CN.md").read_text().splitlines()) <= 130


def test_the_four_commands_of_the_readme_work(trained: Path, beside: Path) -> None:
    (block,) = [f for f in fences((ROOT / "README.md").read_text()) if "polyhead init" in f.text]
    for split in ("train", "test"):
        shutil.copy(trained / f"{split}.en", beside)
        shutil.copy(trained / f"{split}.de", beside / f"{split}.zh")
    shutil.copy(trained / "test.en", beside / "input.en")
    tiny = [f"{key}={value}" for key, value in (TINY | SHORT).items()]
    for words in commands(f"```sh\n{block.text}```\n"):
        shrunk = tiny if words[1] == "train" else []
        assert main([*words[1:], *shrunk]) == 0, words
    assert len((beside / "output.zh").read_text().splitlines()) == 3


def test_beam_search_lists_every_key_of_decoding() -> None:
    rows = table((ROOT / "docs/parts/beam_search.md").read_text(), "option")
    lines = [line.partition("  ")[0] for line in list_keys(GenerationConfig)]
    assert [f"{row[0]}: {row[1]} = {row[2]}".replace("`", "") for row in rows] == lines


@pytest.mark.parametrize(
    ("guide", "head", "required"), [("guide.md", "key", "(required)"), ("guide.zh-CN.md", "键", "（必填）")]
)
def test_the_guide_lists_every_key_of_a_recipe(guide: str, head: str, required: str) -> None:
    rows = table((ROOT / "docs" / guide).read_text(), head)
    wanted = [line.partition("  ")[0] for line in list_keys()]
    assert [
        f"{row[0]}: {row[1]} = {row[2]}".replace("`", "").replace(f" = {required}", "") for row in rows
    ] == wanted
    assert all(row[3] for row in rows)


def test_the_guide_lists_every_file_of_a_run(trained: Path) -> None:
    run = trained / "runs/mine"
    for guide, head in (("guide.md", "file"), ("guide.zh-CN.md", "文件")):
        listed = " ".join(row[0] + " " + row[1] for row in table((ROOT / "docs" / guide).read_text(), head))
        for path in run.rglob("*"):
            inside = path.relative_to(run).as_posix()
            assert (
                path.is_dir()
                or inside.startswith("data/")
                or f"`{path.name}`" in listed
                or f"`{inside}`" in listed
            ), inside


def test_the_guide_names_every_column_of_the_metrics(trained: Path) -> None:
    rows = [json.loads(line) for line in (trained / "runs/mine/metrics.jsonl").read_text().splitlines()]
    written = {
        split: {key for row in rows if row["split"] == split for key in row} - {"split"}
        for split in ("train", "valid")
    }
    for guide in ("guide.md", "guide.zh-CN.md"):
        text = (ROOT / "docs" / guide).read_text()
        for split, columns in written.items():
            (listed,) = re.findall(rf'`"split": "{split}"`[^`]*`([a-z_ ]+)`', text)
            assert set(listed.split()) == columns, (guide, split)


@pytest.mark.parametrize("guide", ["guide.md", "guide.zh-CN.md"])
def test_what_may_change_on_resume_is_what_the_code_lets_change(guide: str) -> None:
    from polyhead.train.resume import CHANGEABLE_KEYS

    text = (ROOT / "docs" / guide).read_text()
    (paragraph,) = [
        p
        for p in text.split("\n\n")
        if "`train.steps`" in p and "`train.tensorboard`" in p and "--resume" in p and not p.startswith("|")
    ]
    assert set(re.findall(r"`(train\.\w+)`", paragraph)) == CHANGEABLE_KEYS


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_the_translations_have_the_same_sections_and_examples(ours: str, theirs: str) -> None:
    a, b = ((ROOT / path).read_text() for path in (ours, theirs))
    assert [h.split()[0] for h in headings(a)] == [h.split()[0] for h in headings(b)]
    for one, other in zip(fences(a), fences(b), strict=True):
        assert one.language == other.language
        without = [re.sub(r" *# .*", "", fence.text) for fence in (one, other)]
        assert without[0] == without[1]
    assert [len(r) for r in re.findall(r"(?:^\|.*\n)+", a, re.M)] or not re.findall(r"^\|", b, re.M)
    assert len(re.findall(r"^\|", a, re.M)) == len(re.findall(r"^\|", b, re.M)), "tables of different lengths"


def test_what_is_evaluated_without_a_file_has_test_files_in_its_recipe() -> None:
    for page in PAGES:
        for verb, run, *rest in (words[1:] for words in commands(page.read_text()) if len(words) > 2):
            recipe = ROOT / f"recipes/{Path(run).name}.yaml"
            if verb == "eval" and recipe.is_file() and (not rest or rest[0].startswith("-")):
                assert "--split" in rest or load_recipe(recipe).data.test, (
                    f"{name(page)}: {run} has no data.test"
                )


@pytest.mark.parametrize("guide", ["guide.md", "guide.zh-CN.md"])
def test_the_runs_that_the_guide_uses_are_made_in_it(guide: str) -> None:
    """By a training, an import, the demo or a conversion, in a block for the shell; tables and prose may
    name others.
    """
    told = fences((ROOT / "docs" / guide).read_text())
    used = {
        run
        for f in told
        if f.language in {"sh", "yaml", "python"}
        for run in re.findall(r"runs/[\w-]+", f.text)
    }
    made = {"runs/demo"}
    for words in commands("".join(f"```sh\n{f.text}```\n" for f in told if f.language == "sh")):
        verb, *rest = words[1:]
        places = [word.removeprefix("out=") for word in rest if word.startswith("out=")]
        places += rest[rest.index("--out") + 1 :][:1] if "--out" in rest else []
        places += rest[1:2] if verb in {"import", "convert-gqa"} else []
        made |= {*places} or {f"runs/{Path(recipe).stem}" for recipe in rest[:1] if verb == "train"}
    assert used <= made, used - made


def test_a_page_compares_one_thing_in_one_directory() -> None:
    """The base and the budget of a comparison are those of its directory, so others go to another one."""
    for page in PAGES:
        bases: dict[str, set[tuple[str, ...]]] = {}
        for verb, *rest in (words[1:] for words in commands(page.read_text())):
            if verb == "compare" and rest and rest[0].endswith(".yaml"):
                after = {word: rest[i + 1 : i + 2] for i, word in enumerate(rest)}
                place = after.get("--out", [f"runs/compare-{Path(rest[0]).stem}"])[0]
                base = [word for word in rest[1:] if re.match(r"(data|model|train|task)\.", word)]
                fixed = (rest[0], *after.get("--budget", []), *after.get("--match", []), *base)
                bases.setdefault(place, set()).add(fixed)
        assert [place for place, found in bases.items() if len(found) > 1] == [], name(page)


def test_the_pages_of_the_parts_are_listed() -> None:
    pages = {path.name for path in (ROOT / "docs/parts").glob("*.md")} - {"README.md"}
    assert set(re.findall(r"\((\w+\.md)\)", (ROOT / "docs/parts/README.md").read_text())) == pages


@pytest.mark.parametrize(("page", "head"), [("serving.md", "route"), ("serving.zh-CN.md", "路径")])
def test_the_page_on_serving_lists_every_route(page: str, head: str) -> None:
    from polyhead.serve.http.routes import ROUTES

    rows = table((ROOT / "docs" / page).read_text(), head)
    listed = re.findall(r"`(GET|POST) ([^`]+)`", "".join(row[0] for row in rows))
    assert sorted(listed) == sorted((route.method, route.path) for route in ROUTES if route.path != "/")


def test_pages_name_no_machine() -> None:
    for page in PAGES:
        assert not re.search(r"(/home/|/tmp/|[A-Z]:\\)", page.read_text()), name(page)


def test_yaml_of_the_docs_is_plain_yaml() -> None:
    for page in PAGES:
        for fence in fences(page.read_text()):
            if fence.language == "yaml":
                yaml.safe_load(fence.text)
