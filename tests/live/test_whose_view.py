"""A whole report of a healthy DGX, seen from places that are not the job's: nothing that must be the job's own passes there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.machines.native import gcc
from tests.support.namespaces import world
from tests.support.namespaces.dgx import Machine, Scene, machine
from tests.support.namespaces.overlay import can_overlay

pytestmark = [
    pytest.mark.live,
    pytest.mark.root,
    pytest.mark.nccl,
    pytest.mark.skipif(bool(can_overlay()), reason=can_overlay() or "-"),
]
LOOK = ("--no-allreduce",)
# How many are there, whoever looks; the kernel is one, and its clock (CLOCK_REALTIME) has no namespace.
OF_THE_NODE = {
    "hardware.accelerator GPUs pass",
    "rdma.dev_infiniband count pass",
    "node.system kernel pass",
    "node.clock clock pass",
}
OF_THE_MACHINE = (
    "node.system kernel log ",  # passes where it reaches back to the start of this machine; it may not, after a long time up
    "gpu.health ",
    "gpu.dcgm node ",  # a skip: it is not installed
    "gpu.fabric ",
    "gpu.mapping node ",  # a skip: who gets which is the job's
    "node.folders node ",  # a skip: the configuration names none
    "pci.path ",
    "hardware.gpus ",
    "hardware.links ",
    "hardware.rails ",
    "hardware.hca node ",
    "hardware.site ",
    "hardware.past ",
)


@pytest.fixture(scope="module")
def place() -> Iterator[Machine]:
    with machine() as made:
        yield made


def passes(place: Machine, scene: Scene) -> set[str]:
    seen = place.look(scene)
    assert seen.report is not None, seen.err
    assert not [key for key, status in seen.statuses().items() if status == "error"]
    return {f"{check} {subject} {status}" for (check, subject), status in seen.statuses().items() if status in ("pass", "skip")}


@pytest.mark.parametrize(
    "scene",
    [
        Scene(options=LOOK),  # root, in a network namespace that is not the machine's
        Scene(options=LOOK, env={"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "1000", "SLURMD_NODENAME": "gpu7"}),
        Scene(options=(*LOOK, "--profile", "audit")),
        Scene(options=(*LOOK, "--vantage", "node")),
        Scene(options=(*LOOK, "--host-root", "/mnt"), setup="mount --rbind / /mnt"),
    ],
    ids=["root", "prolog", "audit", "said to be the node", "mounted root"],
)
def test_what_is_not_the_jobs_does_not_pass(place: Machine, scene: Scene) -> None:
    assert {one for one in passes(place, scene) if not one.startswith(OF_THE_MACHINE)} <= OF_THE_NODE


def test_the_same_machine_passes_in_the_job(place: Machine) -> None:
    own = {"rdma.dev_infiniband mlx5_0 pass", "net.port_range listeners pass"}
    assert passes(place, Scene()) > OF_THE_NODE | own


def test_root_of_a_user_namespace_has_no_right_to_lock_memory(place: Machine) -> None:
    """CAP_IPC_LOCK of a user namespace lifts no limit: the kernel asks for it in the initial one."""
    lock = "prlimit --memlock=1048576:1048576"
    inside = place.look(Scene(wrap=f"{lock} unshare --user --map-root-user"))
    assert inside.statuses()["rdma.dev_infiniband", "memlock"] == "fail memlock"
    assert place.look(Scene(wrap=lock)).statuses()["rdma.dev_infiniband", "memlock"] == "pass"


def test_sysfs_of_another_network_namespace_is_no_evidence(place: Machine) -> None:
    """After setns(2) without a new mount, /sys still shows the interfaces of the namespace before."""
    seen = place.look(Scene(wrap="unshare --net --"))
    statuses = seen.statuses()
    assert "pass" not in {statuses[key] for key in statuses if key[0] in ("net.socket_ifname", "net.tcp_buffers")}


# Hostile names


def test_a_host_name_that_is_html(place: Machine, tmp_path: Path) -> None:
    """unshare --uts lets a user name the machine as he likes."""
    name, output = '"><script>alert(1)</script>', tmp_path / "r.html"
    seen = place.look(Scene(name=name, options=("--no-allreduce", "-o", str(output))))
    assert seen.report["identity"]["host"] == name
    html = output.read_text()
    assert "<script>alert" not in html and "alert(1)" in html


@pytest.mark.parametrize("name", ["../../x", "$(touch evil)", "\x1b[31mred"])
def test_a_host_name_moves_no_file_and_colours_no_terminal(place: Machine, name: str) -> None:
    seen = place.look(Scene(name=name, options=(*LOOK, "-f", "text")))
    # The scene asks for JSON first; the later option wins, and what is printed is text.
    assert seen.report is None and seen.exit == 4
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", seen.out)
    assert not Path("evil").exists()


MARKED = r"""
cat > marked.c <<'C'
#include <fcntl.h>
#include <stdlib.h>
const char *banner = "NCCL version 2.27.5+cuda12.9";
int ncclGetVersion(int *version) { *version = 22705; return 0; }
int ncclGetUniqueId(void *id) { (void)id; return 0; }
__attribute__((constructor)) static void loaded(void) { open("@MARK@", O_CREAT | O_WRONLY, 0600); }
C
rm nvidia/nccl/lib/libnccl.so.2
gcc -shared -fPIC -Wl,-soname,libnccl.so.2 -o nvidia/nccl/lib/libnccl.so.2 marked.c
"""


@pytest.mark.parametrize(("owner", "loaded"), [(0, True), (65534, False)])
def test_root_loads_no_library_of_others(place: Machine, tmp_path: Path, owner: int, loaded: bool) -> None:
    """Its constructor would run as root.  The version is read from the file instead."""
    gcc()
    mark = tmp_path / "loaded"
    site = MARKED.replace("@MARK@", str(mark)) + f"chown -R {owner}:{owner} nvidia/nccl"
    seen = place.look(Scene(site=site, roots_own=loaded))
    assert mark.exists() is loaded
    said = [text for status in ("pass", "unknown") for text in seen.of("nccl.version", status)]
    assert said[0].startswith("loaded: torch loads NCCL 2.27.5 ")


# A report path that becomes a link while netdoctor runs

SWAP = r"""
os.makedirs("/theirs"); os.chown("/theirs", 65534, 65534)
pathlib.Path("/precious").write_text("precious")
command = [*NETDOCTOR, "preflight", "--no-allreduce", "--quiet", "-f", "brief", "-o", "/theirs/report.json"]
swaps, codes, stop = 0, [], threading.Event()
def swap():
    "As the owner of the folder: now a link to what only root may write, now nothing."
    global swaps
    while not stop.is_set():
        for act in (lambda: os.symlink("/precious", "/theirs/report.json"), lambda: os.unlink("/theirs/report.json")):
            try: act()
            except OSError: pass
        swaps += 1
attacker = threading.Thread(target=swap); attacker.start()
for _ in range(int(sys.argv[1])):
    codes.append(subprocess.run(command, capture_output=True).returncode)
stop.set(); attacker.join()
say({"precious": pathlib.Path("/precious").read_text(), "swaps": swaps, "codes": codes, "left": sorted(os.listdir("/theirs"))})
"""


def test_a_report_path_that_turns_into_a_link(place: Machine) -> None:
    seen = world.run(SWAP, "6")
    assert seen["precious"] == "precious" and seen["swaps"] > 100
    assert set(seen["codes"]) <= {0, 1, 4}
    assert [name for name in seen["left"] if name.endswith(".tmp")] == []
