"""The house rules that a reader relies on: arrows go one way, facts and checks touch nothing."""

from __future__ import annotations

import ast
import functools
import io
import itertools
import pathlib
import re
import statistics
import subprocess
import sys
import tokenize
from collections.abc import Collection, Iterable, Iterator, Mapping

import pytest

from netdoctor.config.keys import KEYS
from tests.support.sources import ROOT, nodes, python

PACKAGE = ROOT / "netdoctor"
TOUCHING = {"os", "subprocess", "socket", "ctypes", "shutil", "pathlib", "io", "glob", "multiprocessing", "threading"}

# From the top: a row imports only from rows below it, or within its own folder.  One row may hold several that do not know
# each other.
LAYERS = (
    ("__main__",),
    ("cli",),
    ("live",),
    ("snapshot",),
    ("engine",),
    ("plugins",),
    ("checks",),
    ("api",),
    ("cluster",),
    ("allreduce",),
    ("report",),
    ("fleet",),
    ("variables", "fixes", "expectation"),
    ("nccl",),
    ("facts",),
    ("config",),
    ("policy",),
    ("host",),
    ("compare",),
    ("causes", "process"),
    ("model",),
    ("child", "environment", "textsafe"),
    ("credentials",),
)
# Folders whose modules depend on what is not Python: programs and files that others run.
NOT_IMPORTED = ("deploy", "schemas")


@functools.cache
def graph() -> Mapping[str, frozenset[str]]:
    """Module -> the netdoctor modules that it imports anywhere: at its top, in functions, for type checkers."""
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in PACKAGE.rglob("*.py")
        if path.relative_to(PACKAGE).parts[0] not in (*NOT_IMPORTED, "checks")
    }
    modules |= {f"netdoctor.checks.{path.stem}": path for path in (ROOT / "checks").glob("*.py") if path.stem != "__init__"}

    def known(name: str) -> str:
        while name not in modules:
            name = name.rpartition(".")[0]
        return name

    # `from package import module` is about the module alone.
    return {
        module: frozenset(
            {known(name) for name in imports(path, modules) if name.startswith("netdoctor.")} - {"netdoctor", module}
        )
        for module, path in modules.items()
    }


def imports(path: pathlib.Path, modules: Collection[str] = ()) -> Iterator[str]:
    """What a file imports; the package beside its module only where names of the package itself are taken."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if not all(f"{node.module}.{alias.name}" in modules for alias in node.names):
                yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def circles(edges: Mapping[str, Iterable[str]]) -> list[frozenset[str]]:
    """The strongly connected parts of more than one node (Tarjan)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[frozenset[str]] = []

    def visit(node: str) -> None:
        number[node] = lowest[node] = len(number)
        stack.append(node)
        for other in edges.get(node, ()):
            if other not in number:
                visit(other)
                lowest[node] = min(lowest[node], lowest[other])
            elif other in stack:
                lowest[node] = min(lowest[node], number[other])
        if lowest[node] == number[node]:
            part = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(part) > 1:
                found.append(frozenset(part))

    for node in edges:
        if node not in number:
            visit(node)
    return found


def folded(depth: int) -> dict[str, set[str]]:
    """The graph with every module as the folder that it lies in, `depth` names deep."""
    out: dict[str, set[str]] = {}
    for module, others in graph().items():
        here = ".".join(module.split(".")[:depth])
        out.setdefault(here, set()).update({".".join(o.split(".")[:depth]) for o in others} - {here})
    return out


@pytest.mark.parametrize("depth", [2, 3, 4], ids=["folders", "modules and inner folders", "modules"])
def test_there_is_no_circle(depth: int) -> None:
    assert circles(folded(depth)) == []


def test_circles_are_found() -> None:
    assert circles({"a": ["b"], "b": ["c"], "c": ["a"], "d": ["a"]}) == [frozenset("abc")]


def test_arrows_go_down() -> None:
    row = {name: number for number, names in enumerate(LAYERS) for name in names}
    up = [
        (module, other)
        for module, others in sorted(graph().items())
        for other in sorted(others)
        if module.count(".") and other.count(".")
        for here, there in [(module.split(".")[1], other.split(".")[1])]
        if here != there and row[here] >= row[there]
    ]
    assert up == []


