"""A node's report as HTML: one inert file, whatever the strings in it are."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given

from netdoctor.facts.inventory import inventory
from netdoctor.model import Command, Finding, Quantity, Report, Severity, Status, count
from netdoctor.report import html, plots
from netdoctor.report.page import data_block, el, esc, markup, page
from tests.support import facts
from tests.support.facts.reports import DRAWN, EVERY, PASS, check, report, reports

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
    assert "script" not in parsed.tags and not {"iframe", "object", "link", "base", "form"} & set(parsed.tags)
    for tag, name, value in parsed.attributes:
        assert not name.startswith("on") and name != "style", (tag, name)
        assert name != "href" or (value or "").startswith("#"), (tag, name, value)
        assert name != "src" or (tag == "img" and (value or "").startswith("data:image/svg+xml;base64,")), (tag, name, value)
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


@pytest.mark.slow
@DRAWN
@given(made=reports())
def test_other_peoples_strings_stay_text(made: Report) -> None:
    text = html.render(made)
    inert(text)
    text.encode("utf-8")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)


def whole() -> Report:
    sizes = [1 << power for power in range(12, 27)]
    figures = {"busbw_gb_s": {str(s): 360.0 * s / (s + (1 << 23)) for s in sizes}, "latency_s": {"4096": 25e-6}}
    run = {
        "backend": "nccl",
        "device": "cuda",
        "ranks": 8,
        "path": "default",
        "state": "finished",
        "verified": True,
        "transports": {"P2P/CUMEM": 224},
    }
    found = Finding(Status.PASS, "341 GB/s", measured={"limit": Quantity(450, "GB/s")})
    return report(
        PASS,
        check("allreduce.bandwidth", found),
        runs=(run,),
        volatile={"runs": [figures]},
        inventory=inventory(facts.machine()),
    )


def test_curve_limit_transports_topology_and_inventory_are_shown() -> None:
    parsed = inert(html.render(whole()))
    words = "".join(parsed.words)
    (curve,) = pictures(parsed)
    assert curve.count("<use ") >= 15 and "limit of the path 450 GB/s" in curve
    assert "P2P/CUMEM: 224" in words and "25 µs" in words and "limit of the path 450 GB/s" in words
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
    assert "script-src" not in page("t", markup()) and "script-src 'sha256-" in page("t", markup(), script="1")


def test_an_element_escapes_what_is_no_element() -> None:
    inner = el("b", "<i>", title='"x"', hidden=True, open=False, data_s="")
    assert inner == '<b title="&quot;x&quot;" hidden data-s="">&lt;i&gt;</b>'
    assert el("td", "<", inner, [inner, ("&", el("br"))], css="num") == f'<td class="num">&lt;{inner}{inner}&amp;<br></td>'
    assert el("td", inner) != el("td", f"{inner}")  # what is put together by hand is text again


def pictures(parsed: Parsed) -> list[str]:
    """The images of a page; each is well-formed."""
    found = [v for t, n, v in parsed.attributes if t == "img" and n == "src" and v]
    made = [base64.b64decode(one.partition("base64,")[2]).decode() for one in found]
    for one in made:
        ElementTree.fromstring(one)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("values", [[1.0], [0.0, 0.0], [5e-6, 6e-6], [1.0, 1e9], [3.0] * 50, [1.0, 1e308], [2.0] * 300])
def test_a_histogram_of_anything(values: list[float]) -> None:
    name = "n<1>$x^{$\u4e2d</svg>"
    parsed = inert_image(plots.histogram(values, [(values[0], name)], values[0], "GB/s", "label <b>"))
    (picture,) = pictures(parsed)
    assert "n&lt;1&gt;$x^{$?&lt;/svg&gt;" in picture and f"median {values[0]:.3g} GB/s" in picture
    assert (
        "alt",
        f"label <b>: {count(len(values), 'node')}, 1 outlier" + (", 1 off the scale" if 1e308 in values else ""),
    ) in [(n, v) for _, n, v in parsed.attributes]


def inert_image(text: str) -> Parsed:
    parsed = Parsed(text)
    assert parsed.tags == ["img"]
    return parsed


def test_the_same_figures_give_the_same_picture() -> None:
    assert plots.curve([(1024, 1.0), (2048, 2.0)], None, "GB/s", "x") == plots.curve(
        [(1024, 1.0), (2048, 2.0)], None, "GB/s", "x"
    )


def test_without_the_library_the_figures_are_there_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "why_not", lambda: plots.NEEDED)
    parsed = inert(html.render(whole()))
    words = "".join(parsed.words)
    assert "img" not in parsed.tags and "pip install matplotlib" in words
    assert "limit of the path 450 GB/s" in words and "64 MiB" in words and "320 GB/s" in words


@pytest.mark.slow
def test_no_font_cache_is_left_behind(tmp_path: Path) -> None:
    program = (
        "from netdoctor.report import plots; print(len(plots.curve([(1, 1.0), (2, 2.0)], None, 'GB/s', 'x')), plots.why_not())"
    )
    environment = {**os.environ, "HOME": str(tmp_path), "TMPDIR": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "c")}
    environment = {k: v for k, v in environment.items() if not k.startswith("MPL")}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[0]) > 1000 and done.stderr == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_library_is_told_apart_from_one_that_does_not_load() -> None:
    program = "import sys; sys.modules['matplotlib'] = None; from netdoctor.report import plots; print(plots.why_not())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == plots.NEEDED


def test_a_device_without_a_pci_address() -> None:
    gone = {"unavailable": "denied", "detail": ""}
    have = {
        "gpus": [{"index": 0, "pci": gone}],
        "nics": [{"name": "mlx5_0", "pci": gone}],
        "pci": [{"address": gone, "kind": "gpu"}],
    }
    assert "Topology" in html.render(report(PASS, inventory=have))


def _box(one: Report) -> str:
    return html.render(one).partition('<div class="verdict ')[2].partition("</div>")[0]


def test_the_box_tells_the_worst_finding_before_its_command() -> None:
    box = _box(EVERY["unhealthy"])
    said = ["NCCL takes docker0", "first: set NCCL_SOCKET_IFNAME=ib0", "export NCCL_SOCKET_IFNAME=ib0"]
    places = [box.find(part) for part in said]
    assert -1 < places[0] < places[1] < places[2]
    assert 'class="worst"' not in _box(EVERY["healthy"])


@pytest.mark.parametrize("command", [Command.FLEET, Command.LOG])
def test_the_box_of_other_commands_tells_it_too(command: Command) -> None:
    drift = Finding(Status.FAIL, "NCCL: 2.21.5", "nccl", Severity.CRITICAL, nodes=("h100-9",), how="install one NCCL")
    box = _box(replace(report(check("fleet.drift", drift)), command=command))
    assert "<b>fleet.drift</b>: nccl: NCCL: 2.21.5 (h100-9)" in box and "first: install one NCCL" in box


def test_the_box_says_what_to_do_first() -> None:
    text = html.render(EVERY["unhealthy"])
    box = text[text.index('class="verdict unhealthy"') : text.index("<h2")]
    assert EVERY["unhealthy"].verdict.text in box
    assert "<pre>export NCCL_SOCKET_IFNAME=ib0</pre>" in box


@pytest.mark.parametrize(("subject", "red"), [("mlx5_1:1", ["mlx5_1"]), ("GPU0–mlx5_1", ["GPU 0", "mlx5_1"]), ("node", [])])
def test_what_a_fail_names_is_red_in_the_picture(subject: str, red: list[str]) -> None:
    pci = [
        {"kind": kind, "numa_node": 0, "root": "pci0000:10", "address": f"0000:1{n}:00.0"}
        for n, kind in enumerate(("gpu", "nic", "nic"))
    ]
    parts = {
        "pci": pci,
        "gpus": [{"index": 0, "pci": "0000:10:00.0"}],
        "nics": [{"name": f"mlx5_{n}", "pci": f"0000:1{n}:00.0"} for n in (1, 10)],
    }
    parts["nics"][1]["pci"] = "0000:12:00.0"
    text = html.render(report(check("site.own", Finding(Status.FAIL, "broken", subject)), inventory=parts))
    assert re.findall(r'class="device [a-z]+ bad">([^<]+)<', text) == red


def test_the_picture_stands_before_the_details() -> None:
    have = inventory(facts.machine())
    gpu, nic = dict(have["gpus"][0], nvlinks=18, nvlinks_up=17), dict(have["nics"][0])
    nic["ports"] = [dict(nic["ports"][0], state="DOWN"), dict(nic["ports"][0], state="ACTIVE", rate_gbps=400.0)]
    odd = dict(have["gpus"][1], nvlinks={"unavailable": "denied"}, nvlinks_up=None)
    changed = {**have, "gpus": [gpu, odd, *have["gpus"][2:]], "nics": [nic, *have["nics"][1:]]}
    text = html.render(report(EVERY["unhealthy"].checks[1], inventory=changed))
    assert "17/18 NVLinks" in text and "down, 400 Gb/s" in text
    assert text.index('class="topology"') < text.index("What is wrong") < text.index("All 1 check")
