import functools
import inspect
import io
import json
import re
import runpy
import shlex
import shutil
import sys
from collections import Counter, namedtuple
from importlib import import_module
from itertools import product
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
import typer
import yaml

from polyhead.cli import main
from polyhead.cli.components import parse_docstring, read_part_doc
from polyhead.cli.formatting import list_keys
from polyhead.cli.verbs import VERBS
from polyhead.config import yaml_io
from polyhead.config.generation_config import GenerationConfig
from polyhead.config.recipe import Recipe
from polyhead.core.registry import ALL_REGISTRIES
from polyhead.run.recipe import load_recipe, validate_recipe
from polyhead_lab.registry import EXPERIMENTS

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    page for pattern in ("", "docs/**/", "recipes/", "notebooks/") for page in ROOT.glob(f"{pattern}*.md")
)
TRANSLATED_PAGES = "guide explain serving other_engines compare cost distributed checkpoints"
PAIRS = [("README.md", "README.zh-CN.md")]
PAIRS += [(f"docs/{page}.md", f"docs/{page}.zh-CN.md") for page in TRANSLATED_PAGES.split()]
WITHOUT_EQUATION = {"augment", "cache", "tokenizer", "none"}  # kinds, and parts
WITHOUT_PAPER = {
    "urls",
    "numbers",
    "none",
    "tanh",
    "sigmoid",
    "static",
    "constant",
    "char",
    "byte",
    "exp",
    "plain",
}
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
WORDS = {"train.steps": 40, "train.save_every": 20, "train.lr": 0.02, "train.schedule": "constant"}
SHORT = {"generation.max_length_ratio": 1.0, "generation.max_length_extra": 2}  # translations


# a fenced block, and the line it begins on
Fence = namedtuple("Fence", ["language", "text", "line"])


def name(path):
    return path.relative_to(ROOT).as_posix()


def read(path):
    return (ROOT / path).read_text()


def fences(text):
    matches = re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
    return [Fence(m[1], m[2], text[: m.start()].count("\n") + 1) for m in matches]


def read_fences(path):
    return fences(read(path))


def page_fences(language):
    return (
        (page, fence) for page in PAGES for fence in fences(page.read_text()) if fence.language == language
    )


def page_commands():
    return ((page, words) for page in PAGES for words in commands(page.read_text()))


def prose(text):
    return re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)


def headings(text):
    return re.findall(r"^(#+ .*)$", prose(text), re.M)


def slug(heading):
    """The anchor that GitHub gives a heading."""
    plain = re.sub(r"[^\w\- ]", "", heading.lstrip("#").strip().lower())
    return plain.replace(" ", "-")


def table(text, first):
    """The cells of the tables whose head begins with that word, escapes undone."""
    rows, inside = [], False
    for line in text.splitlines():
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        inside = bool(cells) and (inside or cells[0] == first)
        if inside and cells[0] != first and not set(cells[0]) <= set("-: "):
            rows.append(cells)
    return rows


def commands(text):
    """Every call of ./dev or polyhead in blocks for the shell and in code spans, as words."""
    spans = re.findall(r"`((?:polyhead|\./dev) [^`]+)`", prose(text))
    blocks = [fence.text.replace("\\\n", " ") for fence in fences(text) if fence.language == "sh"]
    lines = [line for block in blocks for line in block.splitlines()]
    for line in [*lines, *spans]:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = []
        for word in [*lexer, ";"]:
            if not set(word) <= set("|&;<>()"):
                words.append(word)
                continue
            if words and words[0] in ("polyhead", "./dev"):
                yield words
            words = []


def read_recipe(start):
    (recipe,) = [fence.text for fence in read_fences("docs/guide.md") if fence.text.startswith(start)]
    return yaml_io.parse_yaml(recipe)


TRANSLATOR, LANGUAGE_MODEL = "data:\n  root: .", "task: language-model"
CLASSIFIER = "task: {name: classification"


