"""README, docs/ and the reference that is made from the program: whole, and without a link to nowhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from netdoctor.causes import CAUSES
from netdoctor.config.keys import KEYS
from netdoctor.plugins import load
from tools import reference

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("docs/**/*.md"), *(ROOT / n for n in ("README.md", "CONTRIBUTING.md", "SECURITY.md"))])


def _anchors(text: str) -> set[str]:
    """As GitHub and mkdocs make them of headings."""
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in re.findall(r"(?m)^#+ (.*)$", text))
    return {word.strip().replace(" ", "-") for word in words}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)  # code is no link
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        to = page if not path else (page.parent / path).resolve()
        assert to.exists(), target
        assert not anchor or anchor in _anchors(to.read_text(encoding="utf-8")), target


def test_the_readme_is_one_screen() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 60


def test_the_site_has_every_page_once() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    named = re.findall(r"[\w./-]+\.md", str(nav))
    made = {f"reference/{name}" for name in reference.pages() if name.endswith(".md")}
    docs = {str(page.relative_to(ROOT / "docs")) for page in ROOT.glob("docs/**/*.md") if "evidence" not in page.parts}
    assert sorted(named) == sorted({"index.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", *made, *docs})


def test_the_configuration_has_every_key() -> None:
    text = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    assert set(KEYS) == set(re.findall(r"(?m)^\| `([\w.]+)`", text))
    assert text == reference.with_keys(text), "python -m tools.reference --keys"


@pytest.mark.slow
def test_the_reference_has_everything() -> None:
    pages = reference.pages()
    assert {spec.id for spec in load(None, site=False).specs} == set(re.findall(r"(?m)^## (.*)$", pages["checks.md"]))
    assert set(CAUSES) == set(re.findall(r"(?m)^## (.*)$", pages["causes.md"]))
    wide = [line for line in reference.man().splitlines() if len(line.replace("\\", "")) > 73 and " " in line.strip()]
    assert [line for line in wide if not line.startswith((".", "netdoctor "))] == []
    commands = re.findall(r"(?m)^## (.*)$", pages["commands.md"])
    assert {"netdoctor preflight", "netdoctor config show", "netdoctor fleet report"} < set(commands)
    assert [f".SH {words.upper()}" in reference.man() for words in commands if "-" not in words] == [True] * len(commands)
