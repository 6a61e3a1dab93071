"""What real NCCL printed on real GPUs (fixtures/nccl, from `make gpu-proof`) is read, and nothing in it is a fault."""

from __future__ import annotations

import pathlib

import pytest

from netdoctor.model import Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.log.parser import parse_text
from tools.gpu_proof import record_logs

SAMPLES = sorted((pathlib.Path(__file__).parents[2] / "fixtures" / "nccl").glob("*/*.log"))


def test_there_are_samples() -> None:
    assert {"ALL", "INIT", "NET", "level-INFO"} <= {path.stem for path in SAMPLES}


@pytest.mark.parametrize("folder", sorted({path.parent for path in SAMPLES}), ids=lambda path: path.name)
def test_all_that_matters_is_read(folder: pathlib.Path) -> None:
    text = (folder / "ALL.log").read_text(encoding="utf-8")
    assert record_logs.lacking(text) == []
    log = parse_text(text)
    assert folder.name.startswith(f"{log.nccl_version}-") or str(log.nccl_version).startswith(folder.name.partition("-")[0])
    assert (log.nranks, log.nodes, log.comms_complete) == (2, 2, 2)
    assert {via.transport for via in log.vias} == {"NET"}


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_healthy_run_is_no_fault(path: pathlib.Path) -> None:
    found = diagnose(parse_text(path.read_text(encoding="utf-8")))
    assert [f"{f.cause}: {f.message}" for f in found if f.status is Status.FAIL] == []
