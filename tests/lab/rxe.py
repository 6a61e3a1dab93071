"""Software RDMA for real: Debian's kernel with rdma_rxe in QEMU, on this machine's own root, read-only below an overlay.

True uverbs nodes, ports and GIDs: the RDMA probe, the check and ibv_devinfo must agree.  Needs qemu-system-x86_64, busybox,
cpio and apt (for the kernel and rdma-core, about 70 MB, kept in build/rxe).  By software emulation it takes some minutes.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
BUILD: Final = ROOT / "build" / "rxe"
PACKAGES: Final = ("libibverbs1", "ibverbs-providers", "ibverbs-utils", "libnl-3-200", "libnl-route-3-200", "iproute2")
MODULES: Final = ("virtio_pci", "9p", "9pnet_virtio", "overlay", "dummy", "rdma_rxe", "ib_uverbs", "crc32_generic")
LIMIT: Final = 600.0  # seconds from boot to the last verdict
INIT: Final = r"""#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /host /extra /new /ram
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev
for module in /mods/*; do insmod $module; done
mount -t 9p -o ro,trans=virtio,version=9p2000.L,cache=loose,msize=512000 root /host
mount -t 9p -o ro,trans=virtio,version=9p2000.L,cache=loose extra /extra
mount -t tmpfs ram /ram; mkdir /ram/upper /ram/work
mount -t overlay o -o lowerdir=/extra:/host,upperdir=/ram/upper,workdir=/ram/work /new
mount -t proc proc /new/proc; mount -t sysfs sysfs /new/sys; mount -t devtmpfs dev /new/dev
mkdir -p /new/dev/shm /new/dev/infiniband; mount -t tmpfs -o mode=1777 shm /new/dev/shm; mount -t tmpfs run /new/run
ip link set lo up; ip link add dummy1 type dummy; ip addr add 10.0.0.7/24 dev dummy1; ip link set dummy1 up
echo '127.0.0.1 localhost
10.0.0.7 rxe1' > /new/etc/hosts; hostname rxe1
chroot /new /sbin/ldconfig
chroot /new rdma link add rxe0 type rxe netdev dummy1
chmod 666 /new/dev/infiniband/uverbs0
stty -F /dev/ttyS1 raw
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
chroot /new /bin/sh -c 'cd @ROOT@; exec @PYTHON@ tests/lab/rxe_guest.py /dev/ttyS1'
export PATH=/bin
poweroff -f
"""
# step -> the status of rxe0 that must be found
EXPECTED: Final = {
    "healthy": "pass",
    "port down": "fail link_degraded",
    "port up again": "pass",
    "no node": "fail dev_infiniband_missing",
    "node of another number": "fail dev_infiniband_missing",
    "node of no right": "fail dev_infiniband_missing",
    "device gone": "skip",
}


def why_not() -> str:
    """What is missing; "" where it can run."""
    missing = [name for name in ("qemu-system-x86_64", "busybox", "cpio", "apt-get", "dpkg") if not shutil.which(name)]
    return f"needs {', '.join(missing)}" if missing else ""


def fetch() -> Path:
    """Kernel and user space, unpacked; returns the folder of the kernel's modules."""
    kernel, extra = BUILD / "kernel", BUILD / "extra"
    if not kernel.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        said = _output("apt-cache", "depends", "linux-image-amd64")
        (image,) = re.findall(r"Depends: (linux-image-[\d.]+-\d+-amd64)$", said, re.MULTILINE)
        subprocess.run(["apt-get", "download", "-q", image, *PACKAGES], cwd=BUILD, check=True, stdout=subprocess.DEVNULL)
        for deb in BUILD.glob("*.deb"):
            target = BUILD / "kernel.part" if deb.name.startswith("linux-image") else extra
            subprocess.run(["dpkg", "-x", str(deb), str(target)], check=True)
        # /bin, /lib and /sbin are links into /usr on a merged root; a folder would hide them.
        for name in ("bin", "sbin", "lib"):
            if (extra / name).is_dir():
                shutil.copytree(extra / name, extra / "usr" / name, symlinks=True, dirs_exist_ok=True)
                shutil.rmtree(extra / name)
        (version,) = (BUILD / "kernel.part" / "lib" / "modules").iterdir()
        subprocess.run(["busybox", "depmod", "-b", str(BUILD / "kernel.part"), version.name], check=True)
        (BUILD / "kernel.part").rename(kernel)
    (version,) = (kernel / "lib" / "modules").iterdir()
    return version


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def ordered(modules: Path) -> list[Path]:
    """The modules with all that they need, each after its needs."""
    needs: dict[str, tuple[str, list[str]]] = {}
    for line in (modules / "modules.dep").read_text().splitlines():
        path, _, rest = line.partition(":")
        needs[_name(path)] = (path, rest.split())
    found: list[str] = []

    def add(name: str) -> None:
        path, rest = needs[name]
        for one in rest:
            add(_name(one))
        if path not in found:
            found.append(path)

    for name in MODULES:
        if name in needs:
            add(name)
    return [modules / path for path in found]


def _name(path: str) -> str:
    return Path(path).name.partition(".ko")[0].replace("-", "_")


def boot(accelerator: str) -> list[dict[str, Any]]:
    """What the guest wrote, a row a step; [] where it did not come up."""
    modules = fetch()
    root = BUILD / "initrd"
    shutil.rmtree(root, ignore_errors=True)
    for name in ("bin", "mods"):
        (root / name).mkdir(parents=True)
    for number, path in enumerate(ordered(modules)):
        shutil.copy(path, root / "mods" / f"{number:02d}-{path.name}")
    shutil.copy(str(shutil.which("busybox")), root / "bin" / "busybox")
    (root / "init").write_text(INIT.replace("@ROOT@", str(ROOT)).replace("@PYTHON@", sys.executable))
    (root / "init").chmod(0o755)
    archive = BUILD / "initrd.img"
    subprocess.run(f"find . | cpio --quiet -o -H newc > {archive}", shell=True, cwd=root, check=True)
    results, console = BUILD / "results", BUILD / "console"
    results.write_text("")
    share = "local,path={},mount_tag={},security_model=none,readonly=on,multidevs=remap"
    command = [
        "qemu-system-x86_64",
        "-accel",
        accelerator,
        "-cpu",
        "max",
        "-m",
        "2048",
        "-smp",
        "2",
        "-nodefaults",
        "-no-reboot",
    ]
    command += [
        "-display",
        "none",
        "-kernel",
        str(BUILD / "kernel" / "boot" / f"vmlinuz-{modules.name}"),
        "-initrd",
        str(archive),
    ]
    command += ["-append", "console=ttyS0 quiet panic=1", "-serial", f"file:{console}", "-serial", f"file:{results}"]
    command += ["-virtfs", share.format("/", "root"), "-virtfs", share.format(BUILD / "extra", "extra")]
    try:
        subprocess.run(command, timeout=LIMIT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    except subprocess.TimeoutExpired:
        print(f"rxe: not done after {LIMIT:.0f} s")
    lines = results.read_text(errors="replace").splitlines()
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


def disagreements(row: dict[str, Any]) -> list[str]:
    """Where the probe and ibv_devinfo differ about the port and its GIDs."""
    devices = row["probe"]["devices"]
    out = []
    for device in devices if isinstance(devices, list) else ():
        if f"hca_id:\t{device['name']}" not in row["devinfo"]:
            out.append(f"ibv_devinfo shows no {device['name']}")
            continue
        state = re.search(r"state:\s+PORT_(\w+)", row["devinfo"])
        port = device["ports"][0]
        if state and state.group(1) not in str(port["state"]):
            out.append(f"port: {port['state']}, ibv_devinfo {state.group(1)}")
        theirs = len(re.findall(r"GID\[\s*\d+\]:", row["devinfo"]))
        if isinstance(port["gids"], list) and len(port["gids"]) != theirs:
            out.append(f"{len(port['gids'])} GIDs, ibv_devinfo {theirs}")
    return out


def main() -> int:
    """Print a line a step; 1 where a verdict is wrong or the probe and ibv_devinfo differ.  Not run is said, and no failure."""
    from tests.lab import matrix

    if reason := why_not():
        print(f"rxe: not run: {reason}")
        return 0
    began = time.monotonic()
    # Without nested virtualisation kvm gives up at once.
    rows = boot("kvm") or boot("tcg,thread=multi")
    took = time.monotonic() - began
    seen = {row["step"]: row for row in rows}
    bad, kept = 0, []
    for step, expected in EXPECTED.items():
        row = seen.get(step)
        said = (
            [f"{status} {cause}".strip() for _, subject, status, cause, _ in row["found"] if subject != "memlock"]
            if row
            else []
        )
        wrong = disagreements(row) if row and step in ("healthy", "port down", "port up again") else []
        good = any(text.startswith(expected) for text in said) and not wrong
        bad += not good
        print(f"{'ok  ' if good else 'BAD '} rxe: {step}: {said or 'no answer'} {wrong or ''}")
        kept.append(
            {
                "fault": f"rdma_rxe: {step}",
                "way": "live in QEMU",
                "expected": {"rdma.dev_infiniband": expected},
                "found": good,
                "disturbed": wrong,
                "seconds": round(took / len(EXPECTED), 1),
            }
        )
    matrix.write(kept, "live in QEMU")
    print(f"rxe: {took:.0f} s from boot to the last verdict")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
