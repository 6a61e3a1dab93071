"""From a report's JSON to what is kept of it.  Every value is another machine's word: checked, cleaned and bounded."""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Hashable, Iterable
from typing import Any, Final, TypeVar

from netdoctor.causes.cost import WORST
from netdoctor.compare.addresses import own
from netdoctor.compare.traits import Traits, no_gpu, own_nics, traits
from netdoctor.facts.job import Expected
from netdoctor.fleet.contradiction import MAX_LIST, contradiction
from netdoctor.fleet.expected import lacks
from netdoctor.fleet.nodes import Fabric, Figure, Item, NodeRun, Shape
from netdoctor.model import Health, Severity, Status, size_text
from netdoctor.policy import waived_until
from netdoctor.textsafe import as_line
from netdoctor.variables.catalogue import is_default

H = TypeVar("H", bound=Hashable)
MAX_ITEMS: Final = 40  # findings kept per node, and as many fails beyond them

LETTER: Final = {"pass": "p", "fail": "f", "skip": "s", "unknown": "u", "error": "e"}
_SEVERITY: Final = {one.value: one for one in Severity}
_HEALTH: Final = {one.value: one for one in Health}
_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?(Z|\+00:00)")


class MalformedReportError(ValueError):
    """Says that it is a node report, but has not what a node report has."""


