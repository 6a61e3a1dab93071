"""Which plugins NCCL opens by version, and what the loader makes of what they need."""

from __future__ import annotations

import _ctypes
from typing import Any

import pytest

from netdoctor.facts.libraries import probe
from netdoctor.facts.plugins import Plugin
from netdoctor.host.helpers import elf
from netdoctor.model import Unavailable
from netdoctor.nccl.plugins import ENV, NET, PROFILER, TUNER, Role, opened
from tests.support.machines.composed import Composed

OFI = "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net.so"
FABRIC, EFA = "/opt/amazon/efa/lib/libfabric.so.1", "/usr/lib/x86_64-linux-gnu/libefa.so.1"


# As src/net.cc, src/misc/tuner.cc, src/misc/profiler.cc and src/plugin/plugin_open.cc of these versions.
@pytest.mark.parametrize(
    ("role", "value", "version", "names"),
    [
        (NET, None, (2, 27, 5), ("libnccl-net.so",)),
        (NET, "", (2, 27, 5), ("libnccl-net.so",)),
        (NET, "", (2, 28, 3), ()),
        (NET, "ofi", (2, 20, 5), ("libnccl-net-ofi.so",)),
        (NET, "ofi", (2, 21, 5), ("ofi", "libnccl-net-ofi.so")),
        (NET, "libx.so", (2, 26, 2), ("libx.so", "libnccl-net-libx.so.so")),
        (NET, "libx.so", (2, 27, 3), ("libx.so",)),
        (NET, "/a/b", (2, 27, 3), ("/a/b",)),
        (NET, "a,b", (2, 28, 3), ("a", "libnccl-net-a.so", "b", "libnccl-net-b.so")),
        (NET, "NONE", (2, 28, 3), ()),
        (NET, "static_plugin", (2, 21, 5), ("static_plugin", "libnccl-net-static_plugin.so")),
        (NET, "static_plugin", (2, 22, 3), ("STATIC_PLUGIN",)),
        (NET, "s", (2, 22, 3), ("STATIC_PLUGIN",)),
        (TUNER, None, (2, 20, 5), ()),
        (TUNER, "x", (2, 20, 5), ("x",)),
        (TUNER, None, (2, 21, 5), ("libnccl-tuner.so",)),
        (TUNER, "a,b", (2, 28, 3), ("a,b", "libnccl-tuner-a,b.so")),
        (PROFILER, "x", (2, 25, 1), ("x",)),
        (PROFILER, "x", (2, 26, 2), ("x", "libnccl-profiler-x.so")),
        (ENV, "x", (2, 28, 7), ("x", "libnccl-env-x.so")),
    ],
)
def test_what_dlopen_is_asked_for(role: Role, value: str | None, version: tuple[int, int, int], names: tuple[str, ...]) -> None:
    assert role.names(value, version) == names


def on_aws(change: Any) -> Plugin:
    machine = Composed("aws-p5")
    change(machine.host)
    (found,) = probe(machine.host).plugins
    assert isinstance(found, Plugin)
    return found


def without(path: str) -> Any:
    return lambda host: host.elf.pop(path)


def test_all_is_there() -> None:
    found = on_aws(lambda host: None)
    assert (found.path, found.opened_as, found.lacks, found.efa) == (OFI, ("libnccl-net.so",), (), True)


@pytest.mark.parametrize(
    ("change", "lacks", "efa"),
    [
        (without(FABRIC), ("libfabric.so.1",), None),
        (without(EFA), ("libefa.so.1, which libfabric.so.1 needs",), True),
        (lambda host: host.elf[FABRIC].update(needed=["libc.so.6"]), (), False),
        (lambda host: host.elf[FABRIC].update(needed=["libc.so.6"], providers=["libefa-fi.so"]), (), True),
        (lambda host: host.elf[FABRIC].update(machine=183), ("libfabric.so.1",), None),
        (lambda host: host.elf[OFI].update(wants=[["libfabric.so.1", "FABRIC_1.8"]]), (), True),  # one without versions
        (
            lambda host: (
                host.elf[OFI].update(wants=[["libfabric.so.1", "FABRIC_1.8"], ["libfabric.so.1", "FABRIC_1.0"]]),
                host.elf[FABRIC].update(defines=["libfabric.so.1", "FABRIC_1.0"]),
            ),
            ("libfabric.so.1 (FABRIC_1.8)",),
            True,
        ),
    ],
)
def test_what_the_loader_does_not_find(change: Any, lacks: tuple[str, ...], efa: bool | None) -> None:
    found = on_aws(change)
    assert (found.lacks, found.efa) == (lacks, efa)


@pytest.mark.parametrize(("machine", "foreign"), [(62, ""), (183, "aarch64"), (243, "riscv64"), (2, "e_machine 2")])
def test_one_that_is_built_for_another_cpu(machine: int, foreign: str) -> None:
    found = on_aws(lambda host: host.elf[OFI].update(machine=machine))
    assert (found.foreign, found.opened_as) == (foreign, () if foreign else ("libnccl-net.so",))


