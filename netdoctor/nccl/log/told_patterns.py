# ruff: noqa: E501  (a row a line)
"""What libraries, launchers, daemons and the kernel name in plain words, where one line says all there is to say.

A group's name is the key of `netdoctor/nccl/diagnosis/told.py`, which says what it means; what the group catches is quoted.  One row a
speaker.  `told` ends a job, or keeps it from starting; `told_node` is of a node, on which a job may go on.
"""

from __future__ import annotations

import re
from typing import Final, Literal

from netdoctor.nccl.log.pattern import BEGIN, END, QUOTE, Pattern, row

_GROUP: Final = re.compile(r"\(\?P<(\w+)>")
# A comment, an option and what it is for, a program's settings, and what a model was asked or wrote: nobody says it.
_NOT_SAID: Final = (
    r"\s{0,8}(?:#(?!!)|//|--?[a-z][\w\-]{1,60}[ =])"
    r"|.{0,200}?(?:\b(?-i:Namespace|\w{0,40}(?:Args|Arguments|Config))\("
    r"|\b(?:received request|prompts?|questions?|answers?|predictions?|references?|completions?|sample \d{1,9})['\"]?\s?[:=] )"
)
_KERNEL: Final = r"(?:(?P<host>[\w.\-]+) kernel: .{0,60}?)?"


def _told(needles: str, regex: str, kind: Literal["told", "told_node"] = "told", follow: int = 0) -> Pattern:
    """Each group tells events apart but `host`, which says whose they are."""
    said = rf"^(?!{_NOT_SAID}).*?(?:{regex})"
    return row(kind, needles, said, " ".join(name for name in _GROUP.findall(regex) if name != "host"), follow)


def _of_the_node(needles: str, regex: str) -> Pattern:
    return _told(needles, _KERNEL + regex, "told_node")