def run_line(line):
    echo = re.match(r'echo "(.*)" \| ', line)
    (words,) = commands(f"```sh\n{line}\n```")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(echo[1].encode() + b"\n" if echo else b"")))
        assert main(words[1:]) == 0, line


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    """The current directory, with the files that the pages say to write."""
    monkeypatch.chdir(tmp_path)
    for _, fence in page_fences("python"):
        if file := FILE.match(fence.text):
            (tmp_path / file[1]).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file[1]).write_text(fence.text)
    yield tmp_path
    for module in [m for m in sys.modules if m.partition(".")[0] == "my_pkg"]:
        del sys.modules[module]


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory):
    """A directory with text, the recipes of the guide, and their runs, but tiny."""
    home = tmp_path_factory.mktemp("docs")
    english = ["a", "dog", "barks", "two", "red", "here", "cat"]
    chinese = dict(zip(english, ["yi", "gou", "jiao", "liang", "hong", "zheli", "mao"], strict=True))
    rows = [english[i * 3 % 7 :] + english[: i % 5] for i in range(40)]
    for split, part in (("train", rows), ("valid", rows[:6]), ("test", rows[6:9])):
        (home / f"{split}.en").write_text("".join(" ".join(row) + "\n" for row in part))
        (home / f"{split}.zh").write_text("".join(" ".join(chinese[w] for w in row) + "\n" for row in part))
    (home / "plays.txt").write_text("".join(f"ROMEO:\n{' '.join(row)}.\n\n" for row in rows))
    reviews = [f"{'ab'[len(row) % 2]}\t{' '.join(row)}\n" for row in rows]
    (home / "reviews.tsv").write_text("label\tsentence\n" + "".join(reviews))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        for file, start, sizes in (
            ("mine.yaml", TRANSLATOR, TINY | SHORT | WORDS),
            ("plays.yaml", LANGUAGE_MODEL, TINY),
            ("reviews.yaml", CLASSIFIER, TINY),
        ):
            recipe = read_recipe(start)
            for key, value in sizes.items():
                yaml_io.assign(recipe, key.split("."), value, Recipe)
            Path(file).write_text(yaml_io.dump_yaml(recipe))
            assert main(["train", file]) == 0
    return home


@pytest.fixture
def home(runs_dir, workdir, monkeypatch):
    """A copy of it as the current directory; what an example registers is removed again."""
    shutil.copytree(runs_dir, workdir, dirs_exist_ok=True)
    for registry in ALL_REGISTRIES:
        registry.names()
        monkeypatch.setattr(registry, "_parts", dict(registry._parts))
    threads = torch.get_num_threads()
    yield workdir
    torch.set_num_threads(threads)


WITH_PYTHON = sorted({page for page, _ in page_fences("python")})


@pytest.mark.timeout(400)
@pytest.mark.parametrize("page", WITH_PYTHON, ids=name)
def test_examples_run(page, home):
    namespace = {"__name__": "docs"}
    for fence in fences(page.read_text()):
        if fence.language == "sh" and name(page) in SHOWN_BY_ACTING:
            for line in fence.text.splitlines():
                run_line(line)
        elif fence.language == "python" and not EXCERPT.match(fence.text) and not FILE.match(fence.text):
            # blank lines before it, so that a traceback names the line of the page
            exec(compile("\n" * fence.line + fence.text, str(page), "exec"), namespace)


def test_excerpts_and_pages_are_of_the_source():
    for page, fence in page_fences("python"):
        if source_name := EXCERPT.match(fence.text):
            source = iter(read(source_name[1]).splitlines())
            for line in filter(None, fence.text.splitlines()[1:]):
                assert line in source, f"{name(page)}: {source_name[1]} has no line {line!r} there"
    pages = runpy.run_path(str(ROOT / "docs/parts/write.py"))["pages"]()
    stale = [path.name for path, text in pages.items() if path.read_text() != text]
    assert stale == [], "./dev docs writes them anew"
    assert {f"{registry.kind}.md" for registry in ALL_REGISTRIES} <= {path.name for path in pages}


READY = runpy.run_path(str(ROOT / "docs/ready_pages.py"))


def test_ready_pages_have_corpus_recipes_and_links(tmp_path):
    READY["write_corpus"](tmp_path)
    kinds = [line.split("\t")[0] for line in (tmp_path / "train.tsv").read_text().splitlines()[1:]]
    expected = {"amount": 968, "countries": 456, "date": 1243, "how long": 261, "interval": 398, "time": 674}
    assert Counter(kinds) == expected
    assert (tmp_path / "train.txt").read_text().startswith("Italy, Australia, and Chile = 意大利")
    for page_name, page in READY["PAGES"].items():
        recipe = validate_recipe(READY["make_recipe"](page_name, tmp_path))
        assert (recipe.data.max_len, recipe.model.d_model) == (48, 64)
        for file, title in product(("README", "docs/explain"), (("", page.title), (".zh-CN", page.chinese))):
            link = rf"\*\*{title[1]}\*\*\s?[(（]`build/pages/{page_name}.html`"
            assert re.search(link, read(f"{file}{title[0]}.md"))


