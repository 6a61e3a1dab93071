"""The HTML reports in a real browser: what a person sees, what a click opens, and that nothing else runs.

Screenshots for the documentation: ``NETDOCTOR_SCREENSHOTS=docs pytest tests/live/test_html_in_a_browser.py``.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser

import pytest

from netdoctor.cli import fleet as command
from netdoctor.facts.inventory import inventory
from netdoctor.fleet.read import read
from netdoctor.fleet.report import examine
from netdoctor.model import Finding, Quantity, Status
from netdoctor.report import html as node_html
from netdoctor.snapshot.snapshot import dumps
from tests.support import facts
from tests.support.clusters import fleets
from tests.support.facts.reports import FAIL, PAIRS, PASS, SKIP, UNKNOWN, check, report
from tests.support.machines import composed

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(BROWSER is None, reason="no chromium on PATH (Debian: apt install chromium)"),
]
HOSTILE = '"><script>document.title="owned"</script><img src=x onerror="document.title=\'owned\'">'


@pytest.fixture
def browse(tmp_path: pathlib.Path) -> Callable[..., str]:
    """Open a file in a headless browser without a network; with `screenshot` to a picture, else the DOM after scripts ran."""

    def run(path: pathlib.Path, at: str = "", screenshot: pathlib.Path | None = None, size: str = "1280,1600") -> str:
        assert BROWSER is not None
        command = [
            BROWSER,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--window-size={size}",
            "--disable-extensions",
            "--no-first-run",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            "--virtual-time-budget=5000",
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--screenshot={screenshot}" if screenshot else "--dump-dom",
            f"{path.as_uri()}{at}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    return run


class Dom(HTMLParser):
    """Text by element id, table rows, classes of elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: dict[str, str] = {}
        self.rows: list[list[str]] = []
        self.words = ""
        self.classes: dict[str, str] = {}
        self.scripts = 0
        self._cell: list[str] | None = None
        self._skip = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        have = dict(attrs)
        self._skip = tag in ("script", "style")
        self.scripts += tag == "script"
        if (name := have.get("id")) is not None:
            self.classes[name] = have.get("class") or ""
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")
            self._cell = self.rows[-1]

    def handle_endtag(self, tag: str) -> None:
        self._skip = False
        if tag in ("td", "th"):
            self._cell = None

    def handle_data(self, data: str) -> None:
        if not self._skip:
            self.words += data
            if self._cell is not None:
                self._cell[-1] += data


def sample(folder: pathlib.Path, hostile: bool = False) -> pathlib.Path:
    """A fleet of 56 nodes with one fault of most kinds, as HTML."""
    folder.mkdir()
    names = []
    plan = {3: "driver", 9: "mtu", 14: "busbw", 20: "gpus", 27: "own", 33: "nccl"}
    for number in range(36):
        name = HOSTILE if hostile and number == 3 else f"gpu-{number + 1:03d}"
        doc = fleets.report(name, number=number + 1)
        if fault := plan.get(number):
            fleets.FAULTS[fault][1](doc)
        if number == 22:
            doc["checks"][6] |= {
                "status": "unknown",
                "findings": [
                    {
                        **doc["checks"][6]["findings"][0],
                        "status": "unknown",
                        "message": "the delay to the other nodes was not measured",
                    }
                ],
            }
            doc["verdict"] = {"status": "inconclusive", "exit_code": 4, "text": "INCONCLUSIVE", "causes": []}
        names.append(name)
        (folder / f"{number:02d}.json").write_text(json.dumps(doc) if number != 30 else json.dumps(doc)[:20000])
    for number in range(20):
        doc = fleets.report(f"roce-{number + 1:02d}", fleets.KINDS[1], number + 1)
        if number == 4:
            fleets.FAULTS["gids"][1](doc)
        if number == 11:
            doc["inventory"]["sysctls"]["net.core.somaxconn"] = "128"
        names.append(f"roce-{number + 1:02d}")
        (folder / f"r{number:02d}.json").write_text(json.dumps(doc))
    (folder / "30.json").rename(folder / "gpu-031.json")
    path = folder.parent / "fleet.html"
    path.write_text(node_html.render(command.report(examine(read([str(folder)]), [*names, "gpu-037"]))), encoding="utf-8")
    return path


def test_the_overview(browse: Callable[..., str], tmp_path: pathlib.Path) -> None:
    text = browse(sample(tmp_path / "reports"))
    dom = Dom(text)
    assert 'data-ready="yes"' in text  # our script was allowed and ran to its end
    assert "57 nodes given = 46 good, 8 bad, 0 flaky, 2 unknown, 1 missing" in dom.words
    heat = {row[0]: row[1:] for row in dom.rows if row and re.fullmatch(r"(gpu|roce)-\d+", row[0])}
    assert len(heat) == 57
    assert heat["gpu-037"][0] == "missing" and heat["gpu-031"][0] == "unknown"
    ports = [name for name, _, _ in fleets.CHECKS].index("net.port_range")
    assert heat["gpu-028"][1 + ports] == "✗" and heat["gpu-001"][1 + ports] == "✓"
    drift = next(row for row in dom.rows if len(row) == 5 and row[1] == "NVIDIA driver")
    assert "570.86.10: gpu-004" in drift[3]
    assert "roce-05" in dom.words.partition("fleet.gid")[2]
    assert text.count('src="data:image/svg+xml') >= 2
    assert dom.classes["node"] == "hidden" and "hidden" not in dom.classes["report"]


