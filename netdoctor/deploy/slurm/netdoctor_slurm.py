"""From a verdict of netdoctor to a drained node, and back: ``netdoctor_slurm.py prolog|epilog|health|undo``.

A program of its own, of the standard library alone: netdoctor runs as its child, so that whatever breaks there, or takes too
long, is no verdict.  Exit codes: 0 nothing against the node (or nothing known), 3 unhealthy, anything else: our own defect.

A drain is ours if the node, the reason and the time that Slurm shows are those that were kept when it was made: the prefix of
a reason is anybody's to copy.  Another one's note is never replaced, and another one's drain is never undone.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from typing import Any

CONFIGURATION, UNHEALTHY, INCONCLUSIVE = 2, 3, 4
PREFIX = "netdoctor: "
REASON_WIDTH = 200
SCONTROL_SECONDS = 2.0  # four calls at most; a controller that does not answer is no fault of the node
# States in which Slurm, or somebody with a reason, already keeps jobs away: left alone (scontrol(1), NODES - SPECIFICATIONS).
HANDS_OFF = frozenset(
    ("DOWN", "FAIL", "FAILING", "FUTURE", "POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "REBOOT_ISSUED", "REBOOT_REQUESTED")
)
_SAFE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


# netdoctor.conf: what a setting may say; of the others any word is one.
WORDS = {"ACTION": ("drain", "report"), "ON_UNKNOWN": ("report", "drain"), "RESUME": ("no", "yes")}
SETTINGS = (*WORDS, "PYTHON", "NETDOCTOR", "DEADLINE", "CONFIG", "SCONTROL", "STATE", "NODE", "SLURM_CONF")
_ASSIGNMENT = re.compile(r"\s*(?:export\s+)?([A-Za-z_]\w*)=")


class DefectError(Exception):
    """Nothing was learned about the node; says why."""


def misspelt(conf: str) -> list[str]:
    """What netdoctor.conf says that means nothing, by line: what its author wanted done with a node is then not known."""
    try:
        with open(conf, encoding="utf-8", errors="replace", newline="\n") as file:
            lines = file.read().split("\n")
    except OSError:
        lines = []  # guard.sh had none either
    names = [found[1] if (found := _ASSIGNMENT.match(line)) else "" for line in lines]
    wrong = []
    for number, name in enumerate(names, 1):
        near = "" if name in ("", *SETTINGS) else _nearest(name.upper(), SETTINGS)
        if near:  # a name like no other is a variable of the author's own: this is a fragment of sh
            wrong.append(f"{conf}:{number}: {name}= is no setting; did you mean {near}?")
    for name, words in WORDS.items():
        value = os.environ.get(name, "")
        if value and value not in words:
            last = max((number for number, one in enumerate(names, 1) if one == name), default=0)
            near = _nearest(value.strip().lower(), words)
            hint = "; the line ends in CR LF" if value.endswith("\r") else f"; did you mean {near}?" if near else ""
            wrong.append(f"{conf}{f':{last}' if last else ''}: {name}={clean(value)}: must be {' or '.join(words)}{hint}")
    return wrong


def _nearest(word: str, known: tuple[str, ...]) -> str:
    return next(iter(difflib.get_close_matches(word, known, 1, 0.8)), "")


def setting(name: str, default: str = "") -> str:
    return os.environ.get(name) or default


def environment(**more: str) -> dict[str, str]:
    """What our children get: nothing of a user's, and Slurm's own words, by which netdoctor knows where it is."""
    kept = {n: v for n, v in os.environ.items() if n.startswith(("SLURM_", "SLURMD_"))}
    return {"PATH": _SAFE_PATH, "LC_ALL": "C.UTF-8", "HOME": "/root", **kept, **more}


def run(argv: list[str], seconds: float, env: dict[str, str]) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a child; raises DefectError.  One that cannot be ended is left behind."""
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            cwd="/",
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise DefectError(f"{argv[0]} cannot be started: {error.strerror}") from None
    try:
        out, err = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.communicate(timeout=1)
                break
        raise DefectError(f"{argv[0]} gave no answer within {seconds:g} s") from None
    return child.returncode, out, err


# What netdoctor says


class JobGpus:
    """The GPUs of the job that the Prolog is for.  SLURM_JOB_GPUS holds the numbers of its /dev/nvidiaN."""

    def __init__(self, numbers: str, root: str = "/proc/driver/nvidia/gpus") -> None:
        self.uuids: list[str] = []
        self.addresses: set[str] = set()
        wanted = {n.strip() for n in numbers.split(",") if n.strip()}
        for address in sorted(os.listdir(root)) if wanted and os.path.isdir(root) else []:
            lines = _lines(os.path.join(root, address, "information"))
            if lines.get("Device Minor") in wanted and lines.get("GPU UUID", "").startswith("GPU-"):
                self.uuids.append(lines["GPU UUID"])
                self.addresses.add(address)
        self.known = bool(wanted) and len(self.uuids) == len(wanted)

    def excuses(self, finding: dict[str, Any]) -> bool:
        """A fail of GPUs that this job does not get: the health check's business."""
        if not self.known or finding.get("subject") != "GPUs":
            return False
        missing = (finding.get("evidence") or {}).get("missing")
        return not (isinstance(missing, list) and self.addresses & set(map(str, missing)))


