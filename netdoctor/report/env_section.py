"""What only `netdoctor env` has to say: what was read, for which NCCL, and which variables are in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from netdoctor.facts.nccl_version import Version, text
from netdoctor.model import record
from netdoctor.model.section import Page, Section
from netdoctor.report.page import el
from netdoctor.textsafe import clean


@record
class EnvironmentSection(Section):
    """Whose variables were judged."""

    files: tuple[str, ...]  # none: this process and its nccl.conf
    version: Version | None
    catalogue: Version  # the newest release that it knows
    in_order: tuple[str, ...]  # variables that do what they say

    def about(self) -> str:
        what = ", ".join(self.files) if self.files else "this environment and its nccl.conf"
        version = text(self.version) if self.version else "of several versions (give --nccl)"
        return f"{what}; judged for NCCL {version}{'; no node was looked at' if self.files else ''}"

    def data(self) -> Mapping[str, Any]:
        return {
            "files": [clean(name) for name in self.files],
            "nccl_version": text(self.version) if self.version else None,
            "catalogue": text(self.catalogue),
        }

    def text(self) -> Iterable[str]:
        if self.in_order:
            yield from ("", f"in order: {', '.join(self.in_order)}")

    def page(self) -> Page:
        return Page(el("p", f"In order: {', '.join(self.in_order)}")) if self.in_order else Page()
