"""What only `netdoctor ras` has to say: the job's size, and NCCL's own diagnostics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from netdoctor.model import count, plain, record
from netdoctor.model.section import Page, Section
from netdoctor.nccl.ras import Behind, Status
from netdoctor.report.page import el, markup
from netdoctor.textsafe import clean


@record
class RasSection(Section):
    """The answer of a job; None: there was none."""

    address: str
    status: Status | None = None
    stuck: tuple[Behind, ...] = ()
    by: str = ""  # what said where to ask

    def about(self) -> str:
        s = self.status
        where = self.address + (f" (by {self.by})" if self.by else "")
        if s is None:
            return f"no answer from {where}"
        told = ((s.nodes, "node", ""), (s.processes, "process", "processes"), (s.gpus, "GPU", ""))
        size = ", ".join(count(number, *words) for number, *words in told if number) if s.nodes else "size not told"
        return f"NCCL {s.nccl_version or 'version not told'}; {size}; {s.comms} communicators; asked at {where}"

    def data(self) -> Mapping[str, Any]:
        return {"address": clean(self.address), "status": plain(self.status), "stuck": plain(self.stuck)}

    def text(self) -> Iterable[str]:
        return [f"diag    {line.strip()}" for line in self.status.diagnostics] if self.status else ()

    def page(self) -> Page:
        if self.status is None or not self.status.diagnostics:
            return Page()
        return Page(markup(el("h2", "NCCL's own diagnostics"), el("pre", "\n".join(self.status.diagnostics))))