def _lines(path: str) -> dict[str, str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            pairs = [line.partition(":") for line in file]
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in pairs}


def look(what: str, seconds: float) -> tuple[dict[str, Any], JobGpus]:
    """The report of a passive look at this node; raises DefectError where there is none."""
    gpus = JobGpus(os.environ.get("SLURM_JOB_GPUS", "") if what != "health" else "")
    env = environment()
    if gpus.known:
        env |= {"CUDA_VISIBLE_DEVICES": ",".join(gpus.uuids)}
    argv = [*shlex.split(setting("NETDOCTOR", "netdoctor")), "preflight", "--profile", "prolog", "--no-allreduce", "--quiet"]
    argv += ["--format", "json", *(["--config", setting("CONFIG")] if setting("CONFIG") else [])]
    code, out, err = run(argv, seconds, env)
    if code not in (0, UNHEALTHY, INCONCLUSIVE):
        raise DefectError(f"netdoctor ended with {code}: {clean((err.strip().splitlines() or ['no word'])[-1])}")
    try:
        report = json.loads(out)
        if report["schema"] != "netdoctor.report/1" or report["verdict"]["exit_code"] != code:
            raise ValueError("its exit code and its report differ")
        if any(not isinstance(f, dict) for check in report["checks"] for f in check["findings"]):
            raise ValueError("findings that are none")
    except (ValueError, KeyError, TypeError) as error:
        raise DefectError(f"netdoctor gave no report: {error}") from None
    return report, gpus


def against(report: dict[str, Any], gpus: JobGpus) -> list[dict[str, Any]]:
    """The fails that speak against this node."""
    findings = [f for check in report["checks"] for f in check["findings"]]
    return [f for f in findings if f.get("status") == "fail" and f.get("blocking") is True and not gpus.excuses(f)]


def clean(text: object, width: int = REASON_WIDTH) -> str:
    """One line of printable ASCII: what a reason, a log and a terminal can take."""
    line = " ".join("".join(c if " " <= c <= "~" else " " if c.isspace() else "?" for c in str(text)).split())
    return line if len(line) <= width else line[: width - 3] + "..."


def reason_of(fails: list[dict[str, Any]]) -> str:
    first = f"{fails[0].get('check')}: {fails[0].get('message')}"
    more = sorted({str(f.get("check")) for f in fails[1:]} - {str(fails[0].get("check"))})
    tail = " " + clean(f"(also {', '.join(more)})", 60) if more else ""
    return PREFIX + clean(first, REASON_WIDTH - len(PREFIX) - len(tail)) + tail


# What Slurm says


