"""Checks from files, entry points and drop-in folders; what is refused or broken touches nothing else."""

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from subprocess import run
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest

from netdoctor import engine
from netdoctor.api import CheckSpec, Intent, Net, Unavailable, check, ok
from netdoctor.cli import setup
from netdoctor.config.load import Config
from netdoctor.host.base import ReplayHost
from netdoctor.model import CheckResult, Finding, Kind, Status
from netdoctor.plugins import Loaded, NeedsError, PluginError, built_in, entry_points, load, needs
from tests.support.namespaces.folders import own_folder

GOOD = dedent('''
    """The site's own."""
    from __future__ import annotations
    from netdoctor.api import Finding, Intent, check, ok

    @check(id="{id}", title="It is so", cause="other")
    def judge(job: Intent) -> list[Finding]:
        return [ok("so it is")]
''')


@pytest.fixture
def folder() -> Iterator[Path]:
    with own_folder() as path:
        yield path


def add(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    path.chmod(0o644)
    return path


def loaded(folder: Path, search: list[str] | None = None) -> Loaded:
    return load(dropin_dir=str(folder), search=search or [])


def ours(got: Loaded) -> list[str]:
    return [spec.id for spec in got.specs if got.sources[spec.id] != "built in"]


def told(got: Loaded, id: str) -> dict[str, str]:
    """Of plugin.refused or plugin.broken: base name of the subject -> message."""
    return {os.path.basename(f.subject): f.message for r in got.results if r.id == id for f in r.findings}


# Drop-in folders


@pytest.mark.parametrize(("mode", "text", "lost"), [(0o644, "1 / 0", "plugin.broken"), (0o666, GOOD, "plugin.refused")])
def test_what_could_not_be_loaded_counts_with_only(folder: Path, mode: int, text: str, lost: str) -> None:
    """It may hold what is asked for: with --only, too, no node is called healthy."""
    add(folder, "a.py", GOOD.format(id="site.a"))
    add(folder, "b.py", text.format(id="site.b")).chmod(mode)
    config = replace(Config(), checks_dir=str(folder))
    specs, results = setup.load_checks(config, ("site.a",))
    assert [spec.id for spec in specs] == ["site.a"] and [result.id for result in results] == [lost]
    work = engine.Work(ReplayHost({}), specs, results)
    work.facts["Intent"] = Intent()
    engine.judge_all(work)
    report = engine.report(work, setup.decider(config, ("site.a",)), "default")
    assert report.verdict.exit_code == 4 and "b.py" in report.verdict.text


def test_a_drop_in_check_is_loaded_and_judges(folder: Path) -> None:
    path = add(folder, "mine.py", GOOD.format(id="site.mine"))
    got = loaded(folder)
    assert ours(got) == ["site.mine"]
    assert got.results == ()
    assert got.sources["site.mine"] == f"file {path}"
    spec = next(s for s in got.specs if s.id == "site.mine")
    assert next(iter(spec.judge(Intent()))).message == "so it is"
    assert not (folder / "__pycache__").exists(), "nothing is written into the site's folder"


def test_no_folder_is_nothing(tmp_path: Path) -> None:
    got = loaded(tmp_path / "none")
    assert (ours(got), got.results) == ([], ())


def test_files_come_in_the_order_of_their_names_and_only_python(folder: Path) -> None:
    for name in ("b", "a", "c"):
        add(folder, f"{name}.py", GOOD.format(id=f"site.{name}"))
    for name in (".hidden.py", "_helper.py", "README.md", "a.py.bak", "old.pyc"):
        add(folder, name, "raise SystemExit(9)")
    got = loaded(folder)
    assert ours(got) == ["site.a", "site.b", "site.c"]
    assert got.results == ()


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("syntax.py", "def (", "cannot be imported: SyntaxError"),
        ("importer.py", "import no_such_module", "cannot be imported: ModuleNotFoundError"),
        ("crash.py", "1 / 0", "cannot be imported: ZeroDivisionError"),
        ("leaves.py", "raise SystemExit(0)", "ends the program"),
        ("ctrl_c.py", "raise KeyboardInterrupt", "ends the program"),
        ("empty.py", "", "holds no check"),
        ("binary.py", "\x00", "cannot be imported"),
        ("nocause.py", GOOD.format(id="site.x").replace('"other"', '"no_such"'), "no such cause"),
        ("untyped.py", GOOD.format(id="site.x").replace("job: Intent", "job"), "the parameter job has no type"),
        ("wrongtype.py", GOOD.format(id="site.x").replace("job: Intent", "job: int"), "has the type int, which is no fact"),
        ("unknowntype.py", GOOD.format(id="site.x").replace("job: Intent", "job: Nowhere"), "type hints cannot be read"),
        ("nofacts.py", GOOD.format(id="site.x").replace("job: Intent", ""), "takes no facts"),
        ("star.py", GOOD.format(id="site.x").replace("job: Intent", "*job: Intent"), "must be a plain one"),
        ("badid.py", GOOD.format(id="Site X"), "is no id of a check"),
        ("ownid.py", GOOD.format(id="plugin.refused"), "is no id of a check"),
        ("large.py", "#" * (1 << 21), "larger than"),
    ],
)
def test_a_broken_file_breaks_nothing_else(folder: Path, name: str, text: str, said: str) -> None:
    add(folder, "aaa.py", GOOD.format(id="site.before"))
    add(folder, name, text)
    add(folder, "zzz.py", GOOD.format(id="site.after"))
    got = loaded(folder)
    assert ours(got) == ["site.before", "site.after"]
    assert said in told(got, "plugin.broken")[name]
    (result,) = got.results
    assert result.status is Status.ERROR


