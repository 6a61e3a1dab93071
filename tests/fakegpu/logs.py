"""Logs made to order: a fault, an NCCL, a level, a form; what `netdoctor log` makes of each against the known cause.

    python -m tests.fakegpu.logs [--fault NAME]… [--level NAME]… [VERSION…]     makes them, and scores them
    python -m tests.fakegpu.logs --again                                        scores those that lie there

Below build/logs: the logs, a folder a case; cases.json says of each what is true of it (the newest of each stays), scores.json
what netdoctor said.
Each fault is one of faults.py, and what NCCL says in a log is NCCL's own; log_forms.py says what else is in it.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Final

from netdoctor.cli import log
from netdoctor.model import Status
from netdoctor.nccl.diagnosis import diagnose
from tests.fakegpu import build, faults, lab
from tests.fakegpu.faults import FAULTS
from tests.fakegpu.log_forms import FORMS
from tests.support.machines import libnccl

FOLDER: Final = pathlib.Path("build/logs")
# What a user sets; the last is what netdoctor's own runs set.
LEVELS: Final[Mapping[str, Mapping[str, str]]] = {
    "WARN": {"NCCL_DEBUG": "WARN"},
    "INFO": {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,BOOTSTRAP,ENV"},  # NCCL's default
    "INFO of more": {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": lab.SUBSYSTEMS},
}
# Causes that are right, several where NCCL's own words cannot tell them apart: what a CUDA call or a verb returned says that
# the driver or the device failed, not why.  A knob that is not here changes a path and breaks nothing: nothing may be named.
PROCESS: Final = "rank_died other"  # the process failed by itself, and no other word of the vocabulary is about it
CAUSES: Final[Mapping[str, frozenset[str]]] = {
    name: frozenset(causes.split())
    for name, causes in {
        **dict.fromkeys(("cuda 2", "memory is limited", "memory is taken"), PROCESS),
        "cuda 100": "cuda_driver_mismatch inventory device_mapping other",
        "cuda 101": "device_mapping other",
        "cuda 214": f"{PROCESS} inventory",  # an uncorrectable error of the GPU's memory: the process dies of broken hardware
        "cuda 217": "p2p_disabled",
        "cuda 304": "p2p_disabled other",
        **dict.fromkeys(("cuda 719", "cuda 719 by a kernel", "cuda 999"), PROCESS),
        "cuda 802": "fabric_manager",
        "cuda hangs": "hang",
        "nvml does not start": "cuda_driver_mismatch other",
        "a GPU is lost": "inventory",
        "no registration": "memlock",
        "no registration of GPU memory": "gdr_disabled acs_iommu",
        **dict.fromkeys(("create_qp refused", "create_cq refused"), "memlock other"),
        "modify_qp refused": "roce_gid other",
        "modify_qp times out": "ib_timeout roce_gid",
        "open refused": "dev_infiniband_missing",
        "polling fails": "link_degraded other",
        **{f"completion {n}": f"acs_iommu {PROCESS}" for n in (4, 9, 10)},
        "completion 5": f"{PROCESS} link_degraded",
        "completion 12": "ib_timeout",
        "port error": "link_degraded",
        # NCCL takes the HCA that is left, which is far from one of the GPUs.
        "port down": "link_degraded gdr_disabled",
        "no node": "dev_infiniband_missing gdr_disabled",
        **dict.fromkeys(("device fatal", "qp fatal"), "link_degraded other inventory"),
        "VLAN differs": "roce_gid ib_timeout",
        "GID kind differs": "roce_gid ib_timeout",
        "GID family differs": "roce_gid",
        **dict.fromkeys(("GID is empty", "GID beyond the table"), "roce_gid"),
        "RoCE meets InfiniBand": "env_misuse roce_gid",  # up to 2.26 the refused ibv_modify_qp is all that is said as WARN
        "one rank on sockets": "transport_fallback_tcp rank_died",  # since 2.30.7 WARN tells of a closed connection alone
        "MTU of the way": "mtu ib_timeout",
    }.items()
}
# Nothing says that a rank waits: that nobody came to an end is all that such a log can show.
MUTE: Final = frozenset({"cuda hangs"})
# What `make test` makes.
SLICE: Final = ("cuda 217", "no registration", "completion 12", "GID beyond the table", "no P2P for a pair")


@dataclass(frozen=True)
class Case:
    """A log and what is true of it."""

    version: str
    fault: str
    level: str
    form: str
    healthy: bool  # the same run without the fault
    ended: bool  # every rank came to its end
    shown: bool  # somebody printed anything that a fault could show
    folder: str

    @property
    def accept(self) -> frozenset[str]:
        """The causes that may be named first; "none": a report without a cause is right, too."""
        causes = frozenset() if self.healthy else CAUSES.get(self.fault, frozenset())
        return causes | {"none"} if self.ended or self.fault in MUTE else causes


@dataclass(frozen=True)
class Score:
    """What netdoctor said of a case."""

    case: Case
    named: tuple[str, ...]  # causes of the fails, the likeliest first
    well: bool  # it said that nothing was wrong

    @property
    def verdict(self) -> str:
        """ "no truth": the run broke, and nobody wrote down of what: the table of causes lacks it."""
        wanted = self.case.accept
        if not self.case.ended and self.well:
            return "called well" if self.case.shown else "silent"
        if not wanted:
            return "no truth"
        if not self.named:
            return "nothing" if "none" in wanted else "missed" if self.case.shown else "silent"
        if wanted == {"none"}:
            return "false alarm"
        return "named" if self.named[0] in wanted else "found" if wanted.intersection(self.named) else "wrong"

    def row(self) -> dict[str, Any]:
        return {**asdict(self.case), "accept": sorted(self.case.accept), "verdict": self.verdict, "named": self.named}


WANTED: Final = 0.97  # of the logs that show a fault: its cause is named first
# Nobody may say these: of a faulty log that nothing was wrong, of a healthy one that something was; and a table with a hole.
NEVER: Final = frozenset({"false alarm", "called well", "no truth"})


def make(version: str, name: str, level: str, healthy: bool = False) -> list[Case]:
    """One run, and its log in every form that it has."""
    fault = FAULTS[name]
    # Without kernels a collective ends at once, and a run comes to its end whatever its network says.
    done = faults.run(None if healthy else fault, fault, version, more=LEVELS[level], kernels=build.kernels())
    found = []
    for form, write in FORMS.items():
        label = "-".join([version, *(["healthy"] if healthy else []), *name.split(), *level.split(), form])
        texts = write(done, version)
        if not texts or (form == "torch" and (healthy or level != "WARN")):
            continue
        (FOLDER / label).mkdir(parents=True, exist_ok=True)
        for old in (FOLDER / label).iterdir():
            old.unlink()
        for file, text in texts.items():
            (FOLDER / label / file).write_text(text, encoding="utf-8")
        shown = any(mark in text for text in texts.values() for mark in (" NCCL WARN ", " NCCL INFO ", "Traceback"))
        found.append(Case(version, name, level, form, healthy, done.ok, shown, label))
    return found


def score(case: Case) -> Score:
    """What `netdoctor log` says: causes of the findings that fail, and whether it calls the job well."""
    cut: list[str] = []
    facts, _ = log.read([str(FOLDER / case.folder)], cut)
    findings = [one for result in log.results(diagnose(facts)) for one in result.findings]
    fails = [one.cause or "other" for one in findings if one.status is Status.FAIL]
    return Score(case, tuple(dict.fromkeys(fails)), all(one.status is Status.PASS for one in findings))


def runs(versions: Sequence[str], names: Sequence[str], levels: Sequence[str]) -> Iterator[tuple[str, str, str, bool]]:
    """Every run once: a healthy one serves all faults that it is the same for."""
    healthy: set[str] = set()
    for version in versions:
        for name in names:
            like = FAULTS[name]
            env = [{k: v for k, v in one.items() if k not in faults.MISUSED} for one in like.env]
            key = repr((version, like.base, like.machine, like.hosts, like.steps, env))
            for level in levels:
                yield version, name, level, False
                if key not in healthy:
                    yield version, name, level, True
            healthy.add(key)


def walk(versions: Sequence[str], names: Sequence[str], levels: Sequence[str] = tuple(LEVELS)) -> list[Score]:
    """Make all and score them; a line each."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    cases = {one.folder: one for one in kept()}
    scores: list[Score] = []
    with ThreadPoolExecutor(2) as pool:  # most of a run is waiting
        for made in pool.map(lambda one: make(*one), runs(versions, names, levels)):
            cases |= {one.folder: one for one in made}
            (FOLDER / "cases.json").write_text(json.dumps([asdict(one) for one in cases.values()], indent=1), encoding="utf-8")
            scores += (shown(score(one)) for one in made)
    return scores


