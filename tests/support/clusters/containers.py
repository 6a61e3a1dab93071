"""`netdoctor preflight` inside real containers (podman with runc), on a fake DGX or on this machine as it is.

The root file system is this machine's own under a throw-away overlay, so Python, torch and the checkout are in it; /sys is a
volume with the fake tree on top, the uverbs nodes come by ``--device``, as the device plugins of clusters give them.  They are
/dev/fuse under other names: it opens without rights, and unlike /dev/null no runtime allows it of itself.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.clusters import pods
from tests.support.namespaces import dgx
from tests.support.namespaces.dgx import ROOT, Scene, Seen

TWO = {"cpus": ("0", "1")}
FUSE = (10, 229)  # Documentation/admin-guide/devices.txt; fs/fuse/dev.c asks for no capability
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The network of the container: nothing of the machine's own is in it.  Its holder ends with the script.
SCRIPT = """
mount --make-rprivate /
[ -z "$FAKE" ] || mount -t overlay over -o "lowerdir=$MADE/sys:/sys" "$MADE/all"
unshare --net sh -ec '{network}
echo > "$MADE/ready"; exec sleep 600' & HOLDER=$!
trap 'kill $HOLDER' EXIT
while [ ! -e "$MADE/ready" ]; do kill -0 $HOLDER; sleep 0.02; done
NETWORK=$1; shift
podman --root "$STORE/store" --runroot "$STORE/run" run --rm --network="${{NETWORK:-ns:/proc/$HOLDER/ns/net}}" "$@"
"""


@dataclass(frozen=True)
class Box(Scene):
    """A Scene in a container: what differs from the healthy one.  `setup`, `cgroup` and `hosts` mean nothing here."""

    options: tuple[str, ...] = ("--no-allreduce",)
    tree: Mapping[str, Any] = field(default_factory=lambda: dict(TWO))  # as many CPUs as there are
    more: tuple[str, ...] = ()  # options of podman run; MADE is the folder of the scene
    without: tuple[str, ...] = ()  # beginnings of the healthy container's options that this one does not get
    inside: str = ""  # shell, in the container, before netdoctor
    network: str = ""  # of podman run; "": one with eth0 and a default route


class Boxes:
    """Containers of one store."""

    def __init__(self, podman: pods.Podman) -> None:
        self.podman = podman

    def look(self, box: Scene, timeout: float = 100) -> Seen:
        assert isinstance(box, Box)
        with tempfile.TemporaryDirectory(dir=self.podman.folder) as name:
            made = Path(name)
            made.chmod(0o755)
            command = self._command(box, made)
            environment = os.environ | {
                "CONTAINERS_CONF": str(self.podman.folder / "containers.conf"),
                "STORE": str(self.podman.folder),
                "MADE": str(made),
                "FAKE": "" if box.bare else "1",
            }
            shell = ["unshare", "--mount", "sh", "-ec", SCRIPT.format(network=dgx.NETWORK), "sh", *command]
            # conmon leaves a file "oom" where it was started
            return dgx.looked(shell, made, environment, timeout, lambda: self.podman("rm", "-af", "--time=0", check=False))

    def _command(self, box: Box, made: Path) -> list[str]:
        python = dgx.files(box, made, FUSE)
        (made / "all").mkdir()
        variables = {"PATH": PATH, **dgx.variables(box, made)}
        words = [f"--hostname={box.name}", f"--add-host={box.name}:10.0.0.7", f"--workdir={ROOT}", "--cap-add=IPC_LOCK"]
        if not box.bare:
            # What NCCL's proxies of eight ranks take at start; podman gives 64 MB.
            words += ["--shm-size=1g", f"-v={made}/all:/sys:ro", *_devices(made)]
        without = tuple(word.replace("MADE", str(made)) for word in box.without)
        words = [word for word in words if not word.startswith(without or ("\n",))]
        words += [word.replace("MADE", str(made)) for word in box.more]
        words += [f"--env={name}={value}" for name, value in variables.items()]
        shell = f'{box.inside}\nexec {box.wrap} "$@"'
        return [box.network, *words, "--rootfs", "/:O", "sh", "-ec", shell, "sh", *dgx.doctor(box, made, python)]


def _devices(made: Path) -> list[str]:
    return [f"--device={made}/dev/infiniband/uverbs{n}:/dev/infiniband/uverbs{n}" for n in range(8)]


@contextmanager
def boxes() -> Iterator[Boxes]:
    """A store of its own; skips with the reason where containers cannot be."""
    if reason := missing():
        pytest.skip(reason)
    one = pods.Podman(Path(tempfile.mkdtemp(prefix="netdoctor-boxes-", dir="/run")))
    one.folder.chmod(0o755)
    try:
        yield Boxes(one)
    finally:
        one.remove()


def missing() -> str:
    """Why no container can be started here; "" where one can."""
    if os.geteuid() != 0:
        return "containers need root"
    lacking = [name for name in ("podman", "runc", "unshare", "ip") if not shutil.which(name)]
    return f"containers need {', '.join(lacking)}" if lacking else ""
