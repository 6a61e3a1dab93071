"""A fault of a machine with GPUs: how it is injected, and which check must find it with which cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.fakegpu.doctor import Around

HCAS, DIRECT, GIDS, WAY, HEALTH = "rdma.dev_infiniband", "rdma.gpudirect", "rdma.gid", "pci.path", "gpu.health"
ERRORS: Final = "net.errors"


@dataclass(frozen=True)
class Row:
    """A fault.  The same preflight without `changes` and `around`, on `base`, has no fail."""

    fault: str
    check: str
    subject: str
    cause: str
    machine: str = "two-a100"
    changes: Mapping[str, Any] = field(default_factory=dict)
    around: Around = field(default_factory=Around)
    base: Around = field(default_factory=Around)
    nodes: bool = False  # the machine's own NUMA nodes; else one
    runs: bool = False  # with the all-reduces
    torch: str | None = None  # the job has a torch, of which the files are there; shell, in its site-packages
    healthy: Mapping[str, Any] = field(default_factory=dict)  # changes of the healthy machine, too

    @property
    def job(self) -> Mapping[str, str]:
        """Of two nodes, where the fault lies between them."""
        between = self.check in (HCAS, DIRECT, GIDS, WAY, ERRORS) or self.subject.startswith("inter-node")
        return {"NETDOCTOR_JOB_NODES": "2", "NETDOCTOR_JOB_GLOO_GROUPS": "0"} if between else {}


def env(fault: str, check: str, subject: str, cause: str, more: Mapping[str, Any] | None = None, **variables: str) -> Row:
    """A variable of the job."""
    return Row(fault, check, subject, cause, around=Around(env=variables), **(more or {}))


def told(config: str, fault: str, check: str, subject: str, cause: str, **more: Any) -> Row:
    """What the site expects is not there; without the change it is."""
    return Row(fault, check, subject, cause, base=Around(config=config, env=more.pop("env", {})), **more)


def on_rails(fault: str, subject: str, changes: Mapping[str, Any] | None = None, **variables: str) -> Row:
    """Of eight RoCE rails, with the NCCL of a torch."""
    return Row(fault, GIDS, subject, "roce_gid", "hgx-h100", changes or {}, Around(env=variables), torch="")


def table(n: int, *entries: tuple[int, str, str], netdev: str = "") -> dict[str, Any]:
    """The GIDs of a rail: index, address, kind."""
    return {f"hcas.{n}.gids": {index: [value, kind, netdev or f"eth{n + 1}"] for index, value, kind in entries}}


V1, V2 = "IB/RoCE v1", "RoCE v2"
LOCAL: Final = "fe80:0000:0000:0000:0000:00ff:fe00:0001"
MAPPED: Final = "0000:0000:0000:0000:0000:ffff:{}"
GID_ROWS: Final = (
    on_rails("a pinned GID index is empty", "mlx5_0", NCCL_IB_GID_INDEX="6"),
    on_rails("a rail has a link-local GID alone", "mlx5_2", table(2, (0, LOCAL, V1), (1, LOCAL, V2))),
    on_rails("a rail has 169.254", "mlx5_4", table(4, (0, LOCAL, V1), (1, MAPPED.format("a9fe:0105"), V2))),
    on_rails("a rail has RoCE v1 alone", "mlx5_5", table(5, (0, LOCAL, V1), (1, MAPPED.format("0a06:0007"), V1))),
    on_rails(
        "two rails have one address",
        "mlx5_7",
        table(7, (0, LOCAL, V1), (1, MAPPED.format("0a01:0007"), V2)),
    ),
    on_rails(
        "a pinned GID index drifted",
        "mlx5_3",
        table(3, (2, LOCAL, V1), (3, LOCAL, V2), (4, MAPPED.format("0a04:0007"), V1), (5, MAPPED.format("0a04:0007"), V2)),
        NCCL_IB_GID_INDEX="3",
    ),
)


def turned_back(fault: str, subject: str, acs: Mapping[str, int], machine: str = "hgx-h100") -> Row:
    """What bridges do with what comes by."""
    return Row(fault, WAY, subject, "acs_iommu", machine, {"acs": {f"0000:{at}": bits for at, bits in acs.items()}})


WAY_ROWS: Final = (
    turned_back("a switch turns everything back", "GPU2–mlx5_2", {"4e:00.0": 0x1D, "4e:01.0": 0x1D}),
    turned_back("a switch turns back what an HCA writes", "GPU7–mlx5_7", {"db:00.0": 0x04}),
    turned_back("a switch turns back what an HCA reads", "GPU0–mlx5_0", {"17:01.0": 0x08}),
    turned_back("a switch turns back what GPUs send", "GPU0–GPU1", {"12:00.0": 0x1D, "12:01.0": 0x1D}, "two-a100"),
)
RAIL_ROWS: Final = (*GID_ROWS, *WAY_ROWS)
HEALTH_ROWS: Final = (
    Row(
        "a GPU with errors of its memory", HEALTH, "GPU 0000:14:00.0", "gpu_memory", changes={"gpus.1.state.ecc.uncorrected": 3}
    ),
    Row("a row waits for a reset", HEALTH, "GPU 0000:13:00.0", "gpu_memory", changes={"gpus.0.state.remapped.pending": 1}),
    Row("the driver wants a reset", HEALTH, "GPU 0000:53:00.0", "gpu_error", changes={"gpus.2.state.recovery": 1}),
    Row("heat lowers the clocks", HEALTH, "GPU 0000:54:00.0", "gpu_slow", changes={"gpus.3.state.throttle": 72}),
    Row("an InfoROM is corrupted", HEALTH, "GPU 0000:53:00.0", "gpu_error", changes={"gpus.2.state.inforom.corrupted": 1}),
    Row(
        "a clock stays behind under load",
        HEALTH,
        "GPU 0000:14:00.0 under load",
        "gpu_slow",
        changes={"gpus.1.state.clock.sm": 1110},
        healthy={"gpus.all.state.busy": 90},
        runs=True,
    ),
    told(
        "{expected: {gpu_clock_mhz: 1900}}",
        "the clocks of all GPUs are locked far below what the site says",
        HEALTH,
        "GPU 0000:13:00.0 under load",
        "gpu_slow",
        changes={"gpus.all.state.clock.sm": 1200},
        healthy={"gpus.all.state.busy": 90, "gpus.all.state.throttle": 0},
        runs=True,
    ),
    Row(
        "the PCIe link replays under load",
        HEALTH,
        "GPU 0000:13:00.0 under load",
        "link_degraded",
        changes={"gpus.0.state.replays.rising": 100000},
        runs=True,
    ),
)
PLUGIN: Final = "net.plugin"
# In the job's site-packages: a library that exports one symbol, and one that needs another which is then removed.
EXPORTS: Final = "echo 'int {symbol};' | gcc -shared -fPIC -x c - -o nvidia/nccl/lib/{name}"
NEEDS: Final = """echo 'int gone(void) {{ return 0; }}' | gcc -shared -fPIC -x c - -o libgone.so
echo 'int gone(void); int {symbol}(void) {{ return gone(); }}' | gcc -shared -fPIC -x c - -L. -lgone -o nvidia/nccl/lib/{name}
rm libgone.so"""


def plugin(fault: str, subject: str, how: str = "", symbol: str = "", name: str = "", **variables: str) -> Row:
    """A plugin beside the libnccl of a torch, where the loader looks, or none where one is named."""
    around = Around(env={"LD_LIBRARY_PATH": "LIBRARIES:SITE/nvidia/nccl/lib", **variables})
    return Row(fault, PLUGIN, subject, "plugin_mismatch", torch=how.format(symbol=symbol, name=name), around=around)


MADE: Final = NEEDS.format(symbol="ncclNetPlugin_v8", name="libnccl-net.so")
IN_RUN: Final = f"( mkdir -p /run/asked/nvidia/nccl/lib; cd /run/asked\n{MADE} )"
ASKED: Final = {"NCCL_NET": "AWS Libfabric"}
PLUGIN_ROWS: Final = (
    plugin("a network plugin of an interface that NCCL dropped", "network", EXPORTS, "ncclNetPlugin_v3", "libnccl-net.so"),
    plugin("a network plugin whose library is gone", "network", NEEDS, "ncclNetPlugin_v8", "libnccl-net.so"),
    plugin(
        "a network that is asked for, whose plugin lacks a library",
        "network",
        NEEDS,
        "ncclNetPlugin_v8",
        "libnccl-net.so",
        **ASKED,
    ),
    Row(
        "a network that is asked for, whose plugin lacks a library, in a run",
        PLUGIN,
        "network",
        "plugin_mismatch",
        around=Around(env={"LD_LIBRARY_PATH": "LIBRARIES:/run/asked/nvidia/nccl/lib", **ASKED}, setup=IN_RUN),
        runs=True,
    ),
    plugin("a network plugin that is not there", "network", NCCL_NET_PLUGIN="ofi"),
    plugin("a tuner of an interface that NCCL dropped", "tuner", EXPORTS, "ncclTunerPlugin_v1", "libnccl-tuner.so"),
    plugin(
        "a profiler whose library is gone",
        "profiler",
        NEEDS,
        "ncclProfiler_v3",
        "libnccl-profiler-site.so",
        NCCL_PROFILER_PLUGIN="site",
    ),
    plugin("a plugin for variables that is not there", "environment", NCCL_ENV_PLUGIN="site"),
    plugin("a tuner's file that is not there", "NCCL_TUNER_CONFIG_FILE", NCCL_TUNER_CONFIG_FILE="/nonexistent/tuner.conf"),
)
# A counter of a fake port that rises all the while, as a driver would make it: what is read is never half a number.
RISING: Final = """( cd /sys/class/infiniband/{device}/ports/1/{folder}
for n in $(seq 200); do echo $((n * {by})) > .{name}; mv .{name} {name}; sleep 0.2; done ) >/dev/null 2>&1 &"""


def rising(fault: str, name: str, folder: str = "counters", by: int = 1, device: str = "mlx5_0") -> Row:
    setup = RISING.format(device=device, folder=folder, name=name, by=by)
    return Row(fault, ERRORS, f"{device}:1", "link_degraded", around=Around(setup=setup), runs=True)


ERROR_ROWS: Final = (
    rising("a link goes down and comes back all the while", "link_downed"),
    rising("a link is trained anew all the while", "link_error_recovery", device="mlx5_1"),
    rising("symbols arrive damaged by the thousand", "symbol_error", by=1000),
    rising("packets arrive damaged by the thousand", "port_rcv_errors", by=1000, device="mlx5_1"),
    rising("packets are not acknowledged in time", "local_ack_timeout_err", "hw_counters"),
)
