"""What netdoctor says about the GPUs against what nvidia-smi, torch and PCI say.  Needs an NVIDIA GPU."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from netdoctor.facts import gpu, pci
from netdoctor.host.base import LiveHost
from netdoctor.model import Unavailable
from tests.support.machines import gpus

pytestmark = [pytest.mark.live, pytest.mark.gpu]
Note = Callable[[str, object], None]
FIELDS = ("index", "uuid", "name", "pci.bus_id", "memory.total", "driver_version", "mig.mode.current")


@pytest.fixture(scope="module")
def host() -> Iterator[LiveHost]:
    made = LiveHost()
    yield made
    made.close()


@pytest.fixture(scope="module")
def seen(host: LiveHost) -> gpu.Gpus:
    fact = gpu.probe(host)
    if isinstance(fact.all, Unavailable) and fact.all.kind == "absent":
        pytest.skip(f"no NVML: {fact.all}")
    assert not isinstance(fact.all, Unavailable), fact.all
    if not fact.all:
        pytest.skip("NVML shows no GPU")
    return fact


def test_nvml_and_nvidia_smi_agree(seen: gpu.Gpus, record_property: Note) -> None:
    program = shutil.which("nvidia-smi")
    if program is None:
        pytest.skip("no nvidia-smi on PATH")
    query = [program, f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True)
    rows = [dict(zip(FIELDS, (cell.strip() for cell in row), strict=True)) for row in csv.reader(done.stdout.splitlines())]
    assert not isinstance(seen.all, Unavailable)
    theirs = [
        (int(r["index"]), r["uuid"], r["name"], _bdf(r["pci.bus_id"]), int(float(r["memory.total"])), r["driver_version"])
        for r in rows
    ]
    ours = [(g.index, g.uuid, g.name, g.pci, _mib(g.memory_total), seen.driver) for g in seen.all]
    record_property("gpus", len(rows))
    record_property("names", sorted({r["name"] for r in rows}))
    assert [t[:4] + t[5:] for t in theirs] == [o[:4] + o[5:] for o in ours]
    for mine, other in zip(ours, theirs, strict=True):
        # Version 2 of NVML's structure leaves out what the driver reserves, which nvidia-smi shows apart from 510 on.
        assert isinstance(mine[4], int) and abs(mine[4] - other[4]) <= max(1, other[4] // 50), (mine, other)
    for row, one in zip(rows, seen.all, strict=True):
        assert one.mig is (row["mig.mode.current"] == "Enabled")


def test_libcuda_and_torch_agree(seen: gpu.Gpus, record_property: Note) -> None:
    gpus.need()
    program = (
        "import json, torch; p = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())];"
        "print(json.dumps([[q.name, str(getattr(q, 'uuid', '')), [q.major, q.minor]] for q in p]))"
    )
    done = subprocess.run([gpus.python(), "-c", program], capture_output=True, text=True, timeout=120, check=True)
    theirs: list[Any] = json.loads(done.stdout.splitlines()[-1])
    pairs = seen.of_the_job
    assert not isinstance(pairs, Unavailable), pairs
    assert [v.name for v, _ in pairs] == [name for name, _, _ in theirs]
    for (visible, known), (_, uuid, capability) in zip(pairs, theirs, strict=True):
        assert known is not None, f"GPU {visible.ordinal} of libcuda is not among NVML's"
        if uuid and visible.uuid.startswith("GPU-"):
            assert uuid in visible.uuid
        assert known.capability == tuple(capability)
    record_property("visible", len(theirs))
    record_property("dmabuf", [str(v.dmabuf) for v, _ in pairs])


def test_every_gpu_is_on_pci(seen: gpu.Gpus, host: LiveHost, record_property: Note) -> None:
    fact = pci.probe(host)
    if isinstance(fact, Unavailable):
        pytest.skip(f"PCI cannot be read here: {fact}")
    assert not isinstance(seen.all, Unavailable)
    for one in seen.all:
        assert isinstance(one.pci, str), one.pci
        device = fact.at(one.pci)
        assert device, f"{one.pci}: {device}"
        assert device.numa_node == one.numa_node or isinstance(one.numa_node, Unavailable)
        record_property(f"gpu{one.index}", f"NUMA {one.numa_node}, link {device.link}, below {len(device.path)} bridges")


def _bdf(text: str) -> str:
    """``00000000:1B:00.0`` as the kernel writes it."""
    domain, _, rest = text.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def _mib(value: object) -> object:
    return value // gpus.MIB if isinstance(value, int) else value
