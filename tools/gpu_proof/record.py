"""Step: record this host as a fixture, and NCCL's logs as samples.  Nothing that names the machine may be in any file.

Writes below GPU_PROOF_OUT: fixtures/hosts/SLUG/{snapshot.json,report.json,PROVENANCE.md}, fixtures/nccl/VERSION-SLUG/*.log.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
from typing import Any, Final

from netdoctor.model import Status
from tools.gpu_proof import clean, record_logs, tell

SECONDS: Final = 70.0  # for the snapshot with its all-reduces
HOST: Final = "record.host"


def main() -> int:
    out = pathlib.Path(os.environ.get("GPU_PROOF_OUT", "build/gpu-proof"))
    slug = os.environ.get("GPU_PROOF_SLUG", "this-machine")
    python = os.environ.get("NETDOCTOR_TORCH_PYTHON") or sys.executable
    try:
        host(out, slug, python)
    except Exception as error:  # noqa: BLE001  (the logs are worth having all the same)
        tell.failed(HOST, f"{type(error).__name__}: {error}")
    record_logs.record(out, slug, python)
    return 0


def host(out: pathlib.Path, slug: str, python: str) -> None:
    """The snapshot, the report that it gives, and where it comes from."""
    folder = out / "fixtures" / "hosts" / slug
    fresh = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "snapshot.json"
    command = [sys.executable, "-m", "netdoctor", "snapshot", "--pseudonymise", "--vantage", "job", "--python", python]
    try:
        done = subprocess.run(
            [*command, "--quiet", "-o", str(target)], capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        tell.not_seen(HOST, f"netdoctor snapshot was not done after {SECONDS:.0f} s")
        return
    if done.returncode or not target.exists():
        if fresh:
            shutil.rmtree(folder, ignore_errors=True)
        said = done.stderr.strip().splitlines()[-1:] or [""]
        tell.not_seen(HOST, f"netdoctor snapshot --pseudonymise ended with status {done.returncode}: {said[0][:200]}")
        return
    target.chmod(0o644)
    if bad := clean.telling(target.read_text(encoding="utf-8")):
        target.unlink()
        # Not the words themselves: this sentence is published.
        tell.failed(HOST, f"the snapshot holds {len(bad)} words or addresses that name this machine; it was removed")
        return
    _judged(folder, slug, out)


def _judged(folder: pathlib.Path, slug: str, out: pathlib.Path) -> None:
    from netdoctor.snapshot.snapshot import dumps, loads
    from tests.lab import fixtures

    text = (folder / "snapshot.json").read_text(encoding="utf-8")
    taken = loads(text)
    report = fixtures.stable(taken)
    same = fixtures.stable(loads(dumps(taken))) == report
    (folder / "report.json").write_text(json.dumps(report, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    (folder / "PROVENANCE.md").write_text(_provenance(slug), encoding="utf-8")
    for name in ("snapshot.json", "report.json", "PROVENANCE.md"):
        tell.wrote(str((folder / name).relative_to(out)))
    if same:
        tell.seen(HOST, f"{len(text) // 1024} KiB, {len(taken.answers)} answers", {"slug": slug})
    else:
        tell.failed(HOST, "the snapshot, written and read again, gives another report")
    judged = fixtures.report(taken)
    fails = [f"{f.check}: {f.message}"[:160] for f in judged.findings(Status.FAIL)]
    errors = [f"{f.check}: {f.message}"[:160] for f in judged.findings(Status.ERROR)]
    data: dict[str, Any] = {"exit_code": judged.verdict.exit_code, "fails": fails, "errors": errors}
    if errors:
        tell.failed("record.healthy", f"{len(errors)} checks ended in an error", data)
    elif fails:
        tell.not_seen("record.healthy", f"{len(fails)} fails: whether this node is healthy, a person must say", data)
    else:
        tell.seen("record.healthy", "no fail, no error", data)


def _provenance(slug: str) -> str:
    day = time.strftime("%Y-%m-%d")
    return (
        f"# {slug}\n\nRecorded on {day} by `make gpu-proof` (`netdoctor snapshot --pseudonymise`) on a machine with this GPU;\n"
        "names, addresses and serial numbers are replaced, nothing else was edited. The evidence beside it:\n"
        f"`docs/evidence/{day}-{slug}.md`.\n"
    )


if __name__ == "__main__":
    sys.exit(main())
