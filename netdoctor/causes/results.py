"""What a check says as a result, and every result that no file of checks gives."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from netdoctor.causes import CAUSES
from netdoctor.causes.cost import MIGHT
from netdoctor.model import CheckResult, Finding, Status, record


@record
class ResultRow:
    """A result that no file of checks gives."""

    title: str  # what is true where it passes
    cause: str
    says: str = "netdoctor fleet report: a rule between nodes."


RESULTS: Final[dict[str, ResultRow]] = {
    "plugin.broken": ResultRow(
        "Every plugin can be used",
        "other",
        "A file of checks that cannot be loaded: its checks did not look, so the node is not called healthy.",
    ),
    "plugin.refused": ResultRow(
        "Checks are loaded only from where nobody else can write",
        "other",
        "Every folder on the way and the file must belong to root (or to you, if you are not root), writable by nobody else. "
        "Below a folder that all may write to, such as /tmp, nothing is loaded.  namei -l PATH shows owners and modes.",
    ),
    "plugin.missing": ResultRow(
        "Every check that ran where the snapshot was taken is here",
        "other",
        "netdoctor diagnose: a check that judged the node where the snapshot was taken, and is not installed here. "
        "Install it (--checks-dir), or diagnose where it is: without it the node is not called healthy.",
    ),
    "job.command": ResultRow(
        "What the command starts is what was looked at",
        "other",
        "netdoctor run: what env, taskset, numactl and their like set before the job is applied to what is judged. A script, "
        "bash -c, srun or a launcher with an environment of its own cannot be seen through: put netdoctor run behind it.",
    ),
    "log.job": ResultRow(
        "The log shows how the job went",
        "other",
        "netdoctor log: whether the log tells anything at all. It is unknown where the log ends early, or shows neither a "
        "fault nor that NCCL came up. What failed is the result log.CAUSE.",
    ),
    "ras.ranks": ResultRow(
        "All ranks are there and move on together",
        "hang",
        "netdoctor ras: what NCCL's RAS service says of the ranks of a running job, asked twice where they differ.",
    ),
    "fleet.nodes": ResultRow(
        "Every node that is expected is there, and healthy by its own report",
        "other",
        "netdoctor fleet report: what each node says of itself. A finding a node that is bad, missing, flaky or unknown.",
    ),
    "fleet.expected": ResultRow(
        "Every node is as the site expects",
        "inventory",
        "netdoctor fleet report: `expected:` of the configuration (see netdoctor expect) against what each report shows. A "
        "finding a thing that is less, with all nodes that have it so: what all share is no difference between them.",
    ),
    "fleet.drift": ResultRow(
        "Nodes of one kind have the same versions and settings",
        "drift",
        "netdoctor fleet report: versions and settings by which a node differs from most nodes of its kind.",
    ),
    "fleet.outliers": ResultRow(
        "No node is much slower than its kind",
        "straggler",
        "netdoctor fleet report: figures of the nodes' own all-reduces, against the median of their kind.",
    ),
    "fleet.host_name": ResultRow("Every machine has a name of its own", "duplicate_address"),
    "fleet.nccl_subnet": ResultRow("Nodes of one kind meet in one network", "socket_ifname"),
    "fleet.mtu": ResultRow("Nodes of one network have one MTU", "mtu"),
    "fleet.address": ResultRow("Every address is one node's", "duplicate_address"),
    "fleet.node_rank": ResultRow("No two nodes take one place in a common run", "duplicate_address"),
    "fleet.gid": ResultRow("A fixed GID index means the same on every node", "roce_gid"),
    "fleet.audited": ResultRow(
        "The host was looked at",
        "inventory",
        "The Ansible role: a host that gave no report, written by the machine that asked.",
    ),
    **{f"log.{name}": ResultRow(f"No sign of: {row.title}", name) for name, row in CAUSES.items()},
}


def completed(finding: Finding, check: str, cause: str) -> Finding:
    """`finding` with what its maker left to its check: the check's id and cause, and of a fail what it costs."""
    cause = finding.cause or cause
    doubt = finding.perhaps and completed(finding.perhaps, check, cause)
    if finding.status is not Status.FAIL:
        return replace(finding, check=check, cause=cause, severity=None, loss=None, perhaps=doubt)
    loss = finding.loss
    if loss is None and finding.severity is None:  # a site's own check may say that, and so does another node's report
        loss = CAUSES[cause].loss if cause in CAUSES else MIGHT
    return replace(finding, check=check, cause=cause, loss=loss)


def result(id: str, title: str, cause: str, findings: Iterable[Finding]) -> CheckResult:
    """What a check says: each finding completed."""
    return CheckResult(id, title, cause, tuple(completed(f, id, cause) for f in findings))


def own_result(id: str, findings: Iterable[Finding]) -> CheckResult:
    """A result of `RESULTS`."""
    row = RESULTS[id]
    return result(id, row.title, row.cause, findings)