def test_where_nothing_says_what_nccl_is_built_for() -> None:
    """Without libnccl and program it is a guess."""

    def lose(host: Any) -> None:
        for path in [one for one in host.elf if one != OFI]:
            host.elf.pop(path)
        host.elf[OFI].update(machine=183)

    assert on_aws(lose).foreign == ""


def test_what_was_not_read_is_not_lacking() -> None:
    def lose(host: Any) -> None:
        was = host._needed
        host._needed = lambda parameters: {**was(parameters), "cache": {"error": "Permission denied", "kind": "denied"}}

    assert isinstance(on_aws(lose).lacks, Unavailable)
    assert isinstance(on_aws(lambda host: setattr(host, "_needed", lambda parameters: {"files": 1})).lacks, Unavailable)


@pytest.mark.parametrize("value", ["libnccl-ofi-tuner.so", "ofi", None])
def test_a_tuner_by_any_name(value: str | None) -> None:
    """aws-ofi-nccl's tuner was named libnccl-ofi-tuner.so before it became libnccl-tuner-ofi.so, and its guide names it so."""
    folder = OFI.rpartition("/")[0]
    machine = Composed("aws-p5", {"host.environment": {"LD_LIBRARY_PATH": folder}})
    for name in ("ofi-tuner", "tuner-ofi", "tuner"):
        machine.host.library(f"{folder}/libnccl-{name}.so", ("libfabric.so.1",), exports=("ncclTunerPlugin_v3",))
    (found, *_) = TUNER.names(value, (2, 27, 5)) if value != "ofi" else ("libnccl-tuner-ofi.so",)
    plugin = opened(plugins, (found,)) if (plugins := probe(machine.host).plugins) else None
    assert plugin is not None and plugin.path == f"{folder}/{found}" and plugin.lacks == ()


def unread(path: str, kind: str) -> Any:
    """The second answer about one file is an error: it could be read a moment ago, or its versions are rubbish."""

    def change(host: Any) -> None:
        was = host._needed
        row = {"error": "Input/output error", "kind": kind, "real": path}
        host._needed = lambda parameters: (got := was(parameters)) | {"files": {**got["files"], path: row}}

    return change


@pytest.mark.parametrize("kind", ["failed", "malformed", "timed out"])
@pytest.mark.parametrize("path", [OFI, FABRIC, EFA])
def test_an_unread_file_is_neither_there_nor_lacking(path: str, kind: str) -> None:
    found = on_aws(unread(path, kind))
    assert isinstance(found.lacks, Unavailable) and "Input/output error" in str(found.lacks), found
    assert found.efa is True if path == EFA else isinstance(found.efa, Unavailable), found


def test_what_is_not_there_is_lacking_whatever_else_was_not_read() -> None:
    found = on_aws(lambda host: (unread(FABRIC, "failed")(host), host.elf[OFI]["needed"].append("libhwloc.so.15")))
    assert found.lacks == ("libhwloc.so.15",)


@pytest.mark.parametrize("kind", ["failed", "malformed"])
def test_a_plugin_that_cannot_be_read_is_one_all_the_same(kind: str) -> None:
    machine = Composed("aws-p5")
    row = {"error": "it cannot be read", "kind": kind, "real": OFI}
    machine.host.elf[OFI] = row
    have = probe(machine.host)
    (found,) = have.plugins
    assert isinstance(found, Plugin) and isinstance(found.symbols, Unavailable)
    # A file that is none ends the loader's search; of one that was not read nobody knows what comes behind it.
    assert found.opened_as == ("libnccl-net.so",) if kind == "malformed" else have.incomplete == (f"{OFI}: {found.symbols}",)


@pytest.mark.parametrize(("kind", "incomplete"), [("failed", ("/opt/closed: nobody lists it",)), ("denied", ())])
def test_a_folder_that_could_not_be_listed_may_hold_more(kind: str, incomplete: tuple[str, ...]) -> None:
    machine = Composed("aws-p5", {"host.environment": {"LD_LIBRARY_PATH": "/opt/closed"}})
    was = machine.host._elf

    def changed(parameters: Any) -> Any:
        got: Any = was(parameters)
        if "dirs" in got:
            got["dirs"]["/opt/closed"] = {"error": "nobody lists it", "kind": kind}
        return got

    machine.host._elf = changed  # type: ignore[method-assign]
    assert probe(machine.host).incomplete == incomplete


def test_a_real_library_finds_what_it_needs() -> None:
    own = _ctypes.__file__
    got = elf.answer({"needed": own, "dirs": "", "packages": "/nonexistent"})
    assert isinstance(got, dict) and not got["cut"] and got["loaded"] == ["/nonexistent/torch/lib"]
    libc = next(name for name in got["cache"] if name.startswith("libc.so"))
    assert ["libc.so.6", "GLIBC_2.2.5"] in got["files"][own]["wants"] or libc != "libc.so.6"
    assert any("GLIBC_2.2.5" in row["defines"] for path, row in got["files"].items() if path.endswith("/libc.so.6"))