def test_a_click_opens_the_page_of_a_node(browse: Callable[..., str], tmp_path: pathlib.Path) -> None:
    path = sample(tmp_path / "reports")
    link = re.search(r'href="(#n\d+)">gpu-004<', path.read_text(encoding="utf-8"))
    assert link is not None
    dom = Dom(browse(path, link[1]))
    assert "hidden" in dom.classes["report"] and "hidden" not in dom.classes["node"]
    page = dom.words.partition("← all nodes")[2]
    assert page.startswith("gpu-004") and "NVIDIA driver: 570.86.10" in page and "differs from its kind" in page
    assert ["net.port_range", "pass"] in dom.rows


def test_nothing_of_other_machines_runs(browse: Callable[..., str], tmp_path: pathlib.Path) -> None:
    path = sample(tmp_path / "reports", hostile=True)
    for at in ("", "#n0", "#n1", "#n2", "#n3", "#n4"):
        text = browse(path, at)
        assert "<title>netdoctor: fleet report</title>" in text
        assert all('src="data:image/svg+xml;base64,' in image for image in re.findall("<img[^>]*>", text))  # ours
        assert Dom(text).scripts == 2
    assert HOSTILE in Dom(browse(path)).words  # it is shown, as text


def test_the_policy_stops_a_script_that_got_in(browse: Callable[..., str], tmp_path: pathlib.Path) -> None:
    path = sample(tmp_path / "reports")
    text = path.read_text(encoding="utf-8")
    evil = '<script>document.title="owned"</script><p onclick="1" id="evil">x</p><img src=x onerror="document.title=\'owned\'">'
    path.write_text(text.replace("<h1>", evil + "<h1>", 1), encoding="utf-8")
    got = browse(path)
    assert 'id="evil"' in got and "<title>netdoctor: fleet report</title>" in got
    # The same without the policy: the test would see it run.
    path.write_text(re.sub(r"<meta http-equiv[^>]*>", "", path.read_text(encoding="utf-8")), encoding="utf-8")
    assert "<title>owned</title>" in browse(path)


def test_a_page_that_was_tampered_with_says_nothing_new(browse: Callable[..., str], tmp_path: pathlib.Path) -> None:
    """The script's hash is in the policy: a changed script does not run."""
    path = sample(tmp_path / "reports")
    path.write_text(path.read_text(encoding="utf-8").replace('"use strict";', '"use strict"; ', 1), encoding="utf-8")
    assert 'data-ready="yes"' not in browse(path)


def node_page(tmp_path: pathlib.Path) -> pathlib.Path:
    sizes = [1 << power for power in range(12, 31)]
    figures = {
        "path": "default",
        "reason": "",
        "latency_s": {"4096": 25e-6, "1048576": 60e-6},
        "system_cpu_per_gb": 0.0012,
        "busbw_gb_s": {str(s): 360.0 * s / (s + (12 << 20)) for s in sizes},
    }
    run = {
        "backend": "nccl",
        "device": "cuda",
        "ranks": 8,
        "path": "default",
        "state": "finished",
        "verified": True,
        "torch": "2.9.1+cu129",
        "nccl": "2.27.5",
        "transports": {"P2P/CUMEM": 224, "NVLS": 8},
    }
    found = Finding(Status.PASS, "356 GB/s at 1 GiB", measured={"busbw": Quantity(356, "GB/s"), "limit": Quantity(450, "GB/s")})
    volatile = {"time": "2026-03-01T08:00:00Z", "runs": [figures]}
    made = report(
        PASS,
        FAIL,
        PAIRS,
        SKIP,
        UNKNOWN,
        check("allreduce.bandwidth", found),
        runs=(run,),
        volatile=volatile,
        inventory=inventory(facts.machine()),
    )
    path = tmp_path / "node.html"
    path.write_text(node_html.render(made), encoding="utf-8")
    return path


def test_the_page_of_one_node(browse: Callable[..., str], tmp_path: pathlib.Path) -> None:
    text = browse(node_page(tmp_path))
    dom = Dom(text)
    assert "NCCL takes docker0, which has no route to MASTER_ADDR" in dom.words and "limit of the path 450 GB/s" in dom.words
    assert text.count('src="data:image/svg+xml') == 1 and 'class="device gpu"' in text and dom.scripts == 0


def replayed_page(tmp_path: pathlib.Path) -> pathlib.Path:
    """What `netdoctor diagnose` makes today of a composed node, one of whose GPUs has memory errors."""
    node = composed.Composed("hgx-h100-roce", {"gpus.2.state.ecc.uncorrected": 3}, {"job.nodes": 4})
    taken, path = tmp_path / "node.json", tmp_path / "replayed.html"
    taken.write_text(dumps(node.snapshot()), encoding="utf-8")
    asked = [sys.executable, "-m", "netdoctor", "diagnose", str(taken), "--output", str(path)]
    assert subprocess.run(asked, capture_output=True, check=False).returncode == 3
    return path


def test_screenshots(browse: Callable[..., str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = pathlib.Path(os.environ.get("NETDOCTOR_SCREENSHOTS") or tmp_path).absolute()
    monkeypatch.chdir(tmp_path)  # a file's place is on the page
    fleet = sample(pathlib.Path("reports")).absolute()
    for name, path, size in (("fleet-report", fleet, "1280,1500"), ("node-report", replayed_page(tmp_path), "1280,1400")):
        picture = folder / f"{name}.png"
        browse(path, screenshot=picture, size=size)
        data = picture.read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        assert struct.unpack(">II", data[16:24]) == tuple(map(int, size.split(",")))
        assert len(data) > 50_000  # an empty page of this size has 15 KB
