"""What the words of an exception say of why a program ended, where these say more than that it did.

Python prints the exceptions of a chain from the root on, so the last one may be a library's own name for what the first one says.
Sources: CPython (Modules/socketmodule.c, Lib/http, errno.h's texts), requests (models.py, raise_for_status), urllib3
(exceptions.py), huggingface_hub (errors.py, utils/_http.py), torch (caffe2/serialize/inline_container.cc), torch.utils.cpp_extension,
triton (runtime/build.py), vLLM and Ray (placement groups), glibc's loader (elf/dl-load.c, dl-version.c).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from netdoctor.model import Fix
from netdoctor.nccl.diagnosis.hypothesis import Fault
from netdoctor.nccl.log.facts import Event


@dataclass(frozen=True)
class Meaning:
    """What such words mean: `said` goes before the exception's own."""

    pattern: re.Pattern[str]
    fix: Fix
    said: str = ""
    fault: Fault = Fault.EXCEPTION
    cause: str = "rank_died"


def _row(pattern: str, said: str, fix: Fix, fault: Fault = Fault.EXCEPTION, cause: str = "rank_died") -> Meaning:
    return Meaning(re.compile(pattern, re.IGNORECASE), fix, said, fault, cause)


_ROOM: Final = Fix(
    "make room in the file system that the program writes to, or mount it again", ("df -h <folder>; df -i <folder>; quota -s",)
)
_NAMES: Final = Fix(
    "let every node resolve that name: DNS, /etc/hosts, in a pod its Service",
    ("getent hosts <name>   # on the node, in the container", "cat /etc/resolv.conf"),
)
_TOKEN: Final = Fix(
    "give the job a token that may read it, and accept its licence on the hub",
    ("hf auth whoami   # in the job: does it have HF_TOKEN, or HF_HOME of the one who logged in?",),
)
_OFFLINE: Final = Fix(
    "let the node reach it (a proxy, its certificates), or fetch the files once where it can be reached, into a folder that all nodes see",
    ("curl -sI <address>; env | grep -i _proxy", "export HF_HOME=<shared folder> HF_HUB_OFFLINE=1"),
)
_HUB: Final = Fix("name a model, file or revision that the hub has, or a folder that each node has")
_SLOWER: Final = Fix(
    "fetch the files once into a folder that all nodes see, instead of by each rank",
    ("export HF_HOME=<shared folder> HF_HUB_OFFLINE=1",),
)
_INSTALL: Final = Fix(
    "install it into the Python that the ranks run, on every node",
    ("which python; python -m pip list   # as a rank, on that node",),
)
_LIBRARY: Final = Fix("let the loader find that library", ("ldd <library>; echo $LD_LIBRARY_PATH   # as a rank, on that node",))
_BINARY: Final = Fix("build it for this system, or take an image whose C library is as new", ("ldd --version",))
_PATH: Final = Fix(
    "see that this path is there on every node and in the container, and that the job's user may use it",
    ("ls -ld <path>   # as the job's user, on that node", "findmnt -T <path>"),
)
_TOOLKIT: Final = Fix(
    "install the compiler, or the CUDA toolkit of torch's own version, in the image of the job",
    ("which gcc nvcc ninja; echo $CUDA_HOME", "python -c 'import torch; print(torch.version.cuda)'"),
)
_FEWER: Final = Fix(
    "ask for no more GPUs than there are, or add nodes", ("ray status   # of Ray", "nvidia-smi -L; echo $CUDA_VISIBLE_DEVICES")
)

# The first row that fits one of the exceptions of the program, from the root on.
MEANINGS: Final = (
    _row(
        r"no space left on device|disk quota exceeded|stale file handle|read-only file system|\[errno (?:5|28|30|116|122)\]"
        r"|PytorchStreamWriter failed writing|file write failed|iostream (?:stream )?error|IoError\(|ENOSPC|EDQUOT|EROFS|ESTALE",
        "what it wrote could not be written or read",
        _ROOM,
        Fault.STORAGE,
    ),
    _row(
        r"gaierror|name or service not known|temporary failure in name resolution|no address associated with (?:hostname|name)"
        r"|nodename nor servname|NameResolutionError|failed to resolve|could not resolve (?:host|address)|Name does not resolve",
        "a name does not resolve",
        _NAMES,
        Fault.NAME,
    ),
    _row(
        r"\b40[13] client error|gated repo|GatedRepoError|RepositoryNotFoundError|LocalTokenNotFoundError|invalid username or password"
        r"|access to (?:model|dataset) \S+ is restricted|not authorized|AccessDenied\b|ExpiredToken|NoCredentialsError",
        "what it wants to fetch is not open to it",
        _TOKEN,
        Fault.REMOTE_FILES,
    ),
    _row(
        r"\b404 client error|EntryNotFoundError(?<!LocalEntryNotFoundError)|RevisionNotFoundError"
        r"|is not a (?:valid model identifier|local folder)|HFValidationError",
        "what it wants to fetch is not there",
        _HUB,
        Fault.REMOTE_FILES,
    ),
    _row(r"\b429 client error|too many requests|rate limit", "it asked a server too often", _SLOWER, Fault.REMOTE_FILES),
    _row(
        r"LocalEntryNotFoundError|couldn.t connect to .{0,40}huggingface|OfflineModeIsEnabled|max retries exceeded with url|ProxyError"
        r"|SSLError|certificate verify failed|\b50[0234] server error|ReadTimeoutError|EndpointConnectionError",
        "a server outside of the job did not answer",
        _OFFLINE,
        Fault.REMOTE_FILES,
    ),
    _row(
        r"number of required GPUs exceeds|GPUs? requested exceeds|no GPU available|infeasible|placement group .{0,80}(?:timed out|cannot be)",
        "there are fewer GPUs than it asks for",
        _FEWER,
        Fault.RANKS,
        "device_mapping",
    ),
    _row(
        r"no module named|cannot import name|DistributionNotFound|PackageNotFoundError",
        "a package is missing or another one",
        _INSTALL,
    ),
    _row(r"version `?GLIBC|GLIBCXX_|CXXABI_", "a binary is of a newer system", _BINARY),
    _row(r"cannot open shared object file|image not found", "a library is not found", _LIBRARY),
    _row(
        r"CUDA_HOME environment variable is not set|CUDA_HOME does not exist|failed to find C compiler|ninja is required|error building extension"
        r"|\['?(?:gcc|g\+\+|cc|nvcc|ninja)\b|No such file or directory: '\S*(?:nvcc|gcc|ninja|ptxas)'",
        "it compiles code, and has no compiler for it",
        _TOOLKIT,
    ),
    _row(r"FileNotFoundError|NotADirectoryError|no such file or directory", "a path is not there", _PATH),
    _row(r"PermissionError|permission denied", "it may not use a path", _PATH),
)


def meaning(events: Iterable[Event]) -> tuple[Meaning, Event] | None:
    """The meaning of these exceptions and the one that shows it; None: they say no more than that the program ended."""
    events = tuple(events)
    return next(
        ((row, e) for row in MEANINGS for e in events if row.pattern.search(f"{e.data.get('type', '')}: {e.text}")), None
    )