@pytest.mark.parametrize("picture", sorted(ROOT.glob("docs/**/*.svg")), ids=name)
def test_drawings_are_xml(picture):
    assert ElementTree.parse(picture).getroot().tag == "{http://www.w3.org/2000/svg}svg"


@pytest.mark.slow
def test_ready_page_is_written(tmp_path):
    READY["write_corpus"](tmp_path)
    path = READY["write_page"]("classifier", tmp_path, tmp_path / "pages", steps=4)
    assert path.name == "classifier.html" and path.stat().st_size < 1_500_000
    assert "Portugal, France, or Morocco" in path.read_text()


def test_commands_parse(workdir):
    verbs_of_dev = runpy.run_path(str(ROOT / "dev"))["EXTRAS"]
    for page, words in page_commands():
        program, verb, *rest = words
        if words[:2] == ["./dev", "--torch"]:
            program, _, _, verb, *rest = words
        if program == "./dev":
            assert verb in verbs_of_dev, (name(page), words)
        elif not verb.startswith("-"):
            assert verb in VERBS, (name(page), words)
            if rest:  # a verb alone is only a mention of it
                parse(verb, rest)


def without_language(arguments):
    """The arguments without ``--lang LANGUAGE``, which every verb takes and none parses."""
    place = arguments.index("--lang") if "--lang" in arguments else len(arguments)
    return [*arguments[:place], *arguments[place + 2 :]]


@functools.cache
def make_command(verb):
    app = typer.Typer(add_completion=False)
    app.command(verb)(import_module(f"polyhead.cli.{VERBS[verb][0]}").run)
    return typer.main.get_command(app)


def parse(verb, arguments):
    """Fail if the verb does not take the arguments; changes to a recipe must be a recipe's keys."""
    try:
        context = make_command(verb).make_context(verb, without_language(arguments))
    except typer.Exit:  # --keys, --help
        return
    if changes := context.params.get("changes"):
        tree = read_recipe(TRANSLATOR)
        for place, value in yaml_io.parse_overrides(changes, Recipe):
            yaml_io.assign(tree, place, value, Recipe)
        if tree["data"].get("valid_fraction"):  # of another recipe, which names no files
            del tree["data"]["valid"]
        validate_recipe(tree)


def test_recipes_are_valid(workdir):
    for page, fence in page_fences("yaml"):
        tree = yaml_io.parse_yaml(fence.text)
        base = {"data": {"train": ["a"], "valid": ["b"]}, "train": {"steps": 1}}
        if "valid_fraction" in tree.get("data", {}):
            del base["data"]["valid"]
        validate_recipe(tree | {key: base[key] | tree.get(key, {}) for key in base})
        assert yaml.safe_load(fence.text), name(page)
    entries = read("recipes/README.md")
    for path in (ROOT / "recipes").glob("*.yaml"):
        assert f"({path.name})" in entries
        load_recipe(path)


def test_links_lead_to_files_and_headings():
    broken_links = []
    for page in PAGES:
        text = page.read_text()
        assert not re.search(r"(/home/|/tmp/|[A-Z]:\\)", text), f"{name(page)} names a machine"
        for target in re.findall(r"\]\(([^)\s]+)\)", prose(text)):
            file, _, anchor = target.partition("#")
            path = (page.parent / file).resolve() if file else page
            has_anchor = path.exists() and (not anchor or anchor in map(slug, headings(path.read_text())))
            if not has_anchor and not re.match(r"https?://", target):
                broken_links.append(f"{name(page)} links to {target}")
    assert broken_links == []


def test_every_part_is_documented():
    for registry, part in [(kind, part) for kind in ALL_REGISTRIES for part in kind.names()]:
        part_doc, doc = read_part_doc(registry, part), inspect.cleandoc(registry.get(part).__doc__ or "")
        label = f"{registry.kind} {part}"
        assert part_doc.summary.endswith("."), f"{label}: its first sentence"
        assert all(part_doc.options.values()), f"{label}: an option without a meaning"
        surplus = parse_docstring(doc).options.keys() - registry.options(part).keys()
        assert not surplus, f"{label}: options that do not exist: {surplus}"
        assert part_doc.fields.get("When"), f"{label}: when to use it"
        assert part_doc.fields.get("Paper") or part in WITHOUT_PAPER, f"{label}: its source"
        assert part_doc.fields.get("Equation") or WITHOUT_EQUATION & {registry.kind, part}, (
            f"{label}: its equation"
        )
        assert len(doc.splitlines()) <= 30, f"{label}: a docstring that needs a page"


