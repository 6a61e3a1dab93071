"""What is to be shown on a GPU, in the order in which it is tried: the most important first, since time may run out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Claim:
    """One sentence, and what shows it: a test (``tests/live/FILE.py::NAME``) or a step of tools/gpu_proof."""

    id: str
    text: str
    source: str
    gpus: int = 1  # fewer than that cannot show it


@dataclass(frozen=True)
class Step:
    """Claims that one process shows, within `seconds`.  `module` is run with -m; "" runs pytest on the claims' tests."""

    name: str
    seconds: float
    claims: tuple[Claim, ...]
    module: str = ""
    needs_torch: bool = True


def _tests(file: str, *rows: tuple[str, str, str] | tuple[str, str, str, int]) -> tuple[Claim, ...]:
    """(id, name of the test, sentence, GPUs)."""
    return tuple(Claim(row[0], row[2], f"tests/live/{file}::{row[1]}", row[3] if len(row) > 3 else 1) for row in rows)


def _figures(*rows: tuple[str, str] | tuple[str, str, int]) -> tuple[Claim, ...]:
    return tuple(Claim(row[0], row[1], "bench/gpu.py", row[2] if len(row) > 2 else 1) for row in rows)


INVENTORY: Final = Step(
    "inventory",
    40.0,
    _tests(
        "test_gpu_inventory.py",
        (
            "inventory.nvidia_smi",
            "test_nvml_and_nvidia_smi_agree",
            "NVML's GPUs are nvidia-smi's: UUID, name, PCI address, memory, driver, MIG",
        ),
        (
            "inventory.visible",
            "test_libcuda_and_torch_agree",
            "libcuda shows the job the GPUs that torch sees, joined to NVML by UUID",
        ),
        ("inventory.pci", "test_every_gpu_is_on_pci", "every GPU of NVML stands on PCI with its link and NUMA node"),
    ),
    needs_torch=False,
)

RANKS: Final = Step(
    "ranks",
    130.0,
    _tests(
        "test_gpu_ranks.py",
        ("ranks.one", "test_a_world_of_one", "NCCL with a world of one: finished, data right"),
        ("ranks.versions", "test_four_routes_give_one_version", "NCCL's version by dlopen, torch, log and mapped file is one"),
        (
            "ranks.hostid",
            "test_two_ranks_on_one_gpu_as_two_hosts",
            "two ranks on one GPU by NCCL_HOSTID: all channels NET, two nodes in the log, data right",
        ),
        (
            "ranks.interface",
            "test_the_interface_is_the_one_that_nccl_said",
            "bootstrap and NET/Socket use the interfaces that ncclGetUniqueId and the emulation named",
        ),
        (
            "ranks.multi_rank",
            "test_two_ranks_on_one_gpu_by_nccls_own_switch",
            "two ranks on one GPU by NCCL_MULTI_RANK_GPU_ENABLE (NCCL >= 2.30.3)",
        ),
        (
            "ranks.duplicate",
            "test_a_duplicate_gpu_is_a_finding",
            "two ranks on one GPU without either is the finding duplicate_gpu, no traceback",
        ),
        (
            "ranks.preflight",
            "test_the_whole_preflight",
            "netdoctor preflight on this node: the all-reduce passes, no error, no traceback",
        ),
        (
            "ranks.parser",
            "test_the_parser_reads_every_line_that_matters",
            "the parser reads version, network, channels, ranks of this NCCL's log, and `netdoctor log` finds no fault",
        ),
    )
    + _tests(
        "test_allreduce_gpu.py",
        ("ranks.torch", "test_torch_tells_nccl", "torch says that NCCL carries CUDA tensors"),
        ("ranks.baseline", "test_the_baseline_finishes_and_its_data_is_right", "the baseline of the plan finishes, data right"),
        ("ranks.path", "test_the_path_between_nodes_is_net", "the plan's inter-node path is NET"),
        ("ranks.refused", "test_two_ranks_on_one_gpu_are_refused_by_nccl_and_named", "ranks that NCCL refuses are named"),
        ("ranks.fork", "test_cuda_is_not_touched_before_the_fork", "the process that forks the ranks has not touched CUDA"),
        ("ranks.events", "test_events_and_a_bare_loop_agree", "bandwidth by CUDA events is of a sensible size", 2),
    ),
)

FAULTS: Final = Step(
    "faults",
    150.0,
    _tests(
        "test_gpu_faults.py",
        ("faults.killed", "test_a_killed_rank_is_named", "a rank killed in the middle is named, its victim is not"),
        ("faults.stopped", "test_a_stopped_rank_is_a_hang", "a stopped rank is a hang that names it, and is ended"),
        ("faults.raised", "test_a_rank_that_raises_is_named", "a rank that raises is named with its error"),
        ("faults.memory", "test_out_of_memory_is_not_the_nodes_fault", "a GPU without memory is unknown, no fail"),
        (
            "faults.busy",
            "test_a_busy_gpu_is_left_alone",
            "a GPU that another process uses is left alone: unknown, with the reason",
        ),
        ("faults.hidden", "test_an_empty_cuda_visible_devices", "CUDA_VISIBLE_DEVICES empty: no pass, no traceback"),
        (
            "faults.wrong_device",
            "test_a_wrong_cuda_visible_devices",
            "CUDA_VISIBLE_DEVICES with a GPU that is not there: no pass, no traceback",
        ),
        (
            "faults.two_libnccl",
            "test_another_libnccl_by_preload",
            "another libnccl by LD_PRELOAD is the one that nccl.version reports",
        ),
        (
            "faults.interrupted",
            "test_an_interrupted_preflight_leaves_nothing",
            "SIGTERM in the middle of a preflight: exit 143, nothing left on the GPU",
        ),
        (
            "faults.nothing_left",
            "test_nothing_is_left_on_the_gpu",
            "NVML's processes and memory before and after all of these are equal",
        ),
    ),
)

