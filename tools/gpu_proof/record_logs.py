"""NCCL's log of this version, at every level and subsystem, as samples for the parser of netdoctor/nccl/log/."""

from __future__ import annotations

import os
import pathlib
import time
from dataclasses import replace
from typing import Any, Final

from netdoctor.variables.grammar import SUBSYSTEMS
from tools.gpu_proof import clean, tell

CLAIM: Final = "record.logs"
# These leave most lines where there are two ranks; for the others a world of one does, which is faster.
BETWEEN_RANKS: Final = frozenset({"ALL", "INIT", "NET", "P2P", "PROXY"})
LEVELS: Final = ("VERSION", "WARN", "INFO", "TRACE")
MOST: Final = 200_000  # characters of a sample
LEAST: Final = 8.0  # seconds that a further sample may take


def record(out: pathlib.Path, slug: str, python: str) -> None:
    """Tell what became of the claim; never raises for what NCCL may do."""
    from netdoctor.allreduce.runner import Session

    end = time.monotonic() + float(os.environ.get("GPU_PROOF_SECONDS", "120")) / 2
    cleaner, kept, broken, left = clean.Cleaner(), {}, [], []
    session = Session(python, dict(os.environ), limits={"init": 15.0, "first": 10.0, "timed": 10.0, "verify": 10.0})
    version = ""
    try:
        session.start()
        for name, experiment in samples():
            if time.monotonic() + LEAST > end:
                left.append(name)
                continue
            run = session.run(experiment, end)
            version = run.nccl_version or version
            if not run.finished:
                broken.append(f"{name}: {run.state}: {run.reason}"[:200])
                continue
            text = cleaner.text(run.log_text)
            if bad := clean.telling(text):
                broken.append(f"{name}: {len(bad)} words that name this machine are left; not written")
                continue
            changed = unlike(run.log_text, text)
            if changed:
                broken.append(f"{name}: cleaning changed what the parser reads: {changed}")
                continue
            kept[name] = text[:MOST]
            if name == "ALL" and (lacks := lacking(text)):
                broken.append(f"{name}: the parser finds no {', '.join(lacks)}")
    finally:
        session.close()
    folder = out / "fixtures" / "nccl" / f"{version}-{slug}"
    for name, text in kept.items():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.log").write_text(text, encoding="utf-8")
        tell.wrote(str((folder / f"{name}.log").relative_to(out)))
    data = {"nccl": version, "lines": {name: text.count("\n") for name, text in kept.items()}}
    if broken:
        tell.failed(CLAIM, "; ".join(broken), data)
    elif left:
        tell.not_seen(CLAIM, f"no time for {', '.join(left)}", data)
    else:
        tell.seen(CLAIM, f"{len(kept)} samples", data)


def samples() -> list[tuple[str, Any]]:
    """(name of the sample, experiment)."""
    from tests.support.machines import gpus

    two, one = replace(gpus.two_ranks(), sizes=(4096,), repeats=2), replace(gpus.ONE, sizes=(4096,), repeats=2)
    found = []
    for name in sorted(SUBSYSTEMS, key=lambda n: (n != "ALL", n not in BETWEEN_RANKS, n)):
        base = two if name in BETWEEN_RANKS else one
        found.append((name, replace(base, env=(*base.env, ("NCCL_DEBUG_SUBSYS", name)))))
    for level in LEVELS:
        changes = (("NCCL_DEBUG", level), ("NCCL_DEBUG_SUBSYS", None))
        found.append((f"level-{level}", replace(one, env=(*one.env, *changes))))
    return found


def lacking(text: str) -> list[str]:
    """What a log at every subsystem must show the parser."""
    from netdoctor.nccl.log.parser import parse_text

    log = parse_text(text)
    names = ("nccl_version", "network", "bootstraps", "vias", "comms_complete")
    return [name for name in names if not getattr(log, name)]


def unlike(before: str, after: str) -> str:
    """What the parser reads differently in the cleaned log; addresses and hosts are meant to differ."""
    from netdoctor.nccl.log.parser import parse_text

    first, second = parse_text(before), parse_text(after)
    names = (
        "nccl_version",
        "network",
        "nodes",
        "nranks",
        "comms_complete",
        "rings",
        "transports",
        "channels",
        "nvls",
        "algorithms",
    )
    return ", ".join(name for name in names if getattr(first, name) != getattr(second, name))
