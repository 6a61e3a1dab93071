"""Who a report is about: host name, in a pod the node's name, on a host a pseudonym of the machine id."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from netdoctor.engine import Work, collect, identity, report
from netdoctor.facts.vantage import Vantage
from netdoctor.host.base import RecordingHost, ReplayHost
from netdoctor.host.redact import Redactor
from netdoctor.model import Unavailable, Verdict
from netdoctor.snapshot.pseudonyms import pseudonymise
from netdoctor.snapshot.snapshot import Snapshot, dumps
from netdoctor.variables.catalogue import accepts
from tests.support import facts

ID = "0123456789abcdef0123456789abcdef"
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "NODE_NAME": "gpu-17"}


def about(variables: dict[str, str] | None = None, machine: Any = ID + "\n", **vantage: Any) -> tuple[dict[str, Any], str]:
    """The identity, and all that a snapshot keeps of it."""
    answers = {"file:/proc/sys/kernel/hostname": "train-0\n", "env:": variables or {}, "file:/etc/machine-id": machine}
    host = RecordingHost(ReplayHost(answers), Redactor(accepts))
    work = Work(host, ())
    work.facts["Vantage"] = dataclasses.replace(facts.machine()[Vantage], **vantage)  # type: ignore[type-var]
    got = identity(work)
    return got, dumps(Snapshot(host.answers, {}, {}, (), "1"))


def test_on_a_host() -> None:
    got, kept = about(kind="host", runtime=None)
    assert got["host"] == "train-0" and "node" not in got
    assert got["machine"].startswith("netdoctor-") and ID not in kept and got["machine"] in kept
    assert about(kind="host", runtime=None)[0] == got
    assert about(machine="f" * 32, kind="host", runtime=None)[0]["machine"] != got["machine"]
    assert about(machine=got["machine"], kind="host", runtime=None)[0] == got  # from a recording


@pytest.mark.parametrize(
    "machine", ["uninitialized\n", "", "x" * 32, Unavailable("absent", ""), Unavailable("not recorded", "")]
)
def test_no_machine_id_is_none(machine: Any) -> None:
    assert "machine" not in about(machine=machine, kind="host", runtime=None)[0]


def test_in_a_pod() -> None:
    got, _ = about(POD, kind="pod-init", runtime="kubernetes")
    assert (got["host"], got["node"]) == ("train-0", "gpu-17")
    assert "machine" not in got  # the image's


def test_a_node_name_of_others_is_none() -> None:
    assert "node" not in about({"NODE_NAME": "built-in"}, kind="host", runtime=None)[0]  # Jenkins


def test_pseudonyms() -> None:
    answers = {"env:": dict(POD), "file:/etc/machine-id": Redactor(accepts)("file:/etc/machine-id", ID)}
    made = dumps(pseudonymise(Snapshot(answers, {}, {}, (), "1"), b"key"))
    assert "gpu-17" not in made and str(answers["file:/etc/machine-id"]) not in made and "netdoctor-" in made


def test_where_nobody_could_look_from() -> None:
    """The report says why, and names no machine: it may be a container's."""
    work = Work(ReplayHost({"file:/etc/machine-id": f"netdoctor-{ID}\n"}), ())
    collect(work, ["Vantage", "Kernel"])
    made = report(work, decide=lambda checks, _: (checks, Verdict("inconclusive", 4, "")), profile="default")
    assert made.vantage == {"unavailable": "not recorded"}
    assert "machine" not in made.identity