PATTERNS: Final = (
    # Open MPI's help texts: ompi/runtime/help-mpi-runtime.txt, opal/mca/shmem/mmap, opal/mca/btl/tcp, ompi/mca/mtl/ofi and
    # psm2, opal/mca/base/help-mca-base.txt, opal/mca/accelerator/cuda
    _told(
        "process is unreachable|shared-memory backing|failed to handshake|libfabric library call|endpoint information for|failed to register your buffer|psm2 was unable|unrecoverable error|component was not found|components were able",
        r"(?P<mpi_unreachable>at least one MPI process is unreachable)|not enough space for (?P<shm_backing>\S{1,200}) \(the shared-memory backing|(?P<mpi_handshake>Open MPI failed to handshake with a connecting peer)|Open MPI failed an OFI Libfabric library call \((?P<ofi_call>\w{1,60})\)|(?P<ofi_peer>not able to find endpoint information for a remote)|(?P<mpi_memory>Open MPI failed to register your buffer)|(?P<psm_link>PSM2 was unable to open an endpoint)|The call to (?P<mpi_cuda>cu\w{1,60}) failed\. This is an unrecoverable error|(?P<mpi_component>A requested component was not found, or was unable to be opened)|No components were able to be opened in the (?P<mpi_framework>\w{1,40}) framework",
        follow=12,
    ),
    # Hydra: src/pm/hydra/lib/utils/sock.c, proxy/pmip.c
    _told(
        "unable to connect |unable to get host address",
        r"unable to connect (?P<hydra_connect>from \"[^\"]{1,100}\" to \"[^\"]{1,100}\" \([^)]{1,80}\)|to server \S{1,100} at port \d{1,5} \(check for firewalls!\))|unable to get host address for (?P<no_address>[\w.\-]{1,100})",
    ),
    # UCX: src/ucp/core/ucp_context.c, src/ucs/sys/sys.c, src/uct/sm/mm/base/mm_iface.c, src/uct/ib/base/ib_device.c
    _told(
        "ucx  error",
        r"UCX  ERROR (?:(?P<ucx_devices>no usable transports/devices.{0,80})|(?P<ucx_shm>shm\w+\(.{1,160}please check shared memory limits|mm_iface failed to allocate receive FIFO)|(?P<ucx_open>ibv_open_device\(\S{1,40}\) failed: (?:Permission denied|Operation not permitted|No such device).{0,40}))",
    ),
    # libfabric's EFA provider: prov/efa/src/efa_mr.c, efa_ah.c
    _told(
        "unable to register mr of|ibv_create_ah failed",
        r"\befa:\w+:.{0,80}?(?:(?P<efa_memory>Unable to register MR of \d{1,15} bytes: Cannot allocate memory)|(?P<efa_peer>ibv_create_ah failed.{0,80}))",
    ),
    # Slurm: src/common/slurm_protocol_api.c, src/plugins/auth/munge, slurm_errno.c; src/slurmd/slurmstepd; src/api/step_launch.c; src/sbatch
    _told(
        "credential|stepd terminated on|aborting, |batch script|look like a batch",
        r"(?P<slurm_clock>\b(?:Rewound|Expired) credential\b|Job credential expired)|(?P<slurm_trust>\b(?:Invalid|Replayed) credential\b|Invalid job credential|Job credential revoked)|STEPD TERMINATED ON (?P<host>[\w.\-]{1,100}) AT \S{1,30} (?P<slurm_unkillable>DUE TO JOB NOT ENDING WITH SIGNALS)|[Aa]borting, (?P<slurm_lost>(?:io error and missing step|step missing and io error|io error with slurmstepd) on node \d{1,6}|can not test connection to node \d{1,6})|sbatch: error: (?P<batch_script>Batch script (?:contains DOS line breaks|is empty|contains only whitespace)|This does not look like a batch script)",
    ),
    # frameworks: torch's elastic agent, NVIDIA's resiliency extension, Megatron's rerun_state_machine.py, Ray Train, Horovod's elastic
    # driver, SGLang's disaggregation, Mooncake's rdma_context.cpp, TensorFlow's and pydantic's callers excluded
    _told(
        "uninterruptible sleep|detected stragglers|persistent error|transient error|worker group startup timed out|slots to be available|blacklisted slots|prefill|no matched device found|memory capacity is unbalanced",
        r"(?P<sleeps>Worker pid=\d{1,8} stuck in uninterruptible sleep \(D-state\))|(?P<stragglers>Detected stragglers\. Terminating training)|(?P<gpu_miscounts>Possible (?:persistent|transient) error!)|(?P<ray_workers>worker group startup timed out after [\d.]{1,12} seconds)|(?P<horovod_slots>Timed out waiting for hosts slots to be available)|(?P<horovod_blacklist>blacklisted slots count == \d{1,6} -> stop running)|(?P<prefill>(?:Error fetching|Could not fetch) prefill (?:server |parallel )?info from .{1,120})|No matched device found: (?P<mooncake_device>[\w.\-]{1,60})|(?P<gpus_unequal>The memory capacity is unbalanced\. Some GPUs may be occupied)",
    ),
    # what a program says at the level at which it ends itself: glog's and absl's, TensorFlow's and XLA's, Ray's (src/ray/util/logging.cc)
    row(
        "fatal",
        ".cc:|.cpp:|.h:",
        r"(?<![^\s|>:\]])F\d{4} \d\d:\d\d:\d\d\.\d{1,9} +\d{1,9} (?P<said>\S{1,120}\.(?:cc|cpp|h):\d{1,6}\] .{1,300})|\d\d:\d\d:\d\d\.\d{1,9}: F (?P<said2>\S{1,200}\.(?:cc|cpp|h):\d{1,6}\] .{1,300})|\d\d:\d\d:\d\d,\d{3} C \d{1,9} \d{1,9}\] (?:\(\w+\) )?(?P<said3>\S{1,120}\.(?:cc|cpp|h):\d{1,6}: .{1,300})",
        "said",
    ),
    # the help texts of Open MPI, PRRTE and PMIx stand between two such lines (pmix/src/util/pmix_show_help.c)
    row("help", "-" * 74, rf"{BEGIN}-{{74}}{END}", follow=3, each=True),
    _told(
        "std::bad_alloc|any nv files|compatibility mode is unavailable|attempting to bind on address",
        r"instance of '(?P<bad_alloc>std::bad_alloc)'|(?P<no_nv>Could not find any nv files on this host)|(?P<ngc>compatibility mode is UNAVAILABLE)|error while attempting to bind on address (?P<http_port>\([^)]{1,60}\)): address already in use",
    ),
    # Kubernetes' operators and admission: JobSet's constants.go, Kueue's flavorassigner.go, KubeRay's pod.go; kubelet
    _told(
        "jobset failed due to|insufficient unused quota|insufficient quota for|waiting for gcs|exec format error|error: secret|error: configmap|error: couldn",
        r"jobset failed due to (?P<jobset>.{1,80})|(?P<no_quota>insufficient (?:unused )?quota for \S{1,80} in flavor .{1,80})|(?P<ray_head>\d{1,9} seconds elapsed: Waiting for GCS to be ready)|"
        rf"(?P<arch>exec\S{{0,80}}(?: /\S{{1,200}})?: exec format error)|Error: (?P<pod_config>(?:secret|configmap) \S{{1,120}} not found|couldn{QUOTE}t find key .{{1,120}})",
    ),
    # DCGM's diagnosis (dcgmlib/dcgm_errors.h, dcgmi/Diag.cpp) and the Fabric Manager's log
    _told(
        "memory mismatch was detected|running at pci link|achieved a memory bandwidth|fail - gpu|fabric manager is aborting|nvswitch fatal error",
        r"(?P<dcgm_memory>A memory mismatch was detected on GPU \d{1,3})|(?P<dcgm_link>GPU \d{1,3} is running at PCI link (?:width|generation) \w{1,6}, which is below)|(?P<dcgm_slow>GPU \d{1,3} only achieved a memory bandwidth of [\d.]{1,12} GB/s)|(?P<dcgm_fail>\|\s{1,4}\w[\w /]{1,40}\|\s{1,4}Fail - GPUs?: [\d, ]{1,40})|(?P<fm_ends>fabric manager is aborting|NVSwitch fatal error)",
    ),
    # Linux: arch/x86/kernel/cpu/mce, drivers/edac, mm/memory-failure.c, drivers/pci/pcie/aer.c
    _of_the_node(
        "machine check exception|hardware memory corruption|edac |kernel panic - not|uncorrected|uncorrectable",
        r"(?P<node_memory>Machine Check Exception: \w.{0,80}|EDAC \S{1,8}: \d{1,9} UE .{1,80}|Sending SIGBUS to \S{1,40} due to hardware memory corruption)|(?P<panic>Kernel panic - not syncing: .{1,80})|(?P<pcie>AER: Uncorrect(?:ed|able) \((?:Fatal|Non-Fatal)\).{1,80}|PCIe Bus Error: severity=Uncorrect(?:ed|able) \(.{1,80})",
    ),
    # arch/x86/mm/fault.c, lib/bug.c, mm/page_alloc.c, net/sched/sch_generic.c, drivers/infiniband/ulp/ipoib, drivers/md, fs/btrfs
    _of_the_node(
        "bug: |oops: |general protection fault|kernel bug at|page allocation failure|transmit |disk failure on|btrfs|forced readonly",
        r"(?:(?P<oops>BUG: (?:kernel NULL pointer|unable to handle).{0,80}|Oops: \d.{0,40}|general protection fault, probably.{0,80}|kernel BUG at \S{1,80})|(?P<pages>page allocation failure: order:\d{1,2})|(?P<netdev>NETDEV WATCHDOG: \S{1,40} \(\S{1,40}\): transmit queue \d{1,4} timed out|\bib\d{1,3}: transmit timeout: .{1,40})|(?P<array>md/raid\S{0,20}: Disk failure on \S{1,40})|(?P<btrfs>BTRFS:? error \(device .{1,100}|BTRFS.{0,60}forced readonly))",
    ),
    # mlx5_core: core/events.c, en_main.c, cmd.c; the kernel's network: nf_conntrack_core.c, net/core/neighbour.c
    _of_the_node(
        "port module event[error]|link down|failed, status|table full, dropping|neighbor table overflow",
        r"(?:mlx5_core \S{1,40}: .{0,60}?Port module event\[error\]: (?P<cable>module \d{1,3}, .{1,60})|mlx5_core \S{1,40} (?P<link_down>[\w.\-]{1,20}: Link down)|mlx5_core \S{1,40}: \w{1,40}:\d{1,5}:\(pid \d{1,9}\): (?P<hca_command>CREATE_\w{1,20}\(0x\w{1,6}\) .{0,40}?failed, status [\w ]{3,40})|(?P<conntrack>nf_conntrack: table full, dropping packet)|(?P<neighbours>neighbor table overflow))",
    ),
    # file systems: mmfsd (GPFS), beegfs_client, libceph; and NVIDIA's and AMD's drivers
    _of_the_node(
        "lost membership in|mmfs daemon is shutting|storage target unreachable|communication error. storage|ring |uncorrectable hardware|probe of|bar0 is 0m|cpu clock throttled",
        r"(?:(?P<gpfs>Lost membership in cluster \S{1,80}|The mmfs daemon is shutting down abnormally)|(?P<beegfs>Storage target unreachable|Communication error\. storage\S{0,40})|amdgpu \S{1,40}: amdgpu: (?P<amd_ring>ring \S{1,20} timeout)|(?P<amd_memory>[1-9]\d{0,9} (?:new )?uncorrectable hardware errors detected in \w{1,20})|(?P<gpu_probe>nvidia: probe of \S{1,20} failed with error -\d{1,4}|NVRM: BAR0 is 0M.{0,40})|(?P<throttled>temperature above threshold, cpu clock throttled))",
    ),
)
