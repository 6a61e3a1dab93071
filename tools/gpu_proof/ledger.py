"""The book: every claim once, what became of it and why, and the sentence about the whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tools.gpu_proof.claims import STEPS, Claim, Step

SCHEMA: Final = "netdoctor.gpu-proof/1"
SEEN, NOT_SEEN, FAILED = "seen", "not seen", "failed"
STATES: Final = (SEEN, NOT_SEEN, FAILED)
# Exit codes.  PROVEN: everything that this machine has the hardware for was seen.
PROVEN, REFUTED, INCONCLUSIVE = 0, 3, 4
MAX_TEXT: Final = 600


@dataclass
class Entry:
    """What became of one claim."""

    claim: Claim
    step: str
    state: str = ""  # "" until something is said
    text: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    hardware: bool = True  # False: this machine cannot show it (fewer GPUs than it needs)


class Ledger:
    """All claims of `steps`, in their order."""

    def __init__(self, steps: tuple[Step, ...] = STEPS) -> None:
        self.steps = steps
        self.entries: dict[str, Entry] = {c.id: Entry(c, s.name) for s in steps for c in s.claims}
        self.took: dict[str, float] = {}  # step -> seconds
        self.running = ""
        self.changed: Callable[[], None] = lambda: None  # called after an entry or a step: the book on disk
        self.machine: dict[str, Any] = {}
        self.files: list[str] = []  # what was recorded beside the book
        self.ended = ""  # why it ended early; "" it did not
        self.started = time.time()
        self.begin = time.monotonic()

    def say(self, claim: str, state: str, text: str = "", data: Mapping[str, Any] | None = None) -> None:
        """Enter what became of a claim.  A failure stays: nothing that is said later turns it into something better."""
        entry = self.entries.get(claim)
        if entry is None or state not in STATES:
            raise ValueError(f"no such claim or state: {claim!r} {state!r}")
        if entry.state == FAILED:
            return
        if {entry.state, state} == {SEEN, NOT_SEEN}:  # one case of several was not seen: so the whole was not
            text = text if state == NOT_SEEN else entry.text
            state = NOT_SEEN
        entry.state, entry.text, entry.data = state, text[:MAX_TEXT], dict(data or {})

    def cannot(self, claim: str, why: str) -> None:
        """This machine does not have what the claim needs."""
        self.say(claim, NOT_SEEN, why)
        self.entries[claim].hardware = False

    def close(self, step: Step, why: str) -> None:
        """The step is over: what it did not speak about was not seen, and `why`."""
        for claim in step.claims:
            if not self.entries[claim.id].state:
                self.say(claim.id, NOT_SEEN, why)

    def count(self, state: str) -> int:
        return sum((e.state or NOT_SEEN) == state for e in self.entries.values())

    @property
    def code(self) -> int:
        if self.count(FAILED):
            return REFUTED
        missing = [e for e in self.entries.values() if e.state != SEEN and e.hardware]
        return INCONCLUSIVE if missing or not self.count(SEEN) or self.ended else PROVEN

    @property
    def verdict(self) -> str:
        """One sentence."""
        counts = f"{self.count(SEEN)} seen, {self.count(NOT_SEEN)} not seen, {self.count(FAILED)} failed"
        if self.running:
            return f"unfinished, in step {self.running}: {counts}"
        if not self.count(SEEN) and not self.count(FAILED):
            return f"nothing was proven: {counts}"
        tail = f"; ended early: {self.ended}" if self.ended else ""
        return f"{counts}{tail}"

    def document(self) -> dict[str, Any]:
        """The whole as JSON data.  A claim that nothing was said about yet is not seen."""
        late = "not reached" if self.ended or self.running else "nothing was said about it"
        return {
            "schema": SCHEMA,
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.started)),
            "seconds": round(time.monotonic() - self.begin, 1),
            "verdict": self.verdict,
            "exit_code": self.code,
            "running": self.running,
            "ended_early": self.ended,
            "machine": self.machine,
            "files": self.files,
            "steps": [{"name": s.name, "seconds": self.took.get(s.name)} for s in self.steps],
            "claims": [
                {
                    "id": e.claim.id,
                    "claim": e.claim.text,
                    "step": e.step,
                    "shown_by": e.claim.source,
                    "state": e.state or NOT_SEEN,
                    "why": e.text or ("" if e.state else late),
                    "possible_here": e.hardware,
                    "data": dict(e.data),
                }
                for e in self.entries.values()
            ],
        }
