"""What only `netdoctor log` has to say: the facts of the log, and what it cannot show."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from netdoctor.model import Json, count, plain, record
from netdoctor.model.section import Page, Section
from netdoctor.report.page import el, markup
from netdoctor.report.values import tidy
from netdoctor.textsafe import clean, listed

if TYPE_CHECKING:
    from netdoctor.nccl.log.facts import LogFacts

_CONNECTIONS: Final = 4096  # in JSON; beyond it the count alone
_NOT_FACTS: Final = frozenset(
    (
        "absent",
        "unseen",
        "events",
        "vias",
        "virtual_devices",
        "files",
        "documents",
        "lines",
        "nccl_lines",
        "bytes_read",
        "work",
        "up_at",
        "up_of",
        "trained",
        "anew",
        "figures",
        "counts",
        "left",
        "ordinary",
        "runs",
        "earlier",
        "counted",
        "silence",
        "unended",
        "written",
        "alone",
    )
)


@record
class LogSection(Section):
    """The facts of a log."""

    facts: LogFacts
    ending: str = ""
    how: str = ""

    def about(self) -> str:
        f = self.facts
        size = f"{count(f.lines, 'line')}, {count(f.nccl_lines, 'message')} of NCCL"  # a line may hold several
        many = f" in {len(f.files)} files" if len(f.files) > 1 else ""
        cuda = f", CUDA {f.cuda_version}" if f.cuda_version else ""
        return f"{f.library or 'NCCL'} {f.nccl_version or 'version not shown'}{cuda}; {size}{many}"

    def data(self) -> Mapping[str, Any]:
        """In `facts` a key that is missing is one that this log cannot show; null is looked for, not there."""
        f = self.facts
        return {
            "log": {
                "files": [clean(name) for name in f.files[:1024]],
                "lines": f.lines,
                "nccl_lines": f.nccl_lines,
                "bytes": f.bytes_read,
                "levels": plain(f.levels),
                "subsystems": sorted(f.subsystems),
            },
            "outcome": {"ending": self.ending, "how": clean(self.how)},
            "facts": _facts(f),
            "unseen": [{"what": clean(what), "how": clean(how)} for what, how in f.unseen],
        }

    def text(self) -> Iterable[str]:
        yield from ("", *self._summary())
        if self.facts.unseen:
            yield from ("", "Not in this log:")
            yield from (f"        {what} ({how})" for what, how in self.facts.unseen)

    def _summary(self) -> Iterator[str]:
        if self.ending:
            yield f"the end: {self.ending}; {self.how}" if self.how else f"the end: {self.ending}"
        yield from _summary(self.facts)

    def page(self) -> Page:
        unseen = [el("li", f"{what} ({how})") for what, how in self.facts.unseen]
        return Page(
            markup(
                el("h2", "The log"),
                el("ul", (el("li", line) for line in self._summary())),
                (el("h2", "Not in this log"), el("ul", unseen)) if unseen else "",
            )
        )


def _facts(facts: LogFacts) -> dict[str, Json]:
    out: dict[str, Json] = {}
    for field in dataclasses.fields(facts):
        if field.name not in _NOT_FACTS and field.name not in facts.absent:
            out[field.name] = tidy(getattr(facts, field.name))
    if "vias" not in facts.absent:
        out["connections"] = tidy(facts.vias[:_CONNECTIONS])
        if len(facts.vias) > _CONNECTIONS:
            out["connections_left_out"] = len(facts.vias) - _CONNECTIONS
    return out


def _summary(facts: LogFacts) -> Iterator[str]:
    shape = []
    if facts.nranks:
        shape.append(count(facts.nranks, "rank"))
    if facts.nodes and facts.nodes > 1 and facts.one_host:
        shape.append(f"1 host, which NCCL counts as {count(facts.nodes, 'node')}")
    elif facts.nodes:
        shape.append(count(facts.nodes, "node"))
    elif facts.hosts:
        shape.append(f"{count(len(facts.hosts), 'host')} in this log")
    if facts.bootstrap_ifname:
        shape.append(f"bootstrap on {facts.bootstrap_ifname} ({facts.bootstrap_address})")
    if facts.network:
        shape.append(f"network {facts.network}")
    if facts.devices:
        names = [f"{d.name}:{d.port}/{d.link}" for d in facts.devices]
        shape.append(f"{count(len(names), 'device')} ({listed(names, 4)})")
    if facts.gdrdma is not None:
        words = {True: "in use", False: "not in use", "mixed": "on some connections only"}
        shape.append(f"GPUDirect RDMA {words[facts.gdrdma.value]}")
    if shape:
        yield "; ".join(shape)
    if facts.transports:
        top = sorted(facts.transports.items(), key=lambda item: -item[1])
        yield f"transports: {listed([f'{name} × {count}' for name, count in top])}"
    if facts.env:
        yield f"variables: {listed([f'{name}={value}' for name, value in facts.env.items()], 12)}"
    yield from (f"NCCL's own diagnostics: {line}" for line in facts.diagnostics[:12])