def test_a_broken_file_leaves_no_module_behind(folder: Path) -> None:
    add(folder, "half.py", "x = 1\n1 / 0")
    loaded(folder)
    assert "netdoctor_dropin.half" not in sys.modules


def test_two_checks_of_one_id_are_the_callers_mistake(folder: Path) -> None:
    add(folder, "one.py", GOOD.format(id="site.same"))
    add(folder, "two.py", GOOD.format(id="site.same"))
    with pytest.raises(PluginError, match=r"two checks have the id site\.same: file .*/one\.py, and file .*/two\.py"):
        loaded(folder)


def test_a_built_in_check_cannot_be_replaced(folder: Path) -> None:
    specs = load(dropin_dir="/nonexistent", search=[]).specs
    if not specs:
        pytest.skip("no built-in check yet")
    add(folder, "evil.py", GOOD.format(id=specs[0].id))
    with pytest.raises(PluginError, match="built in"):
        loaded(folder)


def test_a_named_folder_must_be_there_and_comes_with_the_sites(folder: Path) -> None:
    with pytest.raises(PluginError, match="no such directory"):
        load(str(folder / "none"), dropin_dir="/nonexistent", search=[])
    (folder / "site").mkdir(mode=0o755)
    (folder / "mine").mkdir(mode=0o755)
    add(folder / "site", "a.py", GOOD.format(id="site.a"))
    add(folder / "mine", "b.py", GOOD.format(id="site.b"))
    got = load(str(folder / "mine"), dropin_dir=str(folder / "site"), search=[])
    assert ours(got) == ["site.a", "site.b"]
    assert ours(load(str(folder / "site"), dropin_dir=str(folder / "site"), search=[])) == ["site.a"]


# What others can change is refused.  (Other owners, ACLs: tests/live/test_plugins_root.py)


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757, 0o1777])
def test_a_folder_that_others_may_write_to_is_refused(folder: Path, mode: int) -> None:
    inner = folder / "checks.d"
    inner.mkdir()
    add(inner, "mine.py", GOOD.format(id="site.mine"))
    inner.chmod(mode)
    got = loaded(inner)
    assert ours(got) == []
    assert "is writable by" in told(got, "plugin.refused")["checks.d"]
    (result,) = got.results
    assert result.status is Status.UNKNOWN, "a check that the site wanted did not look: not a pass, not a fail of the node"


def test_a_writable_folder_further_up_is_refused(folder: Path) -> None:
    (folder / "open" / "checks.d").mkdir(parents=True)
    add(folder / "open" / "checks.d", "mine.py", GOOD.format(id="site.mine"))
    (folder / "open").chmod(0o777)
    got = loaded(folder / "open" / "checks.d")
    assert ours(got) == []
    assert told(got, "plugin.refused")["checks.d"].endswith("open is writable by everybody")


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o646])
def test_a_file_that_others_may_write_to_is_refused_alone(folder: Path, mode: int) -> None:
    add(folder, "good.py", GOOD.format(id="site.good"))
    add(folder, "open.py", GOOD.format(id="site.open")).chmod(mode)
    got = loaded(folder)
    assert ours(got) == ["site.good"]
    assert "is writable by" in told(got, "plugin.refused")["open.py"]


def test_a_link_out_of_a_trusted_folder_is_judged_where_it_ends(folder: Path, tmp_path: Path) -> None:
    (folder / "d").mkdir(mode=0o755)
    add(folder, "real.py", GOOD.format(id="site.real"))
    add(tmp_path, "planted.py", GOOD.format(id="site.planted"))
    (folder / "d" / "a.py").symlink_to("../real.py")
    (folder / "d" / "b.py").symlink_to(tmp_path / "planted.py")
    got = loaded(folder / "d")
    assert ours(got) == ["site.real"]
    assert list(told(got, "plugin.refused")) == ["b.py"]


@pytest.mark.parametrize("name", ["a b.py", "é.py", "1.py", "a\n.py", "-x.py"])
def test_a_strange_name_is_refused(folder: Path, name: str) -> None:
    add(folder, name, GOOD.format(id="site.x"))
    got = loaded(folder)
    assert ours(got) == []
    assert "its name" in told(got, "plugin.refused")[name]


def test_a_pipe_or_a_folder_named_like_a_check_does_not_hang(folder: Path) -> None:
    os.mkfifo(folder / "pipe.py")
    (folder / "dir.py").mkdir(mode=0o755)
    got = loaded(folder)
    assert ours(got) == []
    assert set(told(got, "plugin.refused")) | set(told(got, "plugin.broken")) == {"pipe.py", "dir.py"}