class Node:
    """One node, as the controller has it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.states: frozenset[str] = frozenset()
        self.reason = self.time = ""

    def read(self) -> Node:
        text = scontrol("show", "node", self.name)
        self.reason = self.time = ""
        for line in map(str.strip, text.splitlines()):
            if line.startswith("State="):
                self.states = frozenset(flag.rstrip("*~#!%$@^-") for flag in line[6:].split()[0].split("+"))
            elif line.startswith("Reason="):
                reason, _, stamp = line[7:].rpartition(" [")
                # a note on a node in service may have no name and time behind it
                self.reason, self.time = (reason, stamp[:-1]) if reason and stamp.endswith("]") else (line[7:], "")
        if not self.states:
            raise DefectError(f"scontrol shows no state of {self.name}")
        return self

    @property
    def drained(self) -> bool:
        return bool(self.states & {"DRAIN", "DRAINED", "DRAINING"})


def scontrol(*words: str) -> str:
    argv = [setting("SCONTROL", "scontrol"), *words]
    code, out, err = run(argv, SCONTROL_SECONDS, environment(SLURM_TIME_FORMAT="standard"))
    if code:
        raise DefectError(f"scontrol {words[0]} failed: {clean(err or out)}")
    return out


class Kept:
    """Our own drain of this node: the file that says so."""

    def __init__(self, node: str) -> None:
        self.folder = setting("STATE", "/var/lib/netdoctor-slurm")
        self.path = os.path.join(self.folder, f"{''.join(c if c.isalnum() or c in '._-' else '_' for c in node)}.json")

    def read(self) -> dict[str, Any] | None:
        try:
            with open(self.path, encoding="utf-8") as file:
                kept = json.load(file)
        except (OSError, ValueError):
            return None
        return kept if isinstance(kept, dict) else None

    def write(self, node: Node, fails: list[dict[str, str]]) -> None:
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        data = {"node": node.name, "reason": node.reason, "time": node.time, "fails": fails}
        new = f"{self.path}.{os.getpid()}"
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w", encoding="utf-8") as file:
            json.dump(data, file)
        os.replace(new, self.path)

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self.path)

    def is_of(self, node: Node) -> bool:
        """Whether the drain that Slurm shows is the one that was kept."""
        kept = self.read() or {}
        shown = {"node": node.name, "reason": node.reason, "time": node.time}
        return bool(node.time) and shown.items() <= kept.items()


# What is done


def drain(node: Node, reason: str, fails: list[dict[str, str]]) -> str:
    """Drain the node with our reason; what was done, for people."""
    kept = Kept(node.name)
    node.read()
    if node.drained:
        return "is drained already, by us" if kept.is_of(node) else f"is drained already: {clean(node.reason) or 'no reason'}"
    if node.states & HANDS_OFF:
        return f"is {'+'.join(sorted(node.states))}: left alone"
    scontrol("update", f"NodeName={node.name}", "State=DRAIN", f"Reason={reason}")
    node.read()
    if node.reason == reason:
        kept.write(node, fails)
    return f"drained: {reason}"


def still_open(kept: dict[str, Any], report: dict[str, Any]) -> list[str]:
    """What failed when the node was drained and does not pass now: its check as a whole, or at least its subject there.  Seen
    from outside a job many a check passes in part alone: what is the job's own affair stays unknown."""
    passing = {check["id"] for check in report["checks"] if check["status"] == "pass"}
    found: dict[tuple[object, object], set[object]] = {}
    for check in report["checks"]:
        for one in check["findings"]:
            found.setdefault((check["id"], one.get("subject")), set()).add(one.get("status"))
    if not isinstance(fails := kept.get("fails"), list):
        return ["what failed then is not known, it"]
    failed = [(one.get("check"), one.get("subject")) for one in fails]
    return [str(what[0]) for what in failed if what[0] not in passing and found.get(what) != {"pass"}]


def undo(node: Node, report: dict[str, Any] | None) -> str:
    """Resume the node if the drain is ours and, with a report, all that failed then passes now."""
    kept = Kept(node.name)
    node.read()
    if not kept.is_of(node) or not node.drained or node.states & HANDS_OFF:
        if not node.drained:
            kept.remove()  # somebody resumed it: no later drain may be taken for ours
        return "is not drained by us: left alone"
    if report is not None:
        left = still_open(kept.read() or {}, report)
        if left or report["verdict"]["exit_code"] != 0:
            return f"stays drained: {', '.join(dict.fromkeys(left)) or 'unhealthy'} does not pass yet"
    scontrol("update", f"NodeName={node.name}", "State=RESUME")
    kept.remove()
    return "resumed: our own drain, and what failed passes now" if report is not None else "resumed: our own drain"


def main(what: str) -> int:
    node = Node(setting("NODE", setting("SLURMD_NODENAME", socket.gethostname().partition(".")[0])))
    if what == "undo":
        print(f"netdoctor: {node.name} {undo(node, None)}")
        return 0
    if wrong := misspelt(os.path.join(os.path.dirname(os.path.abspath(__file__)), "netdoctor.conf")):
        print("\n".join(f"netdoctor: {line}" for line in wrong))
        return CONFIGURATION
    report, gpus = look(what, float(setting("DEADLINE", "8")))
    code, fails = report["verdict"]["exit_code"], against(report, gpus)
    text = clean(report["verdict"]["text"], 400)
    if code == UNHEALTHY and fails:
        reason = reason_of(fails)
    elif code == INCONCLUSIVE and setting("ON_UNKNOWN") == "drain":
        reason, fails = PREFIX + clean(text, REASON_WIDTH - len(PREFIX)), []
    else:
        print(f"netdoctor: {text}")
        if code == 0 and what == "health" and setting("RESUME") == "yes" and Kept(node.name).read():
            print(f"netdoctor: {node.name} {undo(node, report)}")
        return 0
    print(reason)
    if setting("ACTION", "drain") != "drain":
        print("netdoctor: ACTION=report: the node is left as it is")
        return 0
    failed = [{key: str(one.get(key)) for key in ("check", "subject")} for one in fails]
    try:
        print(f"netdoctor: {node.name} {drain(node, reason, failed)}")
    except (DefectError, OSError) as error:  # the verdict stands, whatever the controller says
        print(f"netdoctor: {node.name} could not be drained: {error}")
    return UNHEALTHY


if __name__ == "__main__":
    if sys.argv[1:] not in (["prolog"], ["epilog"], ["health"], ["undo"]):
        sys.exit("usage: netdoctor_slurm.py prolog|epilog|health|undo")
    try:
        sys.exit(main(sys.argv[1]))
    except DefectError as error:
        print(f"netdoctor: {error}")
        sys.exit(1)
