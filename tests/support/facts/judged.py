"""Reports of `log`, `env` and `fleet` as the command line makes them, and what they look like in a format."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import jsonschema

from netdoctor import policy
from netdoctor.cli.catalog import whole_schema
from netdoctor.fleet.nodes import Reading
from netdoctor.fleet.report import Fleet, examine
from netdoctor.model import CheckResult, Command, Finding, Severity, Verdict


def examined(reading: Reading, expected: Sequence[str] | None = None, fail_on: Severity = Severity.WARNING) -> Fleet:
    """A fleet judged with another threshold."""

    def decide(checks: tuple[CheckResult, ...], facts: Any) -> tuple[tuple[CheckResult, ...], Verdict]:
        return policy.decide(checks, fail_on=fail_on.value, command=Command.FLEET)

    return examine(reading, expected, decide)


def validated(text: str, name: str) -> Any:
    """The document, valid by the schema that `netdoctor schema NAME` prints."""
    document = json.loads(text)
    jsonschema.Draft202012Validator(whole_schema(name)).validate(document)
    return document


def findings(document: Any, *statuses: str) -> list[Any]:
    """All findings of a document."""
    return [f for c in document["checks"] for f in c["findings"] if not statuses or f["status"] in statuses]


def faults(fleet: Fleet) -> list[Finding]:
    """What the rules that compare nodes found; drift and outliers have rows of their own."""
    own = {"fleet.nodes", "fleet.drift", "fleet.outliers"}
    return [f for c in fleet.checks if c.id not in own for f in c.findings]