# Entry points


def install(site: Path, package: str, entries: str, modules: dict[str, str]) -> None:
    info = site / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text(entries)
    for name, text in modules.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)


def test_entry_points_are_read_as_they_are_written(tmp_path: Path) -> None:
    install(
        tmp_path, "b", "[console_scripts]\nx = y:z\n\n[netdoctor.plugins]\n# note\ntwo = pkg.mod:judge [extra]\none=other\n", {}
    )
    install(tmp_path, "a", "[other]\nnetdoctor.plugins = x\n", {})
    (tmp_path / "c-1.0.dist-info").mkdir()
    (tmp_path / "d.egg-info").write_text("a file, as old tools wrote")
    got = entry_points(["", "relative", str(tmp_path), str(tmp_path), "/nonexistent", __file__])
    assert [(p.name, p.module, p.attribute, p.package) for p in got] == [
        ("one", "other", "", "b-1.0"),
        ("two", "pkg.mod", "judge", "b-1.0"),
    ]


def test_entry_points_agree_with_importlib_metadata(tmp_path: Path) -> None:
    from importlib.metadata import distributions

    install(tmp_path, "x", "[netdoctor.plugins]\none = m.n:o.p\ntwo = q\n", {})
    theirs = [e for d in distributions(path=[str(tmp_path)]) for e in d.entry_points if e.group == "netdoctor.plugins"]
    assert [(p.name, p.module, p.attribute) for p in entry_points([str(tmp_path)])] == [
        (e.name, e.module, e.attr or "") for e in theirs
    ]


def test_checks_of_an_installed_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(
        folder,
        "site_checks",
        "[netdoctor.plugins]\nall = nd_site_checks\none = nd_site_checks.one:judge\nbad = nd_site_checks.bad\nnone = nd_gone\n",
        {
            "nd_site_checks/__init__.py": "from nd_site_checks.one import judge\n",
            "nd_site_checks/one.py": GOOD.format(id="site.packaged"),
            "nd_site_checks/bad.py": "1 / 0",
        },
    )
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    monkeypatch.syspath_prepend(str(folder))
    got = load(dropin_dir="/nonexistent", search=[str(folder)])
    assert ours(got) == ["site.packaged"]
    assert got.sources["site.packaged"] == "entry point all of site_checks-1.0"
    assert told(got, "plugin.broken").keys() | told(got, "plugin.refused").keys() == {"bad", "none"}


@pytest.mark.slow
def test_no_entry_points_import_no_metadata() -> None:
    code = "import sys, netdoctor.plugins as p; p.load(dropin_dir='/x'); sys.exit('importlib.metadata' in sys.modules)"
    assert run([sys.executable, "-c", code], check=False).returncode == 0


# Built in


def test_built_in_names_are_the_files() -> None:
    files = sorted(p.stem for p in (Path(__file__).parents[2] / "checks").glob("*.py") if not p.name.startswith("_"))
    assert list(built_in()) == files


def test_every_built_in_check_can_be_used() -> None:
    got = load(dropin_dir="/nonexistent", search=[])
    assert got.results == ()
    assert all(got.sources[s.id] == "built in" for s in got.specs)


# Needs


def spec_of(judge: object) -> CheckSpec:
    return check(id="a.b", title="t", cause="other")(judge).__netdoctor_check__  # type: ignore


def test_needs_are_the_parameters() -> None:
    def judge(net: Net, job: "Intent") -> list[Finding]:
        return [ok("x")]

    got = needs(spec_of(judge))
    assert [(n.parameter, n.type) for n in got] == [("net", Net), ("job", Intent)]


def test_needs_name_the_facts_that_there_are() -> None:
    def judge(net: CheckResult) -> list[Finding]:
        return []

    with pytest.raises(
        NeedsError, match=r"a\.b: the parameter net has the type CheckResult, which is no fact; facts are Baseline, "
    ):
        needs(spec_of(judge))


@pytest.mark.parametrize("hint", [Net | Intent, Net | Unavailable])
def test_a_union_is_no_need(hint: Any) -> None:
    def judge(net: Any) -> list[Finding]:
        return []

    judge.__annotations__["net"] = hint
    with pytest.raises(NeedsError, match=rf"has the type .*Net \| .*{hint.__args__[1].__name__}, which is no fact"):
        needs(spec_of(judge))


@pytest.mark.parametrize(
    ("line", "status"),
    [("quiet iommu=pt", Status.PASS), ("quiet", Status.FAIL), (Unavailable(Kind.DENIED, "x"), Status.UNKNOWN)],
)
def test_the_example_of_the_documents_judges(folder: Path, line: Any, status: Status) -> None:
    page = (Path(__file__).parents[2] / "docs" / "checks.md").read_text(encoding="utf-8")
    add(folder, "iommu.py", page.partition("```python\n")[2].partition("```")[0])
    got = loaded(folder)
    assert ours(got) == ["site.iommu"]
    spec = next(one for one in got.specs if one.id == "site.iommu")
    assert [found.status for found in spec.judge(SimpleNamespace(command_line=line))] == [status]
