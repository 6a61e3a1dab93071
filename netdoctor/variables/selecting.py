"""What selects devices, by what is known of those that this node has."""

from __future__ import annotations

from dataclasses import replace

from netdoctor.model import Finding, Status, Unavailable
from netdoctor.variables import catalogue
from netdoctor.variables.issue import Known


def weighed(finding: Finding, known: Known) -> Finding:
    """What selects devices does not pass as long as those of the node could not be read, or where several nodes' job has none.

    An image names a fabric wherever it starts, so this is no fault; whether the fabric should be here nobody says.
    """
    row = catalogue.lookup(finding.subject)
    what, there = {
        "hca": ("a device could not be told: RDMA devices", known.hcas),
        "ifname": ("an interface could not be told: interfaces", known.links),
        "gloo-ifname": ("an interface could not be told: interfaces", known.links),
    }.get(row.accepts if row else "", ("", None))
    if finding.status is not Status.PASS:
        return finding
    if finding.evidence.get("rule") == "no-device" and (known.nodes or 1) > 1:
        words = f"{finding.message}: {finding.notes[0]}; whether RDMA should be here is not known"
        how = "ibv_devices and lspci on a node where it works; where none is meant: expected: {transport: TCP}"
        return replace(finding, status=Status.UNKNOWN, message=words, how=how, notes=())
    if not isinstance(there, Unavailable):
        return finding
    return replace(finding, status=Status.UNKNOWN, message=f"whether it selects {what}: {there}")