def kept() -> list[Case]:
    """What earlier calls made."""
    file = FOLDER / "cases.json"
    return [Case(**one) for one in json.loads(file.read_text(encoding="utf-8"))] if file.exists() else []


def again() -> list[Score]:
    """Of what lies there."""
    return [shown(score(one)) for one in kept()]


def shown(one: Score) -> Score:
    case = one.case
    name = f"healthy: {case.fault}" if case.healthy else case.fault
    print(f"{case.version:8} {case.level:13} {case.form:6} {one.verdict:12} {name:40} {', '.join(one.named)}", flush=True)
    return one


def table(scores: Sequence[Score]) -> str:
    """Verdicts by form and level, and how many of the faulty logs that show anything are named."""
    lines = []
    for form, level in sorted({(one.case.form, one.case.level) for one in scores}):
        told = collections.Counter(one.verdict for one in scores if (one.case.form, one.case.level) == (form, level))
        lines.append(f"{form:6} {level:13} " + ", ".join(f"{count} {verdict}" for verdict, count in sorted(told.items())))
    named, faulty = counted(scores)
    share = f" ({100 * named / faulty:.1f} %)" if faulty else ""
    lines.append(f"{len(scores)} logs; of {faulty} that show what broke a run: cause named first in {named}{share}")
    return "\n".join(lines)


def counted(scores: Sequence[Score]) -> tuple[int, int]:
    """Logs of runs that broke and whose cause is named first, and all of those that show anything."""
    told = [one.verdict for one in scores if "none" not in one.case.accept and one.verdict != "silent"]
    return told.count("named"), len(told)


def good(scores: Sequence[Score]) -> bool:
    named, faulty = counted(scores)
    return named >= WANTED * faulty and not any(one.verdict in NEVER for one in scores)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fakegpu.logs")
    parser.add_argument("--fault", action="append", choices=FAULTS, metavar="NAME")
    parser.add_argument("--level", action="append", choices=LEVELS, metavar="NAME")
    parser.add_argument("--again", action="store_true", help="score the logs that lie below build/logs, and make none")
    parser.add_argument("versions", nargs="*")
    given = parser.parse_args()
    versions = given.versions or [".".join(map(str, one)) for one in sorted(libnccl.libraries())]
    scores = again() if given.again else walk(versions, given.fault or list(FAULTS), given.level or list(LEVELS))
    (FOLDER / "scores.json").write_text(json.dumps([one.row() for one in scores], indent=1), encoding="utf-8")
    print(table(scores))
    return int(not good(scores))


if __name__ == "__main__":
    sys.exit(main())
