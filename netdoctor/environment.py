"""The one table of variables: who sets or reads each, what it means, whether a recording keeps it, and what it is of.

Redaction reads it (`kept`, `secret`), and so do the probes, the detection of launchers, the names of one start of a job and
the comparison of nodes.  A second table names what makes libraries write files.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import cache
from typing import Final, NamedTuple


class Role(Enum):
    """What a variable means."""

    __hash__ = object.__hash__  # Enum's is written in Python, and these are keys of tables

    RANK = "the rank of this process in the job"
    WORLD = "how many ranks the job has"
    LOCAL_RANK = "the rank of this process on its node"
    LOCAL_WORLD = "how many ranks its node has"
    NODES = "how many nodes the job has"
    NODE_RANK = "the number of this node in the job"
    PER_NODE = "the ranks of every node"
    MASTER = "where node 0 is"
    PORT = "the port that node 0 listens on"
    NODELIST = "the names of all nodes"
    IN_JOB = "only a process of a job has it, neither a shell nor a batch system's prolog"
    NAME = "names the launcher, its job or a part of it"
    SETTING = "changes what a program does"
    PLACE = "says where a process runs and as whom"


class Of(Enum):
    """What a value belongs to, where that is less than the set-up of a node."""

    JOB = "names the job on all its nodes; an operator's pods keep it over restarts"
    START = "names one start of the job on all its nodes"
    NODE_START = "names one start of the job on one of its nodes"
    RUN = "belongs to one run, and is equal on its nodes"
    PROCESS = "names a file or an address of one process, or one node"
    LOG = "says what is logged, and changes nothing else"
    INTERFACES = "names network interfaces of one node"
    DEVICES = "names devices of one node or a file that lists them"


class Variable(NamedTuple):
    """One row of the table."""

    name: str  # a trailing "*" makes it a prefix
    program: str  # who sets or reads it
    role: Role
    kept: bool = True  # a recording keeps it
    of: Of | None = None  # None: the set-up of a node, or a rank's place in its job
    withheld: bool = False  # the ranks of a short run do not inherit it: it would make them ranks of the job


def _rows(
    program: str, role: Role, names: str, *, kept: bool = True, of: Of | None = None, withheld: bool = False
) -> tuple[Variable, ...]:
    return tuple(Variable(name, program, role, kept, of, withheld) for name in names.split())


# A launcher puts credentials beside its ranks (SLURM_JWT, PMIX_SERVER_URI, PMI_FD, RAY_REDIS_PASSWORD), and torchrun's
# PET_RDZV_CONF may hold those of a rendezvous backend.  So the names of launchers are single names; a prefix is here only
# where no credential is passed under it, or where nothing of it is kept.  Of two rows of one program and role the first is
# asked first.
#
# Those that start ranks, whose variables are all withheld: torch reads its own even where a store is given; MPI and PMI
# variables make UCX and libfabric plugins look for a process manager.
_STARTERS: Final = (
    # torch.distributed's env:// (docs: "Environment variable initialization") and torch.distributed.elastic, which sets them.
    *_rows("torch", Role.RANK, "RANK"),
    *_rows("torch", Role.WORLD, "WORLD_SIZE"),
    *_rows("torch", Role.LOCAL_RANK, "LOCAL_RANK"),
    *_rows("torch", Role.LOCAL_WORLD, "LOCAL_WORLD_SIZE"),
    *_rows("torch", Role.NODES, "GROUP_WORLD_SIZE"),
    *_rows("torch", Role.NODE_RANK, "GROUP_RANK"),
    *_rows("torch", Role.MASTER, "MASTER_ADDR"),
    *_rows("torch", Role.PORT, "MASTER_PORT"),
    *_rows("torch", Role.NAME, "ROLE_NAME ROLE_RANK ROLE_WORLD_SIZE"),
    *_rows("torch", Role.NAME, "ROLE_*", kept=False),
    *_rows("torch", Role.IN_JOB, "TORCHELASTIC_RUN_ID", of=Of.START),
    # Each agent counts the failures of its own workers: nodes of one start may differ (elastic/agent/server/api.py).
    *_rows("torch", Role.NAME, "TORCHELASTIC_RESTART_COUNT", of=Of.NODE_START),
    *_rows("torch", Role.SETTING, "TORCHELASTIC_* TORCH_ELASTIC_*"),
    # By convention of many training scripts and manifests, this project's among them.
    *_rows("user", Role.NODES, "NNODES"),
    *_rows("user", Role.NODE_RANK, "NODE_RANK"),
    # torchrun's own options (torch/distributed/run.py, argparse_util.py); Kubeflow's TrainJob and PyTorchJob set them.
    *_rows("torchrun", Role.NODES, "PET_NNODES"),
    *_rows("torchrun", Role.LOCAL_WORLD, "PET_NPROC_PER_NODE"),
    *_rows("torchrun", Role.NODE_RANK, "PET_NODE_RANK"),
    *_rows("torchrun", Role.MASTER, "PET_MASTER_ADDR"),
    *_rows("torchrun", Role.PORT, "PET_MASTER_PORT"),
    *_rows("torchrun", Role.NAME, "PET_RDZV_BACKEND PET_RDZV_ENDPOINT PET_RDZV_ID PET_ROLE PET_LOCAL_ADDR"),
    *_rows("torchrun", Role.SETTING, "PET_STANDALONE PET_MAX_RESTARTS PET_MONITOR_INTERVAL PET_START_METHOD PET_NUMA_BINDING"),
    *_rows("torchrun", Role.SETTING, "PET_VIRTUAL_LOCAL_RANK PET_SHUTDOWN_TIMEOUT"),
    *_rows("torchrun", Role.SETTING, "PET_*", kept=False),
    # Open MPI FAQ, "environment variables".
    *_rows("openmpi", Role.RANK, "OMPI_COMM_WORLD_RANK"),
    *_rows("openmpi", Role.WORLD, "OMPI_COMM_WORLD_SIZE"),
    *_rows("openmpi", Role.LOCAL_RANK, "OMPI_COMM_WORLD_LOCAL_RANK"),
    *_rows("openmpi", Role.LOCAL_WORLD, "OMPI_COMM_WORLD_LOCAL_SIZE"),
    *_rows("openmpi", Role.NAME, "OMPI_COMM_WORLD_NODE_RANK OMPI_UNIVERSE_SIZE"),
    *_rows("openmpi", Role.NAME, "OMPI_COMM_* OMPI_UNIVERSE_*", kept=False),
    # Hydra (MPICH, Intel MPI, MVAPICH), Cray PALS, PMIx.  PMI_FD is the number of a socket to the process manager.
    *_rows("hydra", Role.RANK, "PMI_RANK MV2_COMM_WORLD_RANK"),
    *_rows("hydra", Role.WORLD, "PMI_SIZE MV2_COMM_WORLD_SIZE"),
    *_rows("hydra", Role.LOCAL_RANK, "MPI_LOCALRANKID MV2_COMM_WORLD_LOCAL_RANK PMI_LOCAL_RANK"),
    *_rows("hydra", Role.LOCAL_WORLD, "MPI_LOCALNRANKS MV2_COMM_WORLD_LOCAL_SIZE PMI_LOCAL_SIZE"),
    *_rows("hydra", Role.NAME, "PMI_PORT", kept=False, of=Of.NODE_START),
    *_rows("hydra", Role.NAME, "PMI_* MV2_COMM_*", kept=False),
    # Cray: PALS (mpiexec of PBS sites) and ALPS (aprun).
    *_rows("pals", Role.RANK, "PALS_RANKID"),
    *_rows("pals", Role.LOCAL_RANK, "PALS_LOCAL_RANKID"),
    *_rows("pals", Role.NODE_RANK, "PALS_NODEID"),
    *_rows("pals", Role.NAME, "PALS_APID"),
    *_rows("alps", Role.RANK, "ALPS_APP_PE"),
    # Horovod's launcher (horovod/runner): CROSS counts the nodes that have this local rank.
    *_rows("horovod", Role.RANK, "HOROVOD_RANK"),
    *_rows("horovod", Role.WORLD, "HOROVOD_SIZE"),
    *_rows("horovod", Role.LOCAL_RANK, "HOROVOD_LOCAL_RANK"),
    *_rows("horovod", Role.LOCAL_WORLD, "HOROVOD_LOCAL_SIZE"),
    *_rows("horovod", Role.NODES, "HOROVOD_CROSS_SIZE"),
    *_rows("horovod", Role.NODE_RANK, "HOROVOD_CROSS_RANK"),
    *_rows("pmix", Role.RANK, "PMIX_RANK"),
    *_rows("pmix", Role.NAME, "PMIX_NAMESPACE", of=Of.START),
    *_rows("pmix", Role.NAME, "PMIX_*", kept=False),
)
_LAUNCHERS: Final = (
    *(row._replace(withheld=True) for row in _STARTERS),
    # Among the others of OMPI_MCA_ is a key of the fabric (orte_precondition_transports).
    *_rows("openmpi", Role.SETTING, "OMPI_MCA_btl* OMPI_MCA_pml* OMPI_MCA_osc* OMPI_MCA_mtl* OMPI_MCA_coll*"),
    *_rows("hydra", Role.NAME, "HYDRA_HOST_FILE"),
    # flux-environment(7).
    *_rows("flux", Role.RANK, "FLUX_TASK_RANK"),
    *_rows("flux", Role.WORLD, "FLUX_JOB_SIZE"),
    *_rows("flux", Role.LOCAL_RANK, "FLUX_TASK_LOCAL_ID"),
    *_rows("flux", Role.NODES, "FLUX_JOB_NNODES"),
    *_rows("flux", Role.NAME, "FLUX_JOB_ID", of=Of.START),
    # srun(1), "OUTPUT ENVIRONMENT VARIABLES"; the names without an underscore are those of old releases.
    *_rows("slurm", Role.RANK, "SLURM_PROCID", withheld=True),
    *_rows("slurm", Role.WORLD, "SLURM_STEP_NUM_TASKS SLURM_NTASKS SLURM_NPROCS"),
    *_rows("slurm", Role.LOCAL_RANK, "SLURM_LOCALID", withheld=True),
    *_rows("slurm", Role.NODES, "SLURM_STEP_NUM_NODES SLURM_JOB_NUM_NODES SLURM_NNODES"),
    *_rows("slurm", Role.NODE_RANK, "SLURM_NODEID", withheld=True),
    *_rows("slurm", Role.NAME, "SLURM_STEP_RESV_PORTS", kept=False, withheld=True),
    *_rows("slurm", Role.PER_NODE, "SLURM_STEP_TASKS_PER_NODE SLURM_TASKS_PER_NODE"),
    *_rows("slurm", Role.NAME, "SLURM_HET_SIZE SLURM_PACK_SIZE"),
    *_rows("slurm", Role.NODELIST, "SLURM_STEP_NODELIST SLURM_JOB_NODELIST SLURM_NODELIST"),
    *_rows("slurm", Role.IN_JOB, "SLURM_STEP_ID", of=Of.START),
    *_rows("slurm", Role.IN_JOB, "SLURM_STEPID"),
    *_rows("slurm", Role.NAME, "SLURM_JOB_ID", of=Of.START),
    *_rows("slurm", Role.NAME, "SLURM_JOBID SLURM_JOB_UID SLURMD_NODENAME SLURM_SCRIPT_CONTEXT SLURM_NTASKS_PER_NODE"),
    *_rows("slurm", Role.SETTING, "SLURM_CPU_BIND SLURM_GPU_BIND SLURM_GPUS_ON_NODE SLURM_CPUS_PER_TASK SRUN_CPUS_PER_TASK"),
    *_rows("slurm", Role.SETTING, "SLURM_SHARDS_ON_NODE"),
    *_rows("slurm", Role.SETTING, "SLURM_JOB_GPUS SLURM_STEP_GPUS", of=Of.DEVICES),
    # Other batch systems: that there is a job is all that is asked of them.
    *_rows("pbs", Role.IN_JOB, "PBS_JOBID"),
    *_rows("pbs", Role.NODES, "PBS_NUM_NODES"),
    *_rows("pbs", Role.NODELIST, "PBS_NODEFILE"),
    *_rows("lsf", Role.IN_JOB, "LSB_JOBID"),
    *_rows("lsf", Role.RANK, "JSM_NAMESPACE_RANK"),
    *_rows("lsf", Role.WORLD, "JSM_NAMESPACE_SIZE"),
    *_rows("lsf", Role.NODELIST, "LSB_HOSTS LSB_MCPU_HOSTS LSB_DJOB_HOSTFILE"),
    *_rows("gridengine", Role.NODES, "NHOSTS"),
    *_rows("gridengine", Role.NODELIST, "PE_HOSTFILE"),
    *_rows("cobalt", Role.NODES, "COBALT_JOBSIZE"),
    *_rows("cobalt", Role.NODELIST, "COBALT_NODEFILE"),
    *_rows("oar", Role.NODELIST, "OAR_NODEFILE"),
    # Cloud services that start one container a node.
    *_rows("awsbatch", Role.NODES, "AWS_BATCH_JOB_NUM_NODES"),
    *_rows("awsbatch", Role.NODE_RANK, "AWS_BATCH_JOB_NODE_INDEX"),
    *_rows("skypilot", Role.NODES, "SKYPILOT_NUM_NODES"),
    *_rows("skypilot", Role.NODE_RANK, "SKYPILOT_NODE_RANK"),
    *_rows("sagemaker", Role.NODELIST, "SM_HOSTS"),
    *_rows("azureml", Role.NODES, "AZUREML_NODE_COUNT"),
    # Operators of Kubernetes say which pod of how many this is.
    *_rows("leaderworkerset", Role.NODES, "LWS_GROUP_SIZE"),
    *_rows("leaderworkerset", Role.NODE_RANK, "LWS_WORKER_INDEX"),
    *_rows("leaderworkerset", Role.MASTER, "LWS_LEADER_ADDRESS"),
    *_rows("leaderworkerset", Role.NAME, "LWS_NAME", of=Of.JOB),
    *_rows("mpijob", Role.NAME, "K_MPI_JOB_ROLE"),
    *_rows("volcano", Role.NODES, "VC_WORKER_NUM"),
    *_rows("volcano", Role.NODE_RANK, "VC_TASK_INDEX VK_TASK_INDEX"),
    *_rows("volcano", Role.NODELIST, "VC_WORKER_HOSTS"),
    *_rows("volcano", Role.NAME, "VC_JOB_NAME", of=Of.JOB),
    *_rows("kuberay", Role.NAME, "RAY_CLUSTER_NAME RAY_CLUSTER_NAMESPACE RAY_NODE_TYPE_NAME RAY_ADDRESS"),
    *_rows("jobset", Role.NODE_RANK, "JOB_COMPLETION_INDEX"),
    *_rows("jobset", Role.NAME, "JOBSET_NAME REPLICATED_JOB_NAME"),
    *_rows("jobset", Role.NAME, "JOBSET_UID", of=Of.JOB),
    *_rows("kubernetes", Role.NAME, "KUBERNETES_SERVICE_HOST"),
)
_SETTINGS: Final = (
    # What differs between healthy nodes or runs (NCCL's documentation, "Environment Variables").
    *_rows("nccl", Role.SETTING, "NCCL_COMM_ID", of=Of.RUN, withheld=True),  # another job's root; the next: its log
    *_rows("nccl", Role.SETTING, "NCCL_RUN_DIAGNOSTICS NCCL_RUN_RAS_DIAGNOSTICS", withheld=True),  # other logs
    *_rows("nccl", Role.SETTING, "NCCL_DEBUG_LEVELS", of=Of.LOG, withheld=True),
    *_rows("nccl", Role.SETTING, "NCCL_DEBUG NCCL_DEBUG_SUBSYS", of=Of.LOG),
    *_rows("nccl", Role.SETTING, "NCCL_DEBUG_TIMESTAMP_FORMAT NCCL_DEBUG_TIMESTAMP_LEVELS", of=Of.LOG),
    *_rows("nccl", Role.SETTING, "NCCL_HOSTID NCCL_DEBUG_FILE NCCL_RAS_ADDR NCCL_TOPO_DUMP_FILE", of=Of.PROCESS),
    *_rows("nccl", Role.SETTING, "NCCL_TOPO_FILE NCCL_IB_HCA", of=Of.DEVICES),
    *_rows("nccl", Role.SETTING, "NCCL_SOCKET_IFNAME NCCL_OOB_NET_IFNAME", of=Of.INTERFACES),
    *_rows("nccl", Role.SETTING, "NCCL_* RCCL_* OFI_NCCL_* SHARP_* GDRCOPY_ENABLE_LOGGING"),
    *_rows("torch", Role.SETTING, "GLOO_SOCKET_IFNAME TP_SOCKET_IFNAME", of=Of.INTERFACES),
    *_rows("torch", Role.SETTING, "TORCH_* PYTORCH_* GLOO_* TP_*"),
    *_rows("transports", Role.SETTING, "UCX_NET_DEVICES NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", of=Of.INTERFACES),
    *_rows("transports", Role.SETTING, "FI_PROVIDER FI_PROVIDER_PATH UCX_MODULE_DIR IBV_DRIVERS RDMAV_DRIVERS"),
    *_rows("transports", Role.SETTING, "UCX_* UCC_* FI_* RDMAV_* IBV_* MLX5_* MLX4_* NVSHMEM_* NIXL_*"),
    *_rows("accelerators", Role.SETTING, "CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER CUDA_LAUNCH_BLOCKING CUDA_MODULE_LOADING"),
    *_rows("accelerators", Role.SETTING, "CUDA_DEVICE_MAX_CONNECTIONS CUDA_HOME CUDA_VERSION CUDA_MPS_PIPE_DIRECTORY"),
    *_rows("accelerators", Role.SETTING, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES"),
    *_rows("accelerators", Role.SETTING, "NEURON_RT_VISIBLE_CORES NEURON_RT_NUM_CORES HABANA_VISIBLE_DEVICES"),
    *_rows("accelerators", Role.SETTING, "CUDA_* HSA_* HIP_* ROCR_* NEURON_* HABANA_* NVIDIA_REQUIRE_*"),
    # NVIDIA_API_KEY is a credential, so no prefix.
    *_rows("accelerators", Role.SETTING, "NVIDIA_VISIBLE_DEVICES NVIDIA_DRIVER_CAPABILITIES NVIDIA_DISABLE_REQUIRE NVIDIA_GDS"),
    *_rows("accelerators", Role.SETTING, "NVIDIA_IMEX_CHANNELS NVIDIA_GDRCOPY NVIDIA_MOFED NVIDIA_TF32_OVERRIDE"),
    *_rows("accelerators", Role.SETTING, "MELLANOX_VISIBLE_DEVICES"),
    *_rows("openmp", Role.SETTING, "OMP_NUM_THREADS OMP_PROC_BIND OMP_PLACES GOMP_CPU_AFFINITY KMP_AFFINITY KMP_HW_SUBSET"),
    *_rows("openmp", Role.SETTING, "OMP_* GOMP_* KMP_* MKL_NUM_THREADS OPENBLAS_NUM_THREADS"),
    *_rows("loader", Role.SETTING, "LD_LIBRARY_PATH LD_PRELOAD"),
    *_rows("vllm", Role.SETTING, "VLLM_NCCL_SO_PATH VLLM_HOST_IP"),
)
_PLACES: Final = (
    *_rows("system", Role.PLACE, "HOME USER LOGNAME PATH TMPDIR XDG_RUNTIME_DIR"),
    *_rows("python", Role.PLACE, "PYTHONPATH PYTHONSAFEPATH PYTHONNOUSERSITE VIRTUAL_ENV CONDA_PREFIX"),
    *_rows("containers", Role.PLACE, "container APPTAINER_CONTAINER APPTAINER_NAME SINGULARITY_CONTAINER SINGULARITY_NAME"),
    # "Environment and Metadata" of apptainer's user guide: APPTAINERENV_NAME is NAME within the container.
    *_rows(
        "containers",
        Role.SETTING,
        "APPTAINERENV_NCCL_* APPTAINERENV_TORCH_* APPTAINERENV_GLOO_* APPTAINERENV_UCX_* APPTAINERENV_FI_* "
        "SINGULARITYENV_NCCL_* SINGULARITYENV_TORCH_* SINGULARITYENV_GLOO_* SINGULARITYENV_UCX_* SINGULARITYENV_FI_*",
    ),
    # enroot.conf(5) and its hooks; registry credentials are in a file.
    *_rows("containers", Role.PLACE, "ENROOT_*"),
    *_rows("kubernetes", Role.PLACE, "NODE_NAME"),
    *_rows("netdoctor", Role.PLACE, "NETDOCTOR_REDACT NETDOCTOR_TOKEN", kept=False, withheld=True),
    *_rows("netdoctor", Role.PLACE, "NETDOCTOR_*"),
)
TABLE: Final[tuple[Variable, ...]] = (*_LAUNCHERS, *_SETTINGS, *_PLACES)

# How many pods a task of a Volcano job has; the name of the task is the user's.
# They name files of hosts: a line for each rank (pbs_resources(7)), or slot (LSF, Environment variables set for job execution).
HOST_FILES: Final = ("LSB_DJOB_HOSTFILE", "PBS_NODEFILE")
VOLCANO_TASK: Final = re.compile(r"VC_[A-Z0-9_]{1,64}_NUM\Z")

_NAMES: Final = {row.name: row for row in TABLE if not row.name.endswith("*")}
_PREFIXES: Final = tuple(row for row in TABLE if row.name.endswith("*"))


def lookup(name: str) -> Variable | None:
    """The row of a variable: its own, else the one of its prefix."""
    if row := _NAMES.get(name):
        return row
    if VOLCANO_TASK.match(name):
        return Variable(name, "volcano", Role.NAME)
    return next((row for row in _PREFIXES if name.startswith(row.name[:-1])), None)


def kept(name: str) -> bool:
    """Whether a recording keeps it, its value scrubbed."""
    row = lookup(name)
    return row is not None and row.kept


def of_job(name: str) -> bool:
    """Whether the job, its launcher or a library of it reads or sets this: all that is kept but places."""
    row = lookup(name)
    return row is not None and row.kept and row.role is not Role.PLACE


def withheld(name: str) -> bool:
    """Whether the ranks of a short run must not inherit it."""
    row = lookup(name)
    return row is not None and row.withheld


def exact(name: str) -> str | None:
    """The name, where the table has it itself, not by a prefix."""
    return name if name in _NAMES or VOLCANO_TASK.match(name) else None


@cache
def named(role: Role, *programs: str) -> tuple[str, ...]:
    """The names of a role, of these programs or of all, in the order in which they are asked."""
    rows = (row for program in programs for row in TABLE if row.program == program) if programs else TABLE
    return tuple(row.name for row in rows if row.role is role)


def names_of(*kinds: Of) -> tuple[str, ...]:
    """The names of what belongs to these, in the order of the table."""
    return tuple(row.name for row in TABLE if row.of in kinds)


def _patterns(text: str) -> tuple[str, ...]:
    """As fnmatch(3), with one "*" at most."""
    return tuple(text.split())


# Variables that make libraries write files, or load tools that do.
WRITERS: Final = (
    # src/debug.cc, src/graph/xml.cc, src/graph/topo.cc, plugins/profiler (Inspector); Meta's NCCLX.
    *_patterns("NCCL_DEBUG_FILE NCCL_*DUMP_FILE NCCL_*DUMP_DIR NCCL_PROXY_DUMP_SIGNAL"),  # NCCL's log, topology and graph
    *_patterns("NCCL_INSPECTOR_* NCCL_PROFILER_PLUGIN NCCL_PROFILE_* NCCL_COLLTRACE* NCCL_CTRAN_TRACE*"),  # NCCL's profiler
    # ProcessGroupNCCL.hpp, FlightRecorder.hpp.
    *_patterns("TORCH_FR_* TORCH_NCCL_DEBUG_INFO_* TORCH_NCCL_EXTRA_DUMP* TORCH_NCCL_DUMP_*"),  # torch's flight recorder
    # torch/_logging.
    *_patterns("TORCH_TRACE TORCH_LOGS_OUT TORCH_COMPILE_DEBUG KINETO_* TENSORBOARD_*"),  # torch's logs and profiles
    # ucx_info -f.
    *_patterns("UCX_LOG_FILE* UCX_STATS_DEST UCX_STATS_TRIGGER UCX_PROFILE_* UCX_VFS_*"),  # UCX's log, statistics and profile
    # libibverbs.7, mlx5dv.7.
    *_patterns("FI_LOG_FILE VERBS_LOG_FILE MLX5_DEBUG_FILE MLX4_DEBUG_FILE"),  # a transport's log
    *_patterns("OFI_NCCL_TRACE* SHARP_COLL_LOG_FILE"),  # a plugin's log
    # CUDA C++ programming guide, environment variables; NVML.
    *_patterns("CUDA_LOG_FILE CUDA_COREDUMP_* CUDA_ENABLE_COREDUMP_* COMPUTE_PROFILE*"),  # CUDA's log and core dumps
    *_patterns("CUDA_ENABLE_USER_TRIGGERED_COREDUMP"),  # CUDA's core dumps
    *_patterns("__NVML_DBG_*"),  # NVML's log
    *_patterns("CUDA_INJECTION*_PATH NVTX_INJECTION*_PATH NSYS_*"),  # a tool that CUDA loads
    # ld.so(8), mtrace(3), gprof.
    *_patterns("LD_DEBUG LD_DEBUG_OUTPUT LD_PROFILE LD_PROFILE_OUTPUT MALLOC_TRACE GMON_OUT_PREFIX"),  # glibc's traces
    *_patterns("LLVM_PROFILE_FILE GCOV_PREFIX*"),  # coverage of compiled code
    *_patterns("ASAN_OPTIONS LSAN_OPTIONS TSAN_OPTIONS UBSAN_OPTIONS"),  # a sanitizer's log
    *_patterns("CPUPROFILE* HEAPPROFILE* HEAPCHECK* GLOG_log_dir GLOG_LOG_DIR"),  # gperftools' and glog's files
    *_patterns("COVERAGE_PROCESS_START COV_CORE_*"),  # coverage.py's data
    # python(1), "ENVIRONMENT VARIABLES".
    *_patterns("PYTHONINSPECT PYTHONPROFILEIMPORTTIME PYTHONBREAKPOINT PYTHONSTARTUP"),  # Python's caches, profiles and prompts
    *_patterns("PYTHONPYCACHEPREFIX PYTHON_PERF_JIT_SUPPORT PYTHONPERFSUPPORT"),  # Python's caches, profiles and prompts
    *_patterns("ONEDNN_JIT_DUMP OMP_TOOL_LIBRARIES MKL_VERBOSE_OUTPUT_FILE"),  # dumps of compiled kernels, and tools
)


# What root's own process and its helper programs keep of an environment that others may have set, by the helper that goes by
# it.  Everything else is gone: the loader, libc, OpenSSL, libibverbs, NCCL and CUDA take code, or files that name code, from
# more variables than a list of what to drop can have (OPENSSL_CONF, GCONV_PATH, LOCPATH, FI_PROVIDER_PATH, NCCL_ENV_PLUGIN).
# A value that names a path is kept where root alone can change what is there.
ROOT_KEEPS: Final = {
    "": _patterns("LANG LC_*"),
    "loader": _patterns("LD_LIBRARY_PATH LD_PRELOAD"),  # each path by itself
    "cuda": _patterns("CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER CUDA_MPS_*"),
    "nvml": _patterns("NVIDIA_VISIBLE_DEVICES NVIDIA_DRIVER_CAPABILITIES"),
    "ibverbs": _patterns("IBV_DRIVERS RDMAV_DRIVERS"),  # rdma-core, libibverbs/init.c
    # What ncclGetUniqueId goes by (NCCL src/misc/socket.cc, src/misc/param.cc, src/bootstrap.cc).
    "nccl": _patterns("NCCL_SOCKET_* NCCL_OOB_NET_* NCCL_IB_HCA NCCL_IB_DISABLE NCCL_CONF_FILE"),
}


class Patterns:
    """Names, of which each may have one "*"."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self._whole = frozenset(pattern for pattern in patterns if "*" not in pattern)
        self._parts = tuple((head, tail) for head, star, tail in (pattern.partition("*") for pattern in patterns) if star)

    def __contains__(self, name: str) -> bool:
        return name in self._whole or any(
            name.startswith(head) and name.endswith(tail) and len(name) >= len(head) + len(tail) for head, tail in self._parts
        )


_WRITERS: Final = Patterns(WRITERS)
_ROOT_KEEPS: Final = {helper: Patterns(names) for helper, names in ROOT_KEEPS.items()}


def writes(name: str) -> bool:
    """Whether a variable makes a library write."""
    return name in _WRITERS


def kept_by_root(name: str) -> str | None:
    """Which helper goes by a variable that root keeps: "" for all of them, "loader" for the loader; None: it is not kept."""
    return next((helper for helper, names in _ROOT_KEEPS.items() if name in names), None)
