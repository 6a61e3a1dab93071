"""Keeping a good look: one entry more in this node's ring, where the site made a folder for it and nobody else may write."""

from __future__ import annotations

import os
import time

from netdoctor import engine
from netdoctor.expectation.past import entry_of
from netdoctor.facts import registry
from netdoctor.facts.inventory import inventory
from netdoctor.facts.past import FILE, FOLDER, added
from netdoctor.host.live import LiveHost
from netdoctor.host.trust import ROOT, trusted_by
from netdoctor.model import Health, Report, Status, Unavailable
from netdoctor.process import far, files


def keep(work: engine.Work, report: Report, file: str = FILE, folder: str = FOLDER) -> bool:
    """Whether the look was kept.  Only one that found nothing wrong is; what stands in the way costs nothing but the entry."""
    past = registry.of(work.facts, "Past")
    good = report.verdict.status is Health.HEALTHY and not report.findings(Status.FAIL)
    if not good or not past.who or not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        return False
    if trusted_by(folder, ROOT | {os.geteuid()}):
        return False
    before = LiveHost().ask(f"trusted:{file}")
    if isinstance(before, Unavailable) and os.path.lexists(file):  # of others' making, or unreadable: not ours to write over
        return False
    day = time.strftime("%Y-%m-%d", time.gmtime(work.started))
    run = registry.of(work.facts, "Baseline").run
    entry = entry_of(day, None if isinstance(run, Unavailable) else run, inventory(work.facts))
    try:
        far.call(files.write, file, added(before if isinstance(before, str) else "", past.who, entry), path=file, writes=True)
    except (files.OutputError, OSError):
        return False
    return True
