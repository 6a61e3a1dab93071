"""The small programs of standing health: what watch.sh leaves, what npd.sh says of it, what taint.py does with it."""

from __future__ import annotations

import http.server
import importlib.util
import json
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "netdoctor/deploy/kubernetes"
NPD = FOLDER / "overlays/node-health/npd.sh"
WATCH = FOLDER / "overlays/node-health/watch.sh"
TAINT = FOLDER / "components/taints/taint.py"


def npd(status: Path) -> tuple[int, str]:
    environment = {"PATH": os.environ["PATH"], "NETDOCTOR_STATUS": str(status)}
    done = subprocess.run(["sh", str(NPD), "1800"], env=environment, capture_output=True, text=True, check=False)
    assert not done.stderr
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("0 NOW\nhealthy: 3 passed\n", 0, "healthy: 3 passed"),
        ("1 NOW\nunhealthy: mtu (net.mtu)\n", 1, "unhealthy: mtu (net.mtu)"),
        ("2 NOW\ninconclusive\n", 2, "inconclusive"),
        ("137 NOW\nkilled\n", 2, "killed"),
        ("1 OLD\nunhealthy: mtu\n", 2, "stale"),
        ("0 FUTURE\nhealthy\n", 2, "stale"),
        ("0\nhealthy\n", 2, "not whole"),
        ("0 x[$(touch FILE)]\nhealthy\n", 2, "not whole"),
        ("0 NOW\n", 2, "not whole"),
        ("0 0NOW\nhealthy\n", 2, "not whole"),  # octal
        ("0 18446744073709551616\nhealthy\n", 2, "not whole"),  # more than the shell counts
        ("0 NOW\nhealt", 2, "not whole"),
        ("0 NOW\n\n", 2, ""),
        ("0 NOW\nunhealthy: mtu\n", 2, "unhealthy"),
        ("1 NOW\nhealthy\n", 2, "healthy"),
        ("", 2, "not whole"),
        (None, 2, "has not looked yet"),
        ("1 NOW\nunhealthy" + "x" * 300 + "\n", 1, "x" * 71),
        ("1 NOW\nunhealthy: $(touch FILE) `touch FILE` %s\\n\n", 1, "$(touch FILE)"),
    ],
)
def test_the_plugin_tells_good_bad_and_cannot_tell(tmp_path: Path, text: str | None, code: int, says: str) -> None:
    file, planted = tmp_path / "status", tmp_path / "planted"
    now = int(time.time())
    if text is not None:
        for word, when in (("NOW", now), ("OLD", now - 3600), ("FUTURE", now + 3600)):
            text = text.replace(word, str(when))
        file.write_text(text.replace("FILE", str(planted)))
    got, line = npd(file)
    assert got == code
    assert says.replace("FILE", str(planted))[:60] in line  # a message ends at 80 characters, the folder's name may be long
    assert len(line.rstrip("\n")) <= 80 and line.count("\n") == 1
    assert not planted.exists()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_the_plugin_waits_for_nobody(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "status")
    assert npd(tmp_path / "status") == (2, "netdoctor has not looked yet\n")


@pytest.mark.slow
def test_what_the_watcher_leaves_is_what_the_plugin_reads(tmp_path: Path) -> None:
    """With a netdoctor that says what it is told: the real one runs in the live tests."""
    fake = tmp_path / "fake_netdoctor.py"
    environment = {"PATH": os.environ["PATH"], "NETDOCTOR_RUN": str(tmp_path), "NETDOCTOR_PYZ": str(fake), "PERIOD": "once"}
    for code, line in ((0, "healthy: all"), (1, "unhealthy: mtu"), (2, "inconclusive: some")):
        fake.write_text(f"import sys\nassert '--exit-style=npd' in sys.argv\nprint({line!r})\nsys.exit({code})\n")
        subprocess.run(["sh", str(WATCH)], env=environment, check=True, timeout=60)
        assert npd(tmp_path / "status") == (code, line + "\n")
    fake.write_text("raise SystemError\n")  # exit 1, and no verdict: not a problem of the node
    subprocess.run(["sh", str(WATCH)], env=environment, check=True, timeout=60)
    assert npd(tmp_path / "status") == (2, "netdoctor could not look\n")


