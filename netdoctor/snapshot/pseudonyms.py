"""A snapshot that tells what the machine is like and not which one it is: `netdoctor snapshot --pseudonymise`.

Names of the host and of the job's other hosts, user, home and working folder, own and named addresses, hardware addresses, GIDs
and GPU UUIDs get other names, the same one everywhere, so that the diagnosis stays what it was.  With a key the names are the
same in every snapshot made with it; without one they are made from a random key.  Prefixes of addresses stay prefixes: what
shares a network still does.  Listings of which only some entries count are cut to those.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Final
from urllib.parse import quote, unquote

from netdoctor.facts import sysctl_files
from netdoctor.facts.gpu import PARAMETERS
from netdoctor.facts.gpu_users import described
from netdoctor.model import Unavailable
from netdoctor.snapshot import host_lists
from netdoctor.snapshot.snapshot import Snapshot, dumps, loads

_MAC: Final = re.compile(r"(?<![0-9a-f:])(?:[0-9a-f]{2}:){5}(?:(?:[0-9a-f]{2}:){14})?[0-9a-f]{2}(?![0-9a-f:])")
_GID: Final = re.compile(r"(?<![0-9a-f:])(?:[0-9a-f]{4}:){7}[0-9a-f]{4}(?![0-9a-f:])")
_UUID: Final = re.compile(r"(?<=GPU-|MIG-)[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")
# What probes look for in listings that show much more.
_ROOT: Final = frozenset(
    {".dockerenv", ".singularity.d", "bin", "dev", "etc", "home", "lib", "lib64", "opt", "proc", "root"}
    | {"run", "sbin", "srv", "sys", "tmp", "usr", "var"}
)
_EVERYBODYS: Final = frozenset({"/", "/usr", "/usr/local", "/opt/conda"})
_OF_THE_SYSTEM: Final = tuple(f"dir:{folder}" for folder in ("/dev", "/etc", "/proc", "/run", "/sys", "/usr/l", "/var"))
_MOUNTS: Final = frozenset({"/", "/dev", "/dev/shm", "/proc", "/sys"})
_PACKAGE: Final = re.compile(r"(?i)(?:torch|nvidia|libnccl)[\w.+-]*")
_PYTHON: Final = re.compile(r"python[\d.]*")
_FILE_OF_CGROUP: Final = re.compile(r"(?:pids|cpu|cpuset|memory)\.[\w.]+|cgroup\.events|release_agent")
_LINES: Final = {"file:/etc/passwd": "root:", f"file:{PARAMETERS}": "NvLinkDisable:"}
_RUNTIME: Final = re.compile(r"kubepods|docker|libpod|lxc|user\.slice|system\.slice|slurm")


def pseudonymise(snapshot: Snapshot, key: bytes, folders: Iterable[str] = ()) -> Snapshot:
    """The same machine under other names; `folders` are paths that tell who recorded it (home, working folder)."""

    def tag(text: str, size: int) -> str:
        return hmac.new(key, text.encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()[:size]

    from dataclasses import replace

    groups = _words_of_cgroups(snapshot.answers.get("file:/proc/self/cgroup"), tag)
    cut = replace(snapshot, answers={_place(q, groups): _cut(q, a, tag, groups) for q, a in snapshot.answers.items()}, taken="")
    hosts = dict.fromkeys(host_lists.words(snapshot.answers))
    words = {word: _node_word(word, tag) for word in hosts} | _words(snapshot, tag)
    words |= {job: job.replace(server, f"node-{tag(server, 8)}") for job, server in host_lists.jobs(snapshot.answers).items()}
    words |= {path: f"/srv/{tag(path, 8)}" for path in folders if len(path) > 1 and path != "/root"}
    words = _words_of_nodes(snapshot, tag) | words
    data = json.loads(dumps(cut))
    digits = {m.group() for m in _UUID.finditer(json.dumps(data))}
    # Eight zeros: whoever reads it sees that no GPU has it.
    bare = {word.replace("-", ""): "0" * 8 + tag(word, 24) for word in digits}

    def dashed(found: re.Match[str]) -> str:
        new = bare[found.group().replace("-", "")]
        return f"{new[:8]}-{new[8:12]}-{new[12:16]}-{new[16:20]}-{new[20:]}"

    pattern = _any_of(words)

    def other(text: str) -> str:
        # A host may be called "vm" or "net", as the first word of a sysctl is.
        if pattern is not None and not _sets(text):
            text = pattern.sub(lambda m: _word(m, words), text)
        text = _MAC.sub(lambda m: _mac(m.group(), tag), _GID.sub(lambda m: _gid(m.group(), tag), text))
        return bare.get(text) or (_UUID.sub(dashed, text) if bare else text)

    return loads(json.dumps(_deep(data, other)))


def _sets(text: str) -> bool:
    """Whether these are lines of a sysctl.d that probes look for: no word of them is a name."""
    return text != "" and all(map(sysctl_files.wanted, text.splitlines()))


def environments(*pythons: str | None) -> list[str]:
    """The folders of these Pythons' environments, which people name; one that everybody has tells nothing."""
    found = (os.path.dirname(os.path.dirname(os.path.abspath(python))) for python in pythons if python and "/" in python)
    return [folder for folder in found if folder not in _EVERYBODYS]