class Extract:
    """Makes `NodeRun`s; equal values of different nodes become one object."""

    def __init__(self, expected: Expected | None = None) -> None:
        """`expected`: what the site expects of each node; None: nothing."""
        self._expected = expected
        self._pool: dict[Any, Any] = {}
        self._traits: dict[Any, Traits] = {}

    def shared(self, value: H) -> H:
        return self._pool.setdefault(value, value)  # type: ignore[no-any-return]

    def run(self, doc: dict[str, Any], file: str, modified: float) -> NodeRun:
        """The run that `doc` (with schema netdoctor.report/1) tells of; raises MalformedReportError."""
        identity, verdict, checks = doc.get("identity"), doc.get("verdict"), doc.get("checks")
        if not isinstance(identity, dict) or not isinstance(host := identity.get("host"), str) or not as_line(host):
            raise MalformedReportError("no host name in it")
        if not isinstance(verdict, dict) or (health := _HEALTH.get(_text(verdict.get("status")))) is None:
            raise MalformedReportError("no verdict in it")
        if not isinstance(checks, list) or not checks:
            raise MalformedReportError("no checks in it")
        inventory = _dict(doc.get("inventory"))
        volatile = _dict(doc.get("volatile"))
        ids, statuses, items, omitted = self._checks(checks)
        found = traits(inventory, _text(doc.get("tool_version")), is_default)
        kept = self._traits.setdefault((tuple(found.values.items()), found.variables_read, found.links), found)
        partial = doc.get("partial")
        node = as_line(identity["node"], 253) if isinstance(identity.get("node"), str) else ""
        return NodeRun(
            host=node or as_line(host, 253),
            file=file,
            time=_seconds(volatile.get("time")),
            modified=modified,
            verdict=health,
            verdict_text=self.shared(as_line(verdict.get("text", ""))),
            partial=as_line(partial) if isinstance(partial, str) and partial else "the report is partial" if partial else "",
            checks=ids,
            statuses=statuses,
            items=items,
            omitted=omitted,
            shape=self.shared(_shape(inventory, _dict(doc.get("vantage")))),
            traits=kept,
            metrics=self._metrics(_list(doc.get("runs")), _list(volatile.get("runs"))),
            ids=frozenset(as_line(u, 80) for g in _list(inventory.get("gpus")) if isinstance(u := _dict(g).get("uuid"), str)),
            addresses=tuple((ip, self.shared(name)) for ip, name in own(inventory)),
            nccl_if=_nccl_interface(inventory),
            gids=self.shared(tuple(_gids(inventory))),
            pod=as_line(host, 253) if node and node != as_line(host, 253) else "",
            machine=as_line(identity["machine"], 80) if isinstance(identity.get("machine"), str) else "",
            place=_place(doc.get("nodes")),
            attempts=volatile["attempts"] if type(volatile.get("attempts")) is int else 1,
            lacks=self.shared(lacks(self._expected, inventory)) if self._expected is not None else (),
            doubt=contradiction(verdict, checks, doc.get("runs"), volatile) if health is Health.HEALTHY else "",
        )

    def _checks(self, checks: list[Any]) -> tuple[tuple[str, ...], str, tuple[Item, ...], int]:
        ids: list[str] = []
        letters: list[str] = []
        items: list[Item] = []
        omitted = 0
        for check in checks[:MAX_LIST]:
            if not isinstance(check, dict) or not isinstance(name := check.get("id"), str):
                raise MalformedReportError("a check without an id in it")
            ids.append(as_line(name, 100))
            letters.append(LETTER.get(check.get("status", ""), "e") if isinstance(check.get("status"), str) else "e")
            if letters[-1] in "ps":
                continue
            for finding in _list(check.get("findings")):
                if not isinstance(finding, dict) or (status := finding.get("status")) not in ("fail", "unknown", "error"):
                    continue
                if len(items) >= MAX_ITEMS * (2 if status == "fail" else 1):  # unknowns leave room for fails
                    omitted += 1
                    continue
                items.append(
                    self.shared(
                        Item(
                            check=ids[-1],
                            subject=as_line(finding.get("subject", "node"), 100),
                            status=Status(status),
                            severity=_SEVERITY.get(_text(finding.get("severity")), WORST) if status == "fail" else None,
                            cause=as_line(finding.get("cause") or check.get("cause") or "", 60),
                            message=as_line(finding.get("message", ""), 300),
                            waived=bool(waived_until(finding.get("waived"))),
                            blocking=finding.get("blocking") is True,
                            how=as_line(finding.get("how") or "", 300),
                        )
                    )
                )
        return self.shared(tuple(ids)), self.shared("".join(letters)), tuple(items), omitted

    def _metrics(self, runs: list[Any], figures: list[Any]) -> dict[Figure, float]:
        """Numbers that nodes are compared by, from runs that finished with right data."""
        out: dict[Figure, float] = {}
        for run, figure in zip(runs, figures, strict=False):
            if not isinstance(run, dict) or not isinstance(figure, dict):
                continue
            if run.get("state") != "finished" or run.get("verified") is False:
                continue
            path, device = _text(run.get("path")), _text(run.get("device"))
            cpu = device == "cpu"
            what = f"{_text(run.get('backend'))} {device} ×{_text(run.get('ranks'))}"
            what += "" if path in ("", "default") else f" {path}"
            busbw, latency = _numbers(figure.get("busbw_gb_s")), _numbers(figure.get("latency_s"))
            if busbw:
                out[self.shared(Figure("busbw", f"{what}, {size_text(max(busbw))}", cpu))] = busbw[max(busbw)]
            if latency:
                out[self.shared(Figure("latency", f"{what}, {size_text(min(latency))}", cpu))] = latency[min(latency)]
            begins = [_dict(_dict(rank).get("phase_seconds")).get("init") for rank in _list(figure.get("ranks"))]
            init = [float(v) for v in begins if v is not None and _is_number(v)]
            if init:
                out[self.shared(Figure("init", what, cpu))] = max(init)
        return out


def _place(nodes: object) -> tuple[str, int, int] | None:
    """Master, number of nodes and this node's rank, of a run across nodes."""
    known = _dict(nodes)
    count, rank, master = known.get("count"), known.get("rank"), known.get("master")
    if type(count) is not int or type(rank) is not int or not isinstance(master, str) or not 0 <= rank < count < 1 << 31:
        return None
    return (as_line(master), count, rank) if count > 1 else None


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value[:MAX_LIST] if isinstance(value, list) else []


def _text(value: Any) -> str:
    return as_line(value, 100) if isinstance(value, str | int | float) else ""


def _is_number(value: Any) -> bool:
    """More than 0; NaN and integers that no float holds are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e300


def _numbers(value: Any) -> dict[int, float]:
    """{size: number} from JSON's {"4096": 1.5}; what is no number is left out."""
    return {int(k): float(v) for k, v in _dict(value).items() if len(k) < 16 and k.isascii() and k.isdigit() and _is_number(v)}


