# Copyright The netdoctor authors
# SPDX-License-Identifier: Apache-2.0

"""From what a host sent, or why it sent nothing, to the report that is kept of it."""

from __future__ import absolute_import, annotations, division, print_function

__metaclass__ = type

DOCUMENTATION = r"""
name: checked_report
short_description: The report to keep of a host
version_added: 0.1.0
author: The netdoctor authors (@netdoctor)
description:
  - Takes the result of M(netdoctor.cluster.preflight_info), or of the task that failed or was unreachable before it.
  - What a host says is another machine's word. The report is kept only if it is not larger than 5 MB, has the parts and types of
    C(netdoctor.report/1), and is of the host that was asked.
  - In every other case the result is a report too, which says what is missing, so that C(netdoctor fleet report) shows the host.
positional: _input, host
options:
  _input:
    description: The registered result.
    type: dict
    required: true
  host:
    description: Name of the host in the inventory.
    type: str
    required: true
  check_name:
    description:
      - Whether the report must be of a host of this name. Domains are compared where both names have one.
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: Keep what the host said
  ansible.builtin.copy:
    content: "{{ node | netdoctor.cluster.checked_report(inventory_hostname) | to_json }}"
    dest: "reports/{{ inventory_hostname }}.json"
    mode: "0644"
  delegate_to: localhost
"""

RETURN = r"""
_value:
  description: A report with schema C(netdoctor.report/1), whose host is the name in the inventory.
  type: dict
"""

import hashlib
import json

from ansible.errors import AnsibleFilterError
from ansible.module_utils.common.text.converters import to_text

MAX_BYTES = 5000000
SCHEMA = "netdoctor.report/1"
STATUSES = ("pass", "fail", "skip", "unknown", "error")
EXIT_CODES = {"healthy": (0,), "unhealthy": (3, 130, 143), "inconclusive": (0, 4, 130, 143)}
OWN_NAMES = ("localhost", "127.0.0.1", "::1")  # whoever asks itself: no machine is called so
PARTS = {
    "schema": str, "tool_version": str, "identity": dict, "vantage": dict, "profile": str, "verdict": dict,
    "checks": list, "runs": list, "inventory": dict, "volatile": dict,
}


class Refused(ValueError):
    """Why the report is not kept."""


def plain(value):
    """The value as JSON has it: no lazy containers, no tagged strings."""
    try:
        text = json.dumps(value, default=to_text)
    except (TypeError, ValueError, RecursionError) as error:
        raise Refused("it is no JSON: %s" % error)
    if len(text) > MAX_BYTES:
        raise Refused("it is larger than %d bytes" % MAX_BYTES)
    return json.loads(text)