def _any_of(words: Iterable[str]) -> re.Pattern[str] | None:
    """The words as they are, not inside longer ones, and as they stand in the parameters of a question."""
    ordered = sorted(words, key=len, reverse=True)
    plain = "|".join(map(re.escape, ordered))
    quoted = "|".join(re.escape(quote(word, safe="")) for word in ordered if quote(word, safe="") != word)
    if not plain:
        return None
    return re.compile(
        rf"(?:(?<![\w.-])|(?<=%[0-9A-F][0-9A-F]))(?:{plain})(?![\w-])" + (rf"|(?:{quoted})(?![\w-])" if quoted else "")
    )


def _word(found: re.Match[str], words: Mapping[str, str]) -> str:
    old = found.group()
    return words[old] if old in words else quote(words[unquote(old)], safe="")


def _deep(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_deep(word, change) for word in value]
    return {change(k): _deep(v, change) for k, v in value.items()} if isinstance(value, dict) else value


Tag = Callable[[str, int], str]


def _words(snapshot: Snapshot, tag: Tag) -> dict[str, str]:
    """Names and addresses by what they become."""
    out: dict[str, str] = {}
    answers = snapshot.answers
    name = answers.get("file:/proc/sys/kernel/hostname")
    if isinstance(name, str) and name.strip() not in ("", "localhost"):
        for word in (name.strip(), name.strip().partition(".")[0]):
            out[word] = f"node-{tag(word, 8)}"
    machine = answers.get("file:/etc/machine-id")
    if isinstance(machine, str) and machine.strip():
        out[machine.strip()] = f"netdoctor-{tag(machine.strip(), 32)}"
    variables = answers.get("env:")
    out = _words_of_variables(variables if isinstance(variables, dict) else {}, tag) | out
    for question, answer in answers.items():
        for pid, process in _processes(question, answer).items():
            out[described(pid, process)] = described(pid, _nameless(process, tag))
    for ip in _addresses(answers):
        out[ip] = _address(ip, tag)
    return out


def _words_of_variables(variables: Mapping[str, Any], tag: Tag) -> dict[str, str]:
    out: dict[str, str] = {}
    for variable in ("NODE_NAME", "SLURMD_NODENAME"):
        if word := str(variables.get(variable, "")):
            out[word] = f"node-{tag(word, 8)}"
    for variable in ("USER", "LOGNAME"):
        if (user := str(variables.get(variable, ""))) not in ("", "root"):
            out[user] = "user"
    home = str(variables.get("HOME", ""))
    if home not in ("", "/", "/root"):
        out[home] = "/home/user"
    return out


def _processes(question: str, answer: Any) -> dict[int, dict[str, Any]]:
    """The processes that psutil named."""
    processes = answer.get("processes") if question.startswith("ask:psutil?") and isinstance(answer, dict) else None
    rows = processes.items() if isinstance(processes, dict) else ()
    return {int(pid): process for pid, process in rows if pid.isdecimal() and isinstance(process, dict)}


def _nameless(process: dict[str, Any], tag: Tag) -> dict[str, Any]:
    """The same process without what tells whose it is; a field that could not be read stays so."""
    changed = dict(process)
    if isinstance(name := process.get("name"), str) and not _PYTHON.fullmatch(name):
        changed["name"] = f"program-{tag(name, 8)}"
    if isinstance(user := process.get("user"), str) and user != "root":
        changed["user"] = "user"
    return changed


def _addresses(answers: Mapping[str, Any]) -> set[str]:
    """Every address in answers about the network, in the environment and in lists of hosts, but those that mean the same
    everywhere."""
    about = ("ask:netlink", "ask:resolve", "ask:nccl", "ask:reach", "config:")
    text = json.dumps([a for q, a in answers.items() if q.startswith(about) and not isinstance(a, Unavailable)])
    text += "\n".join(host_lists.files(answers))
    variables = answers.get("env:")
    text += json.dumps(variables if isinstance(variables, dict) else {})
    found = set()
    for word in re.findall(r"[0-9a-fA-F:.]{3,45}", text):
        try:
            address = ip_address(word.strip(":") if word.count(":") == 1 else word)
        except ValueError:
            continue
        if not (address.is_loopback or address.is_unspecified or address.is_multicast):
            found.add(str(word))
    return found


def _words_of_nodes(snapshot: Snapshot, tag: Tag) -> dict[str, str]:
    """Names and addresses of the other nodes of a common run."""
    from netdoctor.cluster.observations import Cluster

    met = snapshot.runs.get("Cluster")
    if not isinstance(met, Cluster) or met.lost is not None:
        return {}
    own = [address.ip for place in met.endpoints.values() for address in place.addresses]
    listening = [ip for place in met.endpoints.values() for _, ip in place.listen.values()]
    words = {*met.hosts.values(), *met.nodes.names, met.nodes.master, *met.addresses.values(), *own, *listening}
    return {word: _node_word(word, tag) for word in words - {"", "localhost", "127.0.0.1", "::1"}}