def test_page_and_facts_of_parts_are_complete():
    text = read("docs/parts/README.md")
    for registry in ALL_REGISTRIES:
        (row,) = [line for line in text.splitlines() if f"]({registry.kind}.md)" in line]
        names = set(re.findall(r"`([\w-]+)`", row.split("|")[3]))
        assert names == set(registry.names()), registry.kind
    pages = {path.name for path in (ROOT / "docs/parts").glob("*.md")} - {"README.md"}
    assert set(re.findall(r"\((\w+\.md)\)", text)) == pages
    measured, kinds = yaml.safe_load(read("docs/parts/measured.yaml")), {r.kind: r for r in ALL_REGISTRIES}
    for kind, facts_by_part in measured.items():
        assert set(facts_by_part) <= set(kinds[kind].names())
        assert all(set(fact) == {"fact", "command"} for facts in facts_by_part.values() for fact in facts)


def test_statements_name_parts_tests_and_experiments():
    sections = yaml.safe_load(read("docs/statements.yaml"))
    rows = [row for rows in sections.values() for row in rows]
    kinds = {registry.kind: registry for registry in ALL_REGISTRIES}
    for statement, place, evidence, verdict in rows:
        for kind, part in re.findall(r"`(\w+): (?:\{name: )?([\w-]+)", place):
            assert kind not in kinds or part in kinds[kind].names(), statement
        experiments = {
            name.removeprefix("experiment:") for name in evidence if name.startswith("experiment:")
        }
        assert experiments <= set(EXPERIMENTS.names()), statement
        assert experiments or verdict not in ("held", "did not hold", "undecided"), statement
        for name in evidence:
            file, _, test = name.partition("::")
            assert not test or f"def {test}(" in read(f"tests/{file}"), statement
        assert evidence or verdict in ("no", "words") or "results.md" in place, statement
    assert len(rows) == 228


def test_commands_of_the_readme_work(runs_dir, workdir):
    (block,) = [f for f in fences(read("README.md")) if "polyhead init" in f.text]
    for split, side in product(("train", "test"), ("en", "zh")):
        shutil.copy(runs_dir / f"{split}.{side}", workdir)
    shutil.copy(runs_dir / "test.en", workdir / "input.en")
    tiny = [f"{key}={value}" for key, value in (TINY | SHORT).items()]
    for words in commands(f"```sh\n{block.text}```\n"):
        shrunk = tiny if words[1] == "train" else []
        assert main([*words[1:], *shrunk]) == 0, words
    assert len((workdir / "output.zh").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("page", "head", "required", "config"),
    [
        ("guide.md", "key", "(required)", Recipe),
        ("guide.zh-CN.md", "键", "（必填）", Recipe),
        ("parts/beam_search.md", "option", "(required)", GenerationConfig),
    ],
)
def test_page_lists_every_key(page, head, required, config):
    rows = table(read(f"docs/{page}"), head)
    keys = [f"{row[0]}: {row[1]} = {row[2]}".replace("`", "").replace(f" = {required}", "") for row in rows]
    assert keys == [line.partition("  ")[0] for line in list_keys(config)]
    assert all(row[3] for row in rows)


def test_guide_lists_every_file_of_a_run(runs_dir):
    run = runs_dir / "runs/mine"
    for guide, head in (("guide.md", "file"), ("guide.zh-CN.md", "文件")):
        entries = " ".join(row[0] + " " + row[1] for row in table(read(f"docs/{guide}"), head))
        for path in run.rglob("*"):
            inside = path.relative_to(run).as_posix()
            is_listed = f"`{path.name}`" in entries or f"`{inside}`" in entries
            assert is_listed or path.is_dir() or inside.startswith("data/"), inside


def test_guide_lists_every_column_of_metrics(runs_dir):
    rows = [json.loads(line) for line in (runs_dir / "runs/mine/metrics.jsonl").read_text().splitlines()]
    for guide, split in product(("guide.md", "guide.zh-CN.md"), ("train", "valid")):
        columns = {key for row in rows if row["split"] == split for key in row} - {"split"}
        (entries,) = re.findall(rf'`"split": "{split}"`[^`]*`([a-z_ ]+)`', read(f"docs/{guide}"))
        assert set(entries.split()) == columns, (guide, split)