def test_every_folder_has_its_row() -> None:
    inside = {p.stem if p.suffix == ".py" else p.name for p in PACKAGE.iterdir() if p.suffix == ".py" or p.is_dir()}
    named = {name for names in LAYERS for name in names}
    assert inside - {"__init__", "__pycache__", *NOT_IMPORTED} == named


def test_the_root_fits_one_screen() -> None:
    assert len([p for p in PACKAGE.iterdir() if p.name != "__pycache__"]) <= 32


def calls(path: pathlib.Path) -> set[str]:
    return {node.func.id for node in nodes(path) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}


def files(folder: str) -> list[pathlib.Path]:
    found = sorted(p for p in (ROOT / folder).glob("*.py") if p.name != "__init__.py")
    assert found, folder
    return found


PURE = (
    files("checks")
    + [p for p in files("netdoctor/facts") if p.stem != "registry"]
    + files("netdoctor/compare")
    + files("netdoctor/expectation")
)


@pytest.mark.parametrize("path", PURE, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_facts_and_checks_touch_nothing(path: pathlib.Path) -> None:
    assert not {name.partition(".")[0] for name in imports(path)} & TOUCHING
    assert not calls(path) & {"open", "exec", "eval", "__import__", "compile"}


@pytest.mark.parametrize("path", files("checks"), ids=lambda p: p.name)
def test_checks_import_the_api_only(path: pathlib.Path) -> None:
    ours = {name for name in imports(path) if name.partition(".")[0] in ("netdoctor", "checks", "tests")}
    assert all(name == "netdoctor.api" or name.startswith("netdoctor.api.") for name in ours), ours


@pytest.mark.parametrize("path", files("checks"), ids=lambda p: p.name)
def test_no_check_says_how_bad_its_finding_is(path: pathlib.Path) -> None:
    """It says what is lost; netdoctor/causes/cost.py makes a severity of that."""
    assert "Severity" not in {name.rpartition(".")[2] for name in imports(path)}
    assert not [
        node
        for node in nodes(path)
        if isinstance(node, ast.keyword) and node.arg == "severity" and ast.unparse(node.value) != "None"
    ]


def test_helper_programs_stand_alone() -> None:
    for path in files("netdoctor/host/helpers"):
        assert not [name for name in imports(path) if name.startswith("netdoctor")], path.name


@pytest.mark.slow
def test_version_imports_nothing_heavy() -> None:
    program = (
        "import sys; sys.argv = ['netdoctor', '--version']\n"
        "from netdoctor.cli import main\n"
        "try: main.main()\n"
        "except SystemExit: pass\n"
        "print(*sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    heavy = {"torch", "rich", "pydantic", "pynvml", "yaml", "psutil", "pyudev", "importlib.metadata"}
    heavy |= {"netdoctor.engine", "netdoctor.model", "netdoctor.config"}  # a Tab key starts the command, too
    assert "typer" in loaded
    assert not loaded & heavy


@pytest.mark.slow
def test_what_checks_import_is_ready_for_no_log() -> None:
    """Its patterns take a tenth of what all else does to import, and a look at a node reads none."""
    program = "import sys, netdoctor.api; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    of_log = {name for name in loaded if name.startswith("netdoctor.nccl.log.")}
    assert of_log == {f"netdoctor.nccl.log.{name}" for name in ("event_kinds", "facts", "wordings")}


def test_no_file_is_too_long_to_hold_in_the_head() -> None:
    long = {
        str(p.relative_to(ROOT)): n
        for p in python("netdoctor", "checks", "tests", "tools", "bench")
        if (n := len(p.read_text().splitlines())) > 400
    }
    assert not long


def test_the_median_check_is_short() -> None:
    assert statistics.median(len(p.read_text().splitlines()) for p in files("checks")) <= 200


@pytest.mark.parametrize("folder", ["netdoctor", "checks"])
def test_digits_are_what_int_takes(folder: str) -> None:
    """`"²".isdigit()` is true and `int("²")` raises: isdecimal(), or isascii() beside it."""
    of_bytes = "messages.py"  # bytes have no isdecimal(), and their digits are ASCII's
    paths = [path for path in (ROOT / folder).rglob("*.py") if path.name != of_bytes]
    lines = [line for path in paths for line in path.read_text().splitlines()]
    assert not [line for line in lines if ".isdigit()" in line and "isascii" not in line]


def test_every_key_of_the_configuration_is_read() -> None:
    """A setting that changes nothing is a guard that is not there."""
    files = [p for p in python("netdoctor", "checks") if p.name not in {"load.py", "keys.py"}]
    unread = _unread(KEYS, itertools.chain.from_iterable(map(nodes, files)))
    assert not unread


def test_a_key_that_nobody_reads_is_found() -> None:
    keys = ["expected.hcas", "expected.transport", "expected.no_such", "profile"]
    code = ast.walk(ast.parse("x = expected.hcas, via.transport, config.profile"))
    assert _unread(keys, code) == {"expected.transport", "expected.no_such"}


def _unread(keys: Iterable[str], code: Iterable[ast.AST]) -> set[str]:
    """Keys that no code reads as ``expected.hcas`` or ``config.get("vantage")``, whatever else has such a name."""
    read = set()
    for node in code:
        name = node.attr if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) else None
        of = node.value if isinstance(node, ast.Attribute) else None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
            name, of = getattr(node.args[0], "value", None), node.func.value
        read.add((of.id if isinstance(of, ast.Name) else of.attr if isinstance(of, ast.Attribute) else "", name))
    return {key for key in keys if (key.rpartition(".")[0] or "config", key.rpartition(".")[2]) not in read}


def test_names_of_tests_are_short() -> None:
    """The sentence is the id of a row, or the docstring."""
    files = [p for p in python("tests") if p.name.startswith("test_")]
    assert not {f"{p.relative_to(ROOT)}: {name}" for p in files for name in re.findall(r"\bdef (\w{61,})\(", p.read_text())}


# What is named and is not in a checkout: made when there is something to write, or of other programs and our Ansible collection
ELSEWHERE = (
    *("docs/evidence", "tests/lab/equivalent.yaml", "plugins/profiler", "docs/custom_plugin_monitor.md"),
    *("torch/", "elastic/", "jax/"),
    *(f"netdoctor/cluster/{name}" for name in ("audit", "preflight_info", "allreduce")),
)
_NAMED = re.compile(
    r"(?<![\w./<{$~:@-])([a-z_.]+(?:/[\w.{},-]*\w)+)|(?<![\w./-])((?:netdoctor|tests|tools|bench)(?:\.[a-z_0-9]+){2,})"
)


def _prose(path: pathlib.Path) -> str:
    """Comments and docstrings of a module; all of another file."""
    if path.suffix != ".py":
        return path.read_text()
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    return "\n".join(t.string for t in tokens if t.type == tokenize.COMMENT or t.string.startswith('"""'))


@functools.cache
def _tops() -> frozenset[str]:
    return frozenset(p.stem for p in (*ROOT.iterdir(), *PACKAGE.iterdir()) if p.name[0] != "." and p.name != "build")


def _nowhere(text: str, folder: pathlib.Path) -> set[str]:
    """Paths and modules that a text names and that are not there; NAME in capitals stands for any."""
    tops = _tops()
    found = set()
    for path, dotted in _NAMED.findall(text):
        name = path or dotted.replace(".", "/")
        ours = name.partition("/")[0] in tops or name.endswith(".py")
        places = [p / name for p in (ROOT, PACKAGE, folder, ROOT / "tests")]
        places += [p.with_suffix(".py") for p in places] + [p.parent.with_suffix(".py") for p in places if dotted]
        if (
            ours
            and not re.search("[A-Z]{2}|[{]", name)
            and not name.startswith(ELSEWHERE)
            and not any(p.exists() for p in places)
        ):
            found.add(path or dotted)
    return found


def test_what_comments_and_documents_name_is_there() -> None:
    files = [p for p in python("netdoctor", "checks", "tests", "tools", "bench") if "deploy" not in p.parts]
    files += [
        *ROOT.glob("docs/**/*.md"),
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "Makefile",
        ROOT / "pyproject.toml",
    ]
    suspects = [p for p in files if _nowhere(p.read_text(), p.parent)]  # to tell comments from code takes long
    gone = {f"{p.relative_to(ROOT)}: {name}" for p in suspects for name in _nowhere(_prose(p), p.parent)}
    assert not gone


@pytest.mark.parametrize("name", ["commands/run.py", "tests.support.nothing.at_all", "netdoctor/nothing", "host/ask/x.py"])
def test_a_name_of_nothing_is_found(name: str) -> None:
    assert _nowhere(f"See `{name}`.", ROOT) == {name}