def _node_word(text: str, tag: Tag) -> str:
    try:
        return _address(text, tag)
    except ValueError:  # a host name
        return f"node-{tag(text, 8)}"


def _address(text: str, tag: Tag) -> str:
    address = ip_address(text)
    if isinstance(address, IPv4Address):
        parts = address.packed
        mixed = [part ^ int(tag(f"v4 {parts[:n].hex()}", 2), 16) for n, part in enumerate(parts)]
        return str(IPv4Address(bytes([10, *mixed[1:]])))
    return str(IPv6Address(_v6(address.packed, tag)))


def _v6(packed: bytes, tag: Tag) -> bytes:
    """The scope stays (link-local or not), the rest is mixed group by group, each by what stands before it."""
    link_local = packed[:2] == b"\xfe\x80"
    groups = [int.from_bytes(packed[n : n + 2], "big") for n in range(0, 16, 2)]
    mixed = [g ^ int(tag(f"v6 {packed[: 2 * n].hex()}", 4), 16) if g else 0 for n, g in enumerate(groups)]
    mixed[0] = 0xFE80 if link_local else 0xFD00
    return b"".join(g.to_bytes(2, "big") for g in mixed)


def _gid(text: str, tag: Tag) -> str:
    packed = IPv6Address(text).packed
    if packed[:12] == bytes(10) + b"\xff\xff":
        new = packed[:12] + IPv4Address(_address(str(IPv4Address(packed[12:])), tag)).packed
    else:
        new = _v6(packed, tag) if any(packed[8:]) else packed
    return ":".join(new[n : n + 2].hex() for n in range(0, 16, 2))


def _mac(text: str, tag: Tag) -> str:
    if set(text) <= {"0", ":"} or set(text) <= {"f", ":"}:
        return text
    digits = "02" + tag(text, len(text.replace(":", "")) - 2)
    return ":".join(digits[n : n + 2] for n in range(0, len(digits), 2))


def _cut(question: str, answer: Any, tag: Tag, groups: Mapping[str, str]) -> Any:
    """The part of an answer that probes look at, where the rest tells more than it must."""
    if question == "dir:/" and isinstance(answer, list):
        return [name for name in answer if name in _ROOT]
    if question.startswith("dir:") and not question.startswith(_OF_THE_SYSTEM) and isinstance(answer, list):
        return [name for name in answer if _PACKAGE.fullmatch(name) or _PYTHON.fullmatch(name)]
    if question.startswith("dir:/sys/fs/cgroup") and isinstance(answer, list):
        return [name for name in answer if _FILE_OF_CGROUP.fullmatch(name)]
    if question == "env:" and isinstance(answer, dict):
        return answer | host_lists.written_out(answer)
    if named := _processes(question, answer):
        return {"processes": {str(pid): _nameless(process, tag) for pid, process in named.items()}}
    if not isinstance(answer, str):
        return answer
    if os.path.dirname(question.removeprefix("file:")) in sysctl_files.FOLDERS:
        return "".join(line for line in answer.splitlines(True) if sysctl_files.wanted(line))
    if question == "file:/proc/self/mountinfo":
        return "".join(map(partial(_mount, groups=groups), answer.splitlines(True)))
    if question in _LINES:
        return "".join(line for line in answer.splitlines(True) if line.startswith(_LINES[question]))
    if question == "file:/proc/self/cgroup":
        rows = (line.split(":", 2) for line in answer.splitlines())
        return "".join(f"{row[0]}:{row[1]}:{_steps(row[2], groups)}\n" for row in rows if len(row) == 3)
    if question.endswith("/METADATA"):
        return "\n".join(re.findall(r"^(?:Name|Version|Requires-Dist: nvidia-nccl).*$", answer, re.MULTILINE)) + "\n"
    return answer


def _words_of_cgroups(answer: Any, tag: Tag) -> dict[str, str]:
    """Steps of the paths of this process's cgroups, but those by which a runtime is known."""
    rows = [line.split(":", 2) for line in answer.splitlines()] if isinstance(answer, str) else []
    paths = [row[2] for row in rows if len(row) == 3 and not _RUNTIME.search(row[2])]
    return {step: tag(step, 8) for path in paths for step in path.split("/") if step.strip(".")}


def _steps(path: str, groups: Mapping[str, str]) -> str:
    return "/".join(groups.get(step, step) for step in path.split("/"))


def _place(question: str, groups: Mapping[str, str]) -> str:
    """A question for a file of a cgroup, under that one's new name."""
    kind, found, path = question.partition(":/sys/fs/cgroup")
    return f"{kind}{found}{_steps(path, groups)}" if found else question


def _mount(line: str, groups: Mapping[str, str]) -> str:
    """A line of mountinfo, with the root of a cgroup under its new name; empty where nobody asks for it."""
    fields, kind = line.split(" "), line.partition(" - ")[2]
    if kind.startswith("cgroup") and len(fields) > 4:
        return " ".join([*fields[:3], _steps(fields[3], groups), *fields[4:]])
    return line if line.split()[4:5] and line.split()[4] in _MOUNTS else ""