def _seconds(value: Any) -> float | None:
    match = _TIME.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return None
    try:
        return float(calendar.timegm(time.strptime(match[1], "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return None


def _shape(inventory: dict[str, Any], vantage: dict[str, Any]) -> Shape:
    pci, gpus, nics = inventory.get("pci"), inventory.get("gpus"), inventory.get("nics")
    gpu_ids = None
    if isinstance(pci, list):
        gpu_ids = _distinct(d.get("id") for d in pci[:MAX_LIST] if isinstance(d, dict) and d.get("kind") == "gpu")
    own = own_nics(nics) if isinstance(nics, list) else None
    return Shape(
        gpu_ids=gpu_ids,
        gpu_names=_distinct(_dict(g).get("name") for g in gpus[:MAX_LIST]) if isinstance(gpus, list) else None,
        gpus=len(gpus) if isinstance(gpus, list) else 0 if no_gpu(inventory) else None,
        nics=None if own is None else _distinct(n.get("driver") for n in own),
        nic_count=None if own is None else len(own),
        fabric=_fabric(own or [], pci if isinstance(pci, list) else []),
        vantage=_text(vantage.get("kind")),
    )


def _fabric(nics: list[dict[str, Any]], pci: list[Any]) -> Fabric | None:
    """By the RDMA devices that there are most of; of as many the first by name."""
    ids = {_text(d.get("address")): _text(d.get("id")) for d in pci[:MAX_LIST] if isinstance(d, dict)}
    every = []
    for nic in nics:
        device = ids.get(_text(nic.get("pci"))) or _text(nic.get("driver"))
        layers = [_text(_dict(port).get("link_layer")) for port in _list(nic.get("ports"))[:1]]
        every += [Fabric(as_line(device, 40), as_line(layer, 40)) for layer in layers]
    return min(every, key=lambda one: (-every.count(one), one), default=None)


def _distinct(values: Iterable[Any]) -> tuple[str, ...]:
    return tuple(sorted({as_line(v, 100) for v in values if isinstance(v, str)}))


def _nccl_interface(inventory: dict[str, Any]) -> tuple[str, str, int | None, int | None] | None:
    taken = _dict(inventory.get("nccl_interface"))
    name, ip, prefix, mtu = (taken.get(k) for k in ("name", "address", "prefix", "mtu"))
    if not isinstance(name, str) or not isinstance(ip, str):
        return None
    return (
        as_line(name, 40),
        as_line(ip.partition("<")[0].strip(), 60),
        prefix if isinstance(prefix, int) and 0 <= prefix <= 128 else None,
        mtu if isinstance(mtu, int) and 0 < mtu < 1 << 31 else None,
    )


def _gids(inventory: dict[str, Any]) -> Iterable[tuple[str, tuple[tuple[int, str], ...]]]:
    """The GID table of every active Ethernet port as (index, kind and family)."""
    nics = inventory.get("nics")
    for nic in own_nics(nics) if isinstance(nics, list) else ():
        for port in _list(nic.get("ports")):
            port = _dict(port)
            table = port.get("gids")
            if port.get("link_layer") != "Ethernet" or port.get("state") != "ACTIVE" or not isinstance(table, list):
                continue
            entries = [
                (int(g["index"]), f"{_text(g.get('kind'))} {_family(g.get('value'))}")
                for g in map(_dict, table[:MAX_LIST])
                if isinstance(g.get("index"), int) and isinstance(g.get("kind"), str)
            ]
            yield f"{_text(nic.get('name'))}:{_text(port.get('number'))}", tuple(sorted(entries))


def _family(value: Any) -> str:
    """Of a GID's text: an IPv4 address is mapped (::ffff:a.b.c.d), fe80 is the link's own."""
    if not isinstance(value, str):
        return ""
    if value.startswith(("0000:0000:0000:0000:0000:ffff:", "::ffff:")):
        return "IPv4"
    return "link-local" if value.lower().startswith("fe80") else "IPv6"