@pytest.fixture(scope="module")
def taint() -> Any:
    spec = importlib.util.spec_from_file_location("netdoctor_taint", TAINT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


OTHER = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
OURS = {"key": "netdoctor/unhealthy", "value": "true", "effect": "NoSchedule"}


def node(*taints: dict[str, str], label: str | None = None) -> dict[str, Any]:
    labels = {"netdoctor/health": label} if label else {}
    return {"metadata": {"name": "n", "resourceVersion": "7", "labels": labels}, "spec": {"taints": list(taints)}}


@pytest.mark.parametrize(
    ("have", "healthy", "taints"),
    [
        (node(OTHER, label="healthy"), True, None),
        (node(OTHER, OURS, label="unhealthy"), False, None),
        (node(OTHER), False, [OTHER, OURS]),
        (node(OURS, OTHER, label="unhealthy"), True, [OTHER]),
        (node(), True, "label"),
        ({"metadata": {"resourceVersion": "1"}}, False, [OURS]),
    ],
)
def test_only_our_taint_comes_and_goes(taint: Any, have: dict[str, Any], healthy: bool, taints: Any) -> None:
    patch = taint.wanted(have, healthy)
    if taints is None:
        assert patch is None
        return
    assert patch["metadata"]["resourceVersion"] == have["metadata"]["resourceVersion"]
    assert patch["metadata"]["labels"] == {"netdoctor/health": "healthy" if healthy else "unhealthy"}
    assert patch.get("spec", {}).get("taints") == (None if taints == "label" else taints)


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("0 1000\nx\n", True),
        ("1 1000\nx\n", False),
        ("2 1000\nx\n", None),
        ("0 0\nx\n", None),
        ("0 5000\nx\n", None),
        ("", None),
    ],
)
def test_what_is_not_known_changes_nothing(taint: Any, tmp_path: Path, text: str, state: bool | None) -> None:
    (tmp_path / "status").write_text(text)
    assert taint.status(str(tmp_path / "status"), 2000) is state
    assert taint.status(str(tmp_path / "absent"), 2000) is None


class FakeApi(http.server.BaseHTTPRequestHandler):
    """The edge: an API server that knows one node, and refuses a patch of an old version (409)."""

    node: dict[str, Any]
    seen: list[tuple[str, str]]

    def do_GET(self) -> None:
        self._answer(200)

    def do_PATCH(self) -> None:
        patch = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.headers["Content-Type"] == "application/merge-patch+json"
        if patch["metadata"]["resourceVersion"] != self.node["metadata"]["resourceVersion"]:
            return self._answer(409)
        self.node["metadata"]["labels"] |= patch["metadata"]["labels"]
        self.node["spec"] |= patch.get("spec", {})
        return self._answer(200)

    def _answer(self, code: int) -> None:
        self.seen.append((self.command, f"{self.path} {self.headers['Authorization']}"))
        body = json.dumps(self.node).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def api() -> Iterator[tuple[type[FakeApi], str]]:
    handler = type("Api", (FakeApi,), {"node": node(OTHER), "seen": []})
    server = http.server.HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield handler, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.slow
def test_the_program_patches_its_node(tmp_path: Path, api: tuple[type[FakeApi], str]) -> None:
    handler, url = api
    (tmp_path / "token").write_text("secret\n")
    environment = {
        "PERIOD": "once",
        "NODE_NAME": "n",
        "NETDOCTOR_API": url,
        "NETDOCTOR_API_FILES": str(tmp_path),
        "NETDOCTOR_STATUS": str(tmp_path / "status"),
    }
    for code, taints in ((1, [OTHER, OURS]), (0, [OTHER])):
        (tmp_path / "status").write_text(f"{code} {int(time.time())}\nsaid\n")
        done = subprocess.run([sys.executable, "-I", str(TAINT)], env=environment, capture_output=True, text=True, check=True)
        assert handler.node["spec"]["taints"] == taints, done.stderr
    assert set(handler.seen) == {(method, "/api/v1/nodes/n Bearer secret") for method in ("GET", "PATCH")}


def test_scripts_come_out_as_programs(tmp_path: Path) -> None:
    from netdoctor.cli import deploy

    assert deploy.run("kubernetes", str(tmp_path / "k8s")) == 0
    for path in (tmp_path / "k8s").rglob("*.sh"):
        assert path.stat().st_mode & stat.S_IXUSR
        assert path.read_bytes().startswith(b"#!")