def line(text, limit=300):
    """One line without control characters: what a host says may end up on a terminal."""
    text = " ".join("".join(c if c.isprintable() else " " for c in to_text(text)).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def check(report):
    """Raises Refused where this is no report as it should be."""
    if not isinstance(report, dict):
        raise Refused("it is no JSON object")
    if report.get("schema") != SCHEMA:
        raise Refused("its schema is %s, not %s" % (line(report.get("schema"), 60), SCHEMA))
    for name, kind in PARTS.items():
        if not isinstance(report.get(name), kind):
            raise Refused("it has no %s" % name)
    verdict = report["verdict"]
    status = verdict.get("status")
    if not isinstance(status, str) or verdict.get("exit_code") not in EXIT_CODES.get(status, ()) or not isinstance(verdict.get("text"), str):
        raise Refused("its verdict is none")
    if not report["checks"]:
        raise Refused("it has no checks")
    for result in report["checks"]:
        if not isinstance(result, dict) or not isinstance(result.get("id"), str) or result.get("status") not in STATUSES:
            raise Refused("it has a check that is none")
        findings = result.get("findings")
        if not isinstance(findings, list) or any(not isinstance(f, dict) or f.get("status") not in STATUSES for f in findings):
            raise Refused("it has a finding that is none")
    if not isinstance(report["identity"].get("host"), str):
        raise Refused("it does not say which host it is of")


def failure(result):
    """Why a module did not run, with what it said last: Ansible's own message alone seldom names the reason."""
    output = to_text(result.get("module_stderr") or "").strip() or to_text(result.get("module_stdout") or "").strip()
    reasons = [result.get("msg")] + output.splitlines()[-1:]
    return ": ".join(to_text(reason).rstrip(".: ") for reason in reasons if reason) or "no reason given"


def same_host(name, other):
    """A short name is anybody's of that name, two full names are two hosts."""
    first, second = (text.rstrip(".").lower().split(".") for text in (name, other))
    return first == second or (first[0] == second[0] and 1 in (len(first), len(second)))


def finding_report(host, subject, status, message, how, evidence=None, cause="inventory"):
    """A report with one finding, made here and not on the host."""
    fingerprint = hashlib.sha256("\0".join(("fleet.audited", subject, status, cause)).encode()).hexdigest()[:16]
    severity = "critical" if status == "fail" else None
    finding = {
        "fingerprint": fingerprint, "check": "fleet.audited", "status": status, "severity": severity, "cause": cause,
        "subject": subject, "message": message, "expected": None, "evidence": evidence or {}, "how": how, "why": None, "notes": [],
        "fix": None, "cure": None, "waived": None, "blocking": True,
    }
    word, code = ("unhealthy", 3) if status == "fail" else ("inconclusive", 4)
    return {
        "schema": SCHEMA,
        "tool_version": "",
        "identity": {"host": host},
        "vantage": {"kind": "controller", "why_not": "written by the machine that asked; nothing was seen on the host"},
        "profile": "audit",
        "partial": None,
        "verdict": {"status": word, "exit_code": code, "text": "%s: %s" % (word, message), "causes": [cause] if status == "fail" else []},
        "checks": [
            {"id": "fleet.audited", "title": "The host was looked at", "cause": cause, "status": status, "severity": severity, "findings": [finding]}
        ],
        "runs": [],
        "inventory": {},
        "volatile": {"measured": {}, "cost": {}},
    }


def checked_report(result, host, check_name=True):
    if not hasattr(result, "get"):
        raise AnsibleFilterError("checked_report takes the result of a task, not %s" % type(result).__name__)
    host = to_text(host)
    if result.get("unreachable"):
        text = "unreachable: %s" % line(result.get("msg", "no reason given"))
        return finding_report(host, "connection", "fail", text, "ssh, its user and key; whether the host is up", cause="missing_node")
    if result.get("status") not in ("healthy", "unhealthy", "inconclusive"):
        text = result.get("text") or failure(result)
        return finding_report(host, "netdoctor", "unknown", "netdoctor did not run: %s" % line(text), "run it on the host by hand")
    try:
        report = plain(result.get("report"))
        check(report)
        rc, code = result.get("rc"), report["verdict"]["exit_code"]
        if isinstance(rc, int) and rc != code:
            raise Refused("its exit code is %d, and netdoctor ended with %d" % (code, rc))
    except Refused as refused:
        return finding_report(host, "report", "unknown", "the report of the host was not kept: %s" % refused, "netdoctor --version on the host")
    says = report["identity"]["host"]
    if check_name and host not in OWN_NAMES and not same_host(says, host):
        return finding_report(
            host, "name", "unknown", "the host that answered calls itself %s" % line(says, 80),
            "addresses in the inventory and DNS; -e audit_check_name=false where names differ on purpose", {"host": line(says, 253)},
        )
    report["identity"]["host"] = host
    report["identity"].pop("node", None)  # the inventory's name counts
    report["volatile"].pop("attempts", None)
    if result.get("attempts", 1) > 1:
        report["volatile"]["attempts"] = int(result["attempts"])
    return report


class FilterModule:
    """The filters of this collection."""

    def filters(self):
        return {"checked_report": checked_report}