_ENV_CASES: Final = (
    ("ifname", "NCCL_SOCKET_IFNAME names no interface"),
    ("hca", "NCCL_IB_HCA names no device"),
    ("algo", "NCCL_ALGO is no algorithm"),
    ("proto", "NCCL_PROTO is no protocol"),
    ("p2p_level", "NCCL_P2P_LEVEL is no level"),
    ("buffsize", "NCCL_BUFFSIZE=4M is read as 4 bytes"),
    ("net", "NCCL_NET names no network"),
)
ENVIRONMENT: Final = Step(
    "environment",
    120.0,
    tuple(
        Claim(
            f"env.{case}",
            f"{text}: what NCCL does, and `netdoctor env` says so",
            f"tests/live/test_gpu_environment.py::test_env_says_what_nccl_does[{case}]",
        )
        for case, text in _ENV_CASES
    ),
)

MANY: Final = Step(
    "many",
    150.0,
    _tests(
        "test_gpu_many.py",
        (
            "many.p2p",
            "test_the_default_path",
            "several GPUs: the transport by default is P2P where CUDA allows it, else SHM; data right",
            2,
        ),
        ("many.shm", "test_shm_forced", "P2P off: SHM carries", 2),
        ("many.net", "test_net_forced", "P2P and SHM off: NET carries", 2),
        ("many.nvls", "test_nvls", "NVLS is used where the GPUs have it, and the log shows it", 2),
        (
            "many.limits",
            "test_busbw_is_below_the_limit_and_near_it",
            "bus bandwidth is below the path's limit, and allreduce.bandwidth does not fail",
            2,
        ),
        ("many.pairs", "test_every_pair", "every pair of GPUs: transport and bus bandwidth", 2),
    ),
)

DIFFERENTIAL: Final = Step(
    "differential",
    90.0,
    (
        Claim(
            "differential.driver",
            "on drawn settings NCCL takes the HCAs, GPUDirect and transports that netdoctor predicts: at least 99.5 %",
            "tools/gpu_proof/differential.py",
        ),
    ),
    module="tools.gpu_proof.differential",
    needs_torch=False,
)

RECORD: Final = Step(
    "record",
    130.0,
    (
        Claim(
            "record.host",
            "this host is recorded, redacted and pseudonymised, and replays to the same report",
            "tools/gpu_proof/record.py",
        ),
        Claim("record.healthy", "the recorded host has no fail (a healthy node has none)", "tools/gpu_proof/record.py"),
        Claim(
            "record.logs",
            "NCCL's log of this version at every subsystem is kept as a sample for the parser",
            "tools/gpu_proof/record_logs.py",
        ),
    ),
    module="tools.gpu_proof.record",
)

FIGURES: Final = Step(
    "figures",
    320.0,
    _figures(
        ("gpu.split", "start to verdict, split into import, CUDA context, NCCL init, experiments"),
        ("gpu.memory", "GPU memory of a rank: at most 1.5 GB"),
        ("gpu.one_latency", "world of one: latency against a bare loop, median of >= 30 interleaved pairs within 0.95-1.05"),
        ("gpu.busbw", "bus bandwidth against a bare loop, median of paired ratios within 0.98-1.02", 2),
        ("gpu.torch_free", "start to verdict without torch (libnccl and libcuda) against the torch path"),
        ("gpu.gloo", "Gloo against NCCL on CUDA tensors"),
        ("gpu.debug", "what NCCL_DEBUG=INFO with all of netdoctor's subsystems costs"),
        ("gpu.numa", "ranks bound near the GPU against ranks bound far from it"),
    ),
    module="tools.gpu_proof.figures",
)

STEPS: Final = (INVENTORY, RANKS, FAULTS, ENVIRONMENT, MANY, DIFFERENTIAL, RECORD, FIGURES)


def table(steps: tuple[Step, ...] = STEPS) -> str:
    """The claims as the Markdown of docs/gpu-proof.md."""
    lines = []
    for step in steps:
        lines += [f"### {step.name} (at most {step.seconds:.0f} s)", "", "| claim | what is seen | shown by |", "|---|---|---|"]
        for one in step.claims:
            text = one.text + (f" (needs {one.gpus} GPUs)" if one.gpus > 1 else "")
            lines.append(f"| {one.id} | {text} | `{one.source}` |")
        lines.append("")
    return "\n".join(lines)
