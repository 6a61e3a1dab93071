"""``python -m tools.gpu_proof``: run every step, keep the book on disk, exit with what was proven.

Exit codes: 0 everything that this machine has the hardware for was seen; 3 a claim failed; 4 something was not seen, or
nothing at all; 2 bad usage; 130 and 143 interrupted (the files say how far it came).
"""

from __future__ import annotations

import argparse
import os
import pathlib
import signal
import sys
import time
from collections.abc import Sequence
from typing import Final

from tools.gpu_proof import children, report
from tools.gpu_proof.claims import STEPS, Step, table
from tools.gpu_proof.ledger import Ledger
from tools.gpu_proof.machine import Machine, look

ROOT: Final = pathlib.Path(__file__).parents[2]
WHOLE: Final = 470.0  # seconds for everything: 8 minutes, less what writing takes
LEAST: Final = 5.0  # a step with less time than that left is not begun


class Interrupted(BaseException):
    """A signal came."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def command_of(step: Step) -> list[str]:
    """The process that shows the claims of a step."""
    if step.module:
        return [sys.executable, "-m", step.module]
    files = list(dict.fromkeys(claim.source.partition("::")[0] for claim in step.claims))
    plugin = ["-p", "tools.gpu_proof.pytest_plugin", "-p", "no:cacheprovider"]
    return [sys.executable, "-m", "pytest", "-q", "-m", "gpu", *plugin, *files]


def prove(
    ledger: Ledger, machine: Machine, stem: pathlib.Path, whole: float, environment: dict[str, str], log: pathlib.Path
) -> None:
    """Every step that this machine can take, in order; the files are written after each thing that is said."""
    ledger.changed = lambda: report.write(ledger.document(), stem)
    deadline = ledger.begin + whole
    for step in ledger.steps:
        for claim in step.claims:
            if machine.gpus and claim.gpus > machine.gpus:
                ledger.cannot(claim.id, f"needs {claim.gpus} GPUs, this machine has {machine.gpus}")
        left = deadline - time.monotonic()
        if not machine.gpus:
            for claim in step.claims:
                ledger.cannot(claim.id, machine.why_no_gpu)
        elif step.needs_torch and not machine.torch_gpus:
            ledger.close(step, machine.why_no_torch)
        elif all(ledger.entries[c.id].state for c in step.claims):
            pass
        elif left < LEAST:
            ledger.close(step, f"no time left of {whole:.0f} s")
        else:
            print(f"gpu-proof: {step.name} (at most {min(left, step.seconds):.0f} s)", file=sys.stderr, flush=True)
            ledger.running = step.name
            end = time.monotonic() + min(left, step.seconds)
            more = {"GPU_PROOF_SECONDS": f"{end - time.monotonic() - 3:.0f}"}
            children.run(
                step,
                command_of(step),
                ledger,
                end,
                environment={**environment, **more},
                log=str(log),
            )
            ledger.running = ""


def main(arguments: Sequence[str] | None = None, steps: tuple[Step, ...] = STEPS) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_proof", description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="the Python whose torch has CUDA (default: this one)")
    parser.add_argument("--out", help="write here instead of this checkout (and build/ where there is no GPU)")
    parser.add_argument("--seconds", type=float, default=WHOLE, help="for the whole (default %(default)s)")
    parser.add_argument("--steps", help="only these, a,b (their names go into the name of the evidence)")
    parser.add_argument("--list", action="store_true", help="print the claims and end")
    given = parser.parse_args(arguments)
    named = given.steps.split(",") if given.steps else []
    if unknown := set(named) - {step.name for step in steps}:
        parser.error(f"no step {', '.join(sorted(unknown))}; there are {', '.join(step.name for step in steps)}")
    steps = tuple(step for step in steps if step.name in named or not named)
    if given.list:
        print(table(steps))
        return 0
    os.environ["NETDOCTOR_TORCH_PYTHON"] = given.python
    ledger = Ledger(steps)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)
    out = pathlib.Path(given.out).absolute() if given.out else None
    stem, code = (out or ROOT / "build" / "gpu-proof") / "proof", 0
    try:
        machine = look(given.python)
        ledger.machine = {"slug": machine.slug, **machine.facts}
        base = out or (ROOT if machine.gpus else ROOT / "build" / "gpu-proof")
        if machine.gpus:
            stem = base / "docs" / "evidence" / "-".join((time.strftime("%Y-%m-%d"), machine.slug, *named))
        build = ROOT / "build" / "gpu-proof"
        build.mkdir(parents=True, exist_ok=True)
        log = build / "steps.log"
        log.write_bytes(b"")
        environment = {
            **os.environ,
            "GPU_PROOF_OUT": str(base),
            "GPU_PROOF_SLUG": machine.slug,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        }
        report.write(ledger.document(), stem)
        prove(ledger, machine, stem, given.seconds, environment, log)
    except Interrupted as stop:
        where = f" in step {ledger.running}" if ledger.running else ""
        ledger.ended, ledger.running, code = f"ended by {stop}{where}", "", 128 + stop.number
    except OSError as error:
        print(f"gpu-proof: {error}", file=sys.stderr)
        return 2
    return _finish(ledger, stem, out or ROOT / "build", code)


def _finish(ledger: Ledger, stem: pathlib.Path, packed: pathlib.Path, code: int) -> int:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    report.write(ledger.document(), stem)
    base = stem.parents[2] if stem.parent.name == "evidence" else stem.parent
    names = [str(stem.relative_to(base)) + suffix for suffix in (".md", ".json")] + ledger.files
    report.pack(base, names, packed / "gpu-proof.tar.gz")
    print(f"gpu-proof: {ledger.verdict}", file=sys.stderr)
    print(f"{stem}.md")
    return code or ledger.code


def _interrupt(number: int, _frame: object) -> None:
    raise Interrupted(number)


if __name__ == "__main__":
    sys.exit(main())
