"""A command in a private mount namespace that shows a machine's /sys, /dev and /proc/driver beside the real ones.

    python -m tests.fakegpu.namespace MACHINE [--set PATH=VALUE]… -- COMMAND…

Nothing is mounted over a real file outside: a new /sys and a new /dev are put together from binds, which a user namespace
allows to everybody where the kernel and its administrator do.  A device node is /dev/null under another name, for a node of a
driver that is not there does not open.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import os
import pathlib
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, Final

import yaml

from tests.fakegpu import build, machine, tree
from tests.support.namespaces import workers

CAP_NET_ADMIN, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 12, 47, 2
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x20000, 0x10000000, 0x40000000
SHARED: Final = 8 << 30  # bytes of a run's /dev/shm
LOCKS: Final = "/run/netdoctor"
MACHINE: Final = "/dev/fakegpu"  # leads to the file that the fake libraries read where no variable names one (c/fake.h)
NULL: Final = (1, 3)  # /dev/null (Documentation/admin-guide/devices.txt)
_libc: Final = ctypes.CDLL(None, use_errno=True)


class RefusedError(OSError):
    """The kernel, or its administrator, does not allow the namespace."""


def _check(code: int, what: str) -> None:
    if code:
        number = ctypes.get_errno()
        raise RefusedError(number, f"{what}: {os.strerror(number)}")


def _mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    words = [one.encode() if one else None for one in (source, target, kind)]
    _check(_libc.mount(*words, ctypes.c_ulong(flags), options.encode() if options else None), f"mount of {target}")


def bind(source: str, target: str) -> None:
    _mount(source, target, flags=MS_BIND | MS_REC)


def may_mount() -> None:
    """Root may mount; anybody else may in a user namespace of its own, until it executes something: then it is who it was."""
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        return
    _check(_libc.unshare(CLONE_NEWUSER), "user namespace")
    pathlib.Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    pathlib.Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1", encoding="ascii")
    pathlib.Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1", encoding="ascii")


def _keep_net_admin() -> None:
    """Before `ip` is executed: the capability of this user namespace goes with it (capabilities(7), the ambient set)."""
    if os.geteuid() == 0:
        return
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice, 32 capabilities each
    _check(_libc.capget(header, sets), "capget")
    sets[2] |= 1 << CAP_NET_ADMIN
    _check(_libc.capset(header, sets), "capset")
    _check(_libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, ctypes.c_ulong(CAP_NET_ADMIN), 0, 0), "ambient capability")


def connect(shown: pathlib.Path) -> None:
    """Give this process a network namespace with the machine's interfaces, where `prepare` wrote them.

    They are macvlans on one veth, which reach each other (dummies would not); nothing leads out.
    """
    commands = shown / "network"
    if not commands.exists():
        return
    if not shutil.which("ip"):
        raise RefusedError(2, "network namespace: no ip command (iproute2)")
    _check(_libc.unshare(CLONE_NEWNET), "network namespace")
    command = ["ip", "-batch", str(commands)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30, preexec_fn=_keep_net_admin)
    if done.returncode:
        raise RefusedError(1, f"network namespace: {done.stderr.strip().splitlines()[0]}")


def _network(one: machine.Machine) -> Iterator[str]:
    """What `ip -batch` makes of a fresh network namespace."""
    yield "link set lo up"
    yield "link add low0 index 1000 type veth peer name low0p index 1001"
    for name in ("low0", "low0p"):
        yield f"link set {name} addrgenmode none mtu 65535"
        yield f"link set {name} up"
    for interface in one.interfaces:
        own = f"{interface.name} index {interface.index} address {interface.mac} mtu {interface.nic.mtu}"
        yield f"link add {own} link low0 type macvlan mode bridge"
        if interface.address:
            yield f"addr add {interface.address} dev {interface.name}"
        yield f"link set {interface.name} {'up' if interface.nic.up else 'down'}"
    if way := one.default:
        yield f"route add default via {way[2]} dev {way[0]}"


def enter(folder: pathlib.Path) -> None:
    """Show this process what `prepare` wrote into `folder`, and a /dev/shm of its own: what killed ranks leave goes with it."""
    may_mount()
    connect(folder)
    own_memory()
    show(folder)


def own_memory(size: int = SHARED) -> None:
    """Give this process a mount namespace whose /dev/shm is empty and has so many bytes."""
    _check(_libc.unshare(CLONE_NEWNS), "mount namespace")
    _mount("none", "/", flags=MS_REC | MS_PRIVATE)
    _mount("fakegpu", "/dev/shm", "tmpfs", options=f"mode=1777,size={size}")


def show(shown: pathlib.Path) -> None:
    """Give this process a mount namespace with what `prepare` wrote into `shown`."""
    _check(_libc.unshare(CLONE_NEWNS), "mount namespace")
    _mount("none", "/", flags=MS_REC | MS_PRIVATE)
    base = shown / "mounted"
    opaque = (*tree.OPAQUE, *(("class/net",) if (shown / "network").exists() else ()))
    for name in ("sys", "dev"):
        (base / name).mkdir(parents=True, exist_ok=True)
        _mount("fakegpu", str(base / name), "tmpfs", options="mode=755")
        _lay(shown / name, f"/{name}", str(base / name), "", opaque)
        bind(str(base / name), f"/{name}")
    if (shown / "machine").exists():
        os.symlink(shown / "machine", MACHINE)
    if os.geteuid() == 0:  # a machine of its own: whoever runs on another holds no lock of it (netdoctor/allreduce/lock.py)
        os.makedirs(LOCKS, exist_ok=True)
        _mount("fakegpu", LOCKS, "tmpfs", options="mode=755")
    if (shown / "hosts").exists():
        bind(str(shown / "hosts"), "/etc/hosts")
    if os.path.isdir("/proc/driver"):
        (base / "proc").mkdir(exist_ok=True)
        _mount("fakegpu", str(base / "proc"), "tmpfs", options="mode=755")
        _lay(shown / "proc", "/proc/driver", str(base / "proc"), "", opaque)
        bind(str(base / "proc"), "/proc/driver")


def _hidden(path: str) -> bool:
    """Of the real machine, not to be seen: its own GPUs and HCAs."""
    top, _, name = path.rpartition("/")
    if top == "module":
        return name.startswith(tree.MODULES)
    return path in ("infiniband", *tree.OPAQUE) or (not top and name.startswith("nvidia"))


def _lay(fake: pathlib.Path, real: str, target: str, path: str, opaque: Sequence[str]) -> None:
    """`target`, an empty folder, becomes `fake` over `real`; `path` is where both are below /sys, /dev or /proc/driver."""
    ours = {one.name: one for one in os.scandir(fake)}
    theirs = {} if path in opaque or not os.path.isdir(real) else {one.name: one for one in os.scandir(real)}
    for name in {**theirs, **ours}:
        at, below = f"{target}/{name}", f"{path}/{name}" if path else name
        own, other = ours.get(name), theirs.get(name)
        if own is not None and own.is_dir(follow_symlinks=False):
            hidden = _hidden(below) or other is None or not other.is_dir(follow_symlinks=False)
            os.mkdir(at)
            if hidden and not real.startswith("/dev"):
                bind(own.path, at)
            else:
                _lay(pathlib.Path(own.path), "/dev/-" if hidden else f"{real}/{name}", at, below, opaque)
        elif own is not None and real.startswith("/dev"):
            _node(at, own.stat().st_mode & 0o777)
        elif own is not None or not _hidden(below):
            _same(own or other, at)


def _same(one: os.DirEntry[str] | None, at: str) -> None:
    """What `one` is, at another place."""
    assert one is not None
    if one.is_symlink():
        os.symlink(os.readlink(one.path), at)
        return
    if one.is_dir():
        os.mkdir(at)
    else:
        os.close(os.open(at, os.O_CREAT | os.O_WRONLY, 0o644))
    bind(one.path, at)


def _node(at: str, mode: int) -> None:
    """A node with the numbers of /dev/null; in a user namespace, where none may be made, /dev/null itself."""
    try:
        os.mknod(at, stat.S_IFCHR | mode, os.makedev(*NULL))
        os.chmod(at, mode)
        os.close(os.open(at, os.O_RDWR))
    except PermissionError:
        pathlib.Path(at).unlink(missing_ok=True)
        os.close(os.open(at, os.O_CREAT | os.O_WRONLY, 0o644))
        bind("/dev/null", at)


def node_cpus(numa: Sequence[str]) -> tuple[str, ...]:
    """The CPUs that this process may use, shared out among the nodes: a machine's own lists name CPUs that are not there."""
    have = sorted(os.sched_getaffinity(0))
    count = sum(map(bool, numa))
    share = max(1, len(have) // max(1, count))
    parts = iter([have[n * share : (n + 1) * share if n < count - 1 else None] for n in range(count)])
    return tuple(",".join(map(str, next(parts))) if one else "" for one in numa)


def prepare(one: machine.Machine, folder: pathlib.Path, network: bool = False) -> pathlib.Path:
    """Write what `show` shows and, with `network`, what `connect` makes; returns the folder."""
    tree.write_sys(one, folder / "sys", cpus=node_cpus(one.numa), numbers=NULL, network=network)
    if network:
        (folder / "network").write_text("".join(f"{line}\n" for line in _network(one)), encoding="ascii")
        source = one.default[1] if one.default else "127.0.0.1"  # a node's name leads to its own address, not to the loopback
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n{source} {socket.gethostname()}\n", encoding="ascii")
    (folder / "dev").mkdir()
    for name, mode in tree.devices(one).items():
        at = folder / "dev" / name
        at.parent.mkdir(parents=True, exist_ok=True)
        at.touch()
        at.chmod(mode)
    (folder / "proc").mkdir()
    for name, text in tree.proc(one).items():
        at = folder / "proc" / name
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text(text, encoding="utf-8")
    return folder


@functools.cache
def missing() -> str:
    """Why there is no such namespace here; "" where there is one."""
    if why := build.missing():
        return why
    with scratch() as folder:
        prepare(machine.read("one-gpu"), folder)
        program = (
            "import sys, pathlib; from tests.fakegpu import namespace as n; n.may_mount(); n.show(pathlib.Path(sys.argv[1]))"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, str(folder)],
            cwd=build.ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    return f"no private /sys here: {done.stderr.strip().splitlines()[-1]}" if done.returncode else ""


class scratch(tempfile.TemporaryDirectory[str]):  # noqa: N801 - a context manager, as the function of that name in sysfs.py
    """A folder for one run that root alone, or this user alone, can change."""

    def __init__(self) -> None:
        super().__init__(prefix="fakegpu-", dir=workers.scratch() if os.geteuid() == 0 else None)

    def __enter__(self) -> pathlib.Path:  # type: ignore[override]
        os.chmod(self.name, 0o755)
        return pathlib.Path(self.name)


def changes(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """``PATH=VALUE``, the value as YAML has it."""
    for word in words:
        path, _, value = word.partition("=")
        yield path, yaml.safe_load(value)


def environment(folder: pathlib.Path) -> dict[str, str]:
    """What a process needs to find the fakes and the machine whose files are in `folder`."""
    before = os.environ.get("LD_LIBRARY_PATH")
    return {
        "FAKEGPU_MACHINE": str(folder / "machine"),
        "LD_LIBRARY_PATH": os.pathsep.join([*map(str, build.libraries()), *([before] if before else [])]),
    }


def inside(folder: pathlib.Path) -> list[str]:
    """What stands before a command that shall run in what `prepare` wrote; it is started in the project's root."""
    program = (
        "import os, pathlib, sys; from tests.fakegpu import namespace as n; at = pathlib.Path(sys.argv[1]); "
        "n.enter(at); os.execvp(sys.argv[2], sys.argv[2:])"
    )
    return [sys.executable, "-c", program, str(folder)]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fakegpu.namespace", usage="%(prog)s MACHINE [--set PATH=VALUE] -- COMMAND"
    )
    parser.add_argument("machine", help=f"a file, or one of {', '.join(machine.names())}")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE")
    parser.add_argument("--fault", action="append", default=[], metavar="'CALL WHICH RESULT'")
    parser.add_argument("--network", action="store_true", help="the machine's interfaces, in a network namespace of their own")
    parser.add_argument("--one-node", action="store_true", help="all on one NUMA node, for whoever compares with this process")
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    given = parser.parse_args(sys.argv[1:at])
    command = sys.argv[at + 1 :]
    if not command:
        parser.error("no command after --")
    one = machine.read(given.machine).with_changes(
        {**dict(changes(given.set)), **({"faults": given.fault} if given.fault else {})}
    )
    one = one.on_one_node() if given.one_node else one
    with scratch() as folder:
        prepare(one, folder, given.network)
        one.write(folder / "machine")
        env = {**os.environ, **environment(folder)}
        child = os.fork()
        if child == 0:
            try:
                enter(folder)
                os.execvpe(command[0], command, env)
            except OSError as error:
                print(f"fakegpu: {error}", file=sys.stderr)
            os._exit(126)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    sys.exit(main())
