"""What the collection keeps of what a host sent: without Ansible, of which the filter takes two names."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import sys
from types import ModuleType
from typing import Any

import pytest
import yaml

from tests.support.clusters import fleets

COLLECTION = pathlib.Path(__file__).parents[2] / "netdoctor" / "deploy" / "ansible"
FILTER = COLLECTION / "plugins" / "filter" / "checked_report.py"


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Any:
    fake_errors, fake_converters = ModuleType("ansible.errors"), ModuleType("ansible.module_utils.common.text.converters")
    fake_errors.__dict__["AnsibleFilterError"] = ValueError
    fake_converters.__dict__["to_text"] = str
    for name in ("ansible", "ansible.module_utils", "ansible.module_utils.common", "ansible.module_utils.common.text"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for module in (fake_errors, fake_converters):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    spec = importlib.util.spec_from_file_location("checked_report", FILTER)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def result(host: str, rc: int = 0) -> dict[str, Any]:
    return {"status": "healthy", "rc": rc, "report": fleets.report(host)}


@pytest.mark.parametrize(
    ("says", "asked", "kept"),
    [
        ("n1", "n1", True),
        ("n1.cluster.example", "N1", True),
        ("n1", "n1.cluster.example", True),
        ("N1.Cluster.example", "n1.cluster.example", True),
        ("n1.cluster.example.", "n1.cluster.example", True),
        ("n1.a.example", "n1.b.example", False),  # two full names are two hosts
        ("n2", "n1", False),
        ("10.0.0.5", "10.0.0.6", False),
        ("n1", "localhost", True),  # whoever asks itself
        ("n1", "127.0.0.1", True),
    ],
)
def test_a_report_is_of_the_host_that_was_asked(says: str, asked: str, kept: bool, plugin: Any) -> None:
    report = plugin.checked_report(result(says), asked)
    assert report["identity"]["host"] == asked
    assert report["verdict"]["status"] == ("healthy" if kept else "inconclusive")
    assert plugin.checked_report(result(says), asked, False)["verdict"]["status"] == "healthy"


def test_a_verdict_that_the_exit_code_contradicts_is_not_kept(plugin: Any) -> None:
    report = plugin.checked_report(result("n1", 3), "n1")
    assert report["verdict"]["status"] == "inconclusive" and "exit code" in report["verdict"]["text"]


@pytest.mark.parametrize(
    "sent",
    [
        {},
        {"unreachable": True},
        {"status": "healthy"},
        {"status": "healthy", "report": []},
        {"status": ["healthy"]},
        {"status": "healthy", "report": {"schema": {}}},
        {"failed": True, "msg": "sudo: a password is required"},
        {"status": "no_report", "text": "\x1b[2Jx"},
        {"status": "healthy", "report": {**fleets.report("n1"), "verdict": {"status": []}}},
        {"status": "healthy", "report": {**fleets.report("n1"), "checks": [{"id": "a", "status": [], "findings": []}]}},
    ],
)
def test_whatever_comes_there_is_a_report_that_is_not_healthy(sent: dict[str, Any], plugin: Any) -> None:
    report = plugin.checked_report(sent, "n1")
    assert report["verdict"]["status"] in ("unhealthy", "inconclusive") and "\x1b" not in str(report)
    assert plugin.check(report) is None


def test_a_switch_of_the_role_is_off_where_its_text_is_false() -> None:
    """`-e name=false` and a line of an INI inventory give the text "false", which Jinja takes for true: only `| bool`, or an
    option of a module that is a bool, makes it one."""
    role = COLLECTION / "roles" / "audit"
    defaults = yaml.safe_load((role / "defaults" / "main.yml").read_text())
    switches = {name for name, value in defaults.items() if isinstance(value, bool)}
    assert switches
    for path in (role / "tasks").glob("*.yml"):
        for name in switches:
            for use in re.findall(rf"\b{name}\b.*", path.read_text()):
                assert re.match(rf"{name} (\| bool\b|}}}}\"$)", use), f"{path.name}: {use}"


def test_a_host_that_is_not_reached_lacks_no_hardware(plugin: Any) -> None:
    report = plugin.checked_report({"unreachable": True, "msg": "refused"}, "n1")
    assert report["checks"][0]["findings"][0]["cause"] == report["verdict"]["causes"][0] == "missing_node"
