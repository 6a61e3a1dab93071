"""A step of `make gpu-proof` that hangs: it takes until its deadline; how other steps end is tests/unit/test_gpu_proof.py."""

from __future__ import annotations

import pathlib

import pytest

from tests.unit.test_gpu_proof import NOT_SEEN, SEEN, gone, run, states
from tools.gpu_proof import children

pytestmark = pytest.mark.live


def test_a_step_that_hangs_is_ended_with_all_that_it_started(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = f"""
tell.seen('x.one')
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(['sleep', '1000'])
open({str(tmp_path / "part")!r}, 'w').write(str(child.pid))
os.rename({str(tmp_path / "part")!r}, {str(tmp_path / "pid")!r})
time.sleep(1000)
"""
    monkeypatch.setattr(children, "GRACE", 0.5)
    for seconds in (3.0, 10.0, 40.0):  # the deadline must not come before the step has begun to hang
        ledger, ended = run(program, seconds)
        if (tmp_path / "pid").exists():
            break
    assert "ended at its deadline" in ended
    assert states(ledger) == {"x.one": SEEN, "x.two": NOT_SEEN, "x.three": NOT_SEEN}
    pid = int((tmp_path / "pid").read_text())
    assert gone(pid)
