"""A node's report as HTML: one inert file, whatever the strings in it are."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings

from netdoctor.inventory import inventory
from netdoctor.model import Finding, Quantity, Report, Status
from netdoctor.render import html, svg
from netdoctor.render.page import data_block, esc, page
from tests.support import facts
from tests.support.reports import EVERY, PASS, check, report, reports

_VOID = {"meta", "br", "input", "img", "link"}


class Parsed(HTMLParser):
    """Elements, attributes and text; checks that elements are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in _VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def inert(text: str) -> Parsed:
    """Assert that the page can neither run nor fetch anything."""
    parsed = Parsed(text)
    assert "script" not in parsed.tags and not {"img", "iframe", "object", "link", "base", "form"} & set(parsed.tags)
    for tag, name, value in parsed.attributes:
        assert not name.startswith("on") and name != "style", (tag, name)
        assert name not in ("src", "href") or (value or "").startswith("#"), (tag, name, value)
    (policy,) = [v for t, n, v in parsed.attributes if t == "meta" and n == "content" and v and "default-src" in v]
    assert policy.startswith("default-src 'none'; style-src 'sha256-") and "unsafe" not in policy
    return parsed


@pytest.mark.parametrize("name", sorted(EVERY))
def test_every_verdict(name: str) -> None:
    parsed = inert(html.render(EVERY[name]))
    words = "".join(parsed.words)
    assert EVERY[name].verdict.text in words
    for result in EVERY[name].checks:
        assert result.id in words
        for finding in result.findings:
            assert finding.message in words


@settings(max_examples=60, deadline=None)
@given(made=reports())
def test_other_peoples_strings_stay_text(made: Report) -> None:
    text = html.render(made)
    inert(text)
    text.encode("utf-8")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)


def whole() -> Report:
    sizes = [1 << power for power in range(12, 27)]
    figures = {"busbw_gb_s": {str(s): 360.0 * s / (s + (1 << 23)) for s in sizes}, "latency_s": {"4096": 25e-6}}
    run = {"backend": "nccl", "device": "cuda", "ranks": 8, "path": "default", "state": "finished", "verified": True,
           "transports": {"P2P/CUMEM": 224}}  # fmt: skip
    found = Finding(Status.PASS, "341 GB/s", measured={"limit": Quantity(450, "GB/s")})
    return report(PASS, check("allreduce.bandwidth", found), runs=(run,), volatile={"runs": [figures]},
                  inventory=inventory(facts.machine()))  # fmt: skip


def test_curve_limit_transports_topology_and_inventory_are_shown() -> None:
    parsed = inert(html.render(whole()))
    words = "".join(parsed.words)
    assert parsed.tags.count("circle") == 15 and "limit of the path 450 GB/s" in words
    assert "P2P/CUMEM: 224" in words and "25 µs" in words
    assert "NUMA node 0" in words and "NUMA node 1" in words
    assert all(f"GPU {i}" in words and f"mlx5_{i}" in words for i in range(8))
    assert "580.95.05" in words


def test_wrong_data_is_said_in_so_many_words() -> None:
    run = {"backend": "nccl", "device": "cuda", "ranks": 8, "path": "default", "state": "finished", "verified": False}
    assert "DATA WRONG" in html.render(report(PASS, runs=(run,), volatile={"runs": [{}]}))


def test_what_is_wrong_stands_before_what_is_well() -> None:
    text = html.render(EVERY["unhealthy"])
    assert text.index("net.socket_ifname") < text.index("net.port_range</span>")


def test_data_cannot_end_its_block() -> None:
    value = {"a": "</script><script>alert(1)</script><!--", "b": "\u2028"}
    block = data_block("data", value)
    assert block.count("<") == 2
    assert json.loads(block.partition(">")[2].rpartition("</")[0]) == value


def test_escaping() -> None:
    assert esc("<a b='\"'>&\x1b[31m\x00") == "&lt;a b=&#x27;&quot;&#x27;&gt;&amp;"
    assert "script-src" not in page("t", "") and "script-src 'sha256-" in page("t", "", script="1")


@pytest.mark.parametrize("values", [[1.0], [0.0, 0.0], [5e-6, 6e-6], [1.0, 1e9], [3.0] * 50])
def test_a_histogram_of_anything(values: list[float]) -> None:
    bars = Parsed(svg.histogram(values, [(values[0], "n<1>")], values[0], "GB/s", "label"))
    assert sum(int(w) for w in re.findall(r"<title>(\d+)</title>", svg.histogram(values, [], values[0], "s", "l"))) == len(
        values
    )
    assert "n<1>" in bars.words


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 361.2), (3, 3), (-5, 5), (1e-7, 3e-7), (0, 0)])
def test_ticks_cover_the_range(low: float, high: float) -> None:
    ticks = svg.nice(low, high)
    assert ticks[0] <= low + 1e-9 * abs(low) and ticks[-1] >= high - 1e-9 * abs(high) and 1 <= len(ticks) <= 12


def test_a_device_without_a_pci_address() -> None:
    gone = {"unavailable": "denied", "detail": ""}
    have = {
        "gpus": [{"index": 0, "pci": gone}],
        "nics": [{"name": "mlx5_0", "pci": gone}],
        "pci": [{"address": gone, "kind": "gpu"}],
    }
    assert "Topology" in html.render(report(PASS, inventory=have))