@pytest.mark.parametrize("guide", ["guide.md", "guide.zh-CN.md"])
def test_guide_lists_keys_that_resume_may_change(guide):
    from polyhead.train.resume import CHANGEABLE_KEYS

    paragraphs = [p for p in read(f"docs/{guide}").split("\n\n") if not p.startswith("|")]
    words = ("`train.steps`", "`train.tensorboard`", "--resume")
    (paragraph,) = [p for p in paragraphs if all(word in p for word in words)]
    assert set(re.findall(r"`(train\.\w+)`", paragraph)) == CHANGEABLE_KEYS


@pytest.mark.parametrize(("english", "chinese"), PAIRS)
def test_translations_have_equal_sections_and_examples(english, chinese):
    a, b = read(english), read(chinese)
    assert [h.split()[0] for h in headings(a)] == [h.split()[0] for h in headings(b)]
    for one, other in zip(fences(a), fences(b), strict=True):
        assert one.language == other.language
        code = [re.sub(r" *# .*", "", fence.text) for fence in (one, other)]
        assert code[0] == code[1]
    assert [len(r) for r in re.findall(r"(?:^\|.*\n)+", a, re.M)] or not re.findall(r"^\|", b, re.M)
    assert len(re.findall(r"^\|", a, re.M)) == len(re.findall(r"^\|", b, re.M)), "tables of different lengths"


def test_recipes_evaluated_without_a_file_have_test_files():
    for page in PAGES:
        for verb, run, *rest in (words[1:] for words in commands(page.read_text()) if len(words) > 2):
            recipe = ROOT / f"recipes/{Path(run).name}.yaml"
            if verb == "eval" and recipe.is_file() and (not rest or rest[0].startswith("-")):
                has_test = "--split" in rest or load_recipe(recipe).data.test
                assert has_test, f"{name(page)}: {run} has no data.test"


@pytest.mark.parametrize("guide", ["guide.md", "guide.zh-CN.md"])
def test_runs_used_in_the_guide_are_made_there(guide):
    """By a training, an import, the demo or a conversion, in a block for the shell; tables and prose may
    name others.
    """
    blocks = read_fences(f"docs/{guide}")
    examples = "".join(f.text for f in blocks if f.language in {"sh", "yaml", "python"})
    used_runs = {*re.findall(r"runs/[\w-]+", examples)}
    existing = {"runs/demo"}
    for words in commands("".join(f"```sh\n{f.text}```\n" for f in blocks if f.language == "sh")):
        verb, *rest = words[1:]
        places = [word.removeprefix("out=") for word in rest if word.startswith("out=")]
        places += rest[rest.index("--output") + 1 :][:1] if "--output" in rest else []
        places += rest[1:2] if verb in {"import", "convert-gqa"} else []
        existing |= {*places} or {f"runs/{Path(recipe).stem}" for recipe in rest[:1] if verb == "train"}
    trained = {*re.findall(r'"out=(runs/[\w-]+)"', examples)}  # in Python
    assert not trained & existing, "a second training in the directory of a run is refused"
    assert used_runs <= existing | trained, used_runs - existing


def test_comparisons_in_one_directory_share_their_base():
    """The base and the budget of a comparison are those of its directory, so others go to another one."""
    for page in PAGES:
        bases = {}
        for verb, *rest in (words[1:] for words in commands(page.read_text())):
            if verb == "compare" and rest and rest[0].endswith(".yaml"):
                values = {word: rest[i + 1 : i + 2] for i, word in enumerate(rest)}
                place = values.get("--output", [f"runs/compare-{Path(rest[0]).stem}"])[0]
                base = [word for word in rest[1:] if re.match(r"(data|model|train|task)\.", word)]
                settings = (rest[0], *values.get("--budget", []), *values.get("--match", []), *base)
                bases.setdefault(place, set()).add(settings)
        assert [place for place, different in bases.items() if len(different) > 1] == [], name(page)


@pytest.mark.parametrize(("page", "head"), [("serving.md", "route"), ("serving.zh-CN.md", "路径")])
def test_page_on_serving_lists_every_route(page, head):
    from polyhead.serve.openai.routes import ROUTES

    rows = table(read(f"docs/{page}"), head)
    entries = re.findall(r"`(GET|POST) ([^`]+)`", "".join(row[0] for row in rows))
    assert sorted(entries) == sorted((route.method, route.path) for route in ROUTES if route.path != "/")
