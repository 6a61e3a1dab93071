"""What a child can try of a mend, against the run that shows it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from netdoctor.allreduce.cures import cure_of
from netdoctor.facts.runs import AllReduce, Baseline, Cure, Path, PathRun, Run, State, Way
from netdoctor.model import Finding, Fix, Kind, Status, Unavailable
from tests.support.facts import baseline

GLOO = AllReduce("gloo", 2)
NCCL = AllReduce("nccl", 8, "cuda", gpus=tuple(range(8)))
BETWEEN = replace(NCCL, ranks=2, path=Path(Way.INTER_NODE, "mlx5_0", 1))
NOTHING = Unavailable(Kind.REFUSED, "--no-allreduce")


def tried(
    *changes: tuple[str, str | None],
    of: AllReduce = NCCL,
    paths: tuple[Run, ...] | Unavailable = (Run(BETWEEN, State.FINISHED),),
) -> Cure | None:
    finding = Finding(Status.FAIL, "x", fix=Fix("mend", tries=changes))
    return cure_of(finding, baseline(Run(of, State.FINISHED)), PathRun(paths))


@pytest.mark.parametrize(
    ("changes", "of", "base"),
    [
        ((("NCCL_P2P_DISABLE", None),), NCCL, NCCL),
        ((("NCCL_NET_GDR_LEVEL", None),), NCCL, BETWEEN),  # one node alone sends nothing over the network
        ((("NCCL_SOCKET_IFNAME", "=eth1"),), NCCL, BETWEEN),
        ((("NCCL_IB_HCA", None),), NCCL, None),  # the path run pins it
        ((("LD_LIBRARY_PATH", None),), NCCL, replace(NCCL, fresh_import=True)),
        ((("GLOO_SOCKET_IFNAME", "eth1"),), NCCL, None),
        ((("GLOO_SOCKET_IFNAME", "eth1"),), GLOO, GLOO),
        ((("NCCL_SOCKET_IFNAME", "eth1"),), GLOO, None),
        ((), NCCL, None),
    ],
)
def test_the_run_that_shows_it(changes: tuple[tuple[str, str | None], ...], of: AllReduce, base: AllReduce | None) -> None:
    found = tried(*changes, of=of)
    assert (found and found.baseline) == base
    assert found is None or found.change == replace(found.baseline, env=changes)


def test_a_list_that_names_no_hca_is_tried_unpinned() -> None:
    open_way = replace(BETWEEN, path=Path(Way.INTER_NODE))
    found = tried(("NCCL_IB_HCA", None), paths=(Run(open_way, State.FINISHED),))
    assert found is not None and found.baseline == open_way and found.label == "without NCCL_IB_HCA"


def test_what_is_read_while_libraries_load_needs_a_new_import() -> None:
    found = tried(("OMP_PROC_BIND", None), of=GLOO)
    assert found is not None and found.change.fresh_import and found.baseline.fresh_import
    assert found.label == "without OMP_PROC_BIND"


def test_nothing_is_tried_where_nothing_ran_or_failed() -> None:
    finding = Finding(Status.FAIL, "x", fix=Fix("mend", tries=(("NCCL_P2P_DISABLE", None),)))
    ran = baseline(Run(NCCL, State.FINISHED))
    assert cure_of(finding, Baseline.unread(NOTHING), PathRun(NOTHING)) is None
    assert cure_of(replace(finding, status=Status.PASS), ran, PathRun(())) is None
    assert cure_of(replace(finding, waived="known (until 2030-01-01)"), ran, PathRun(())) is None
    assert tried(("NCCL_IB_DISABLE", None), paths=()) is None


def test_a_check_that_names_its_own_cure_is_heard() -> None:
    own = Cure(GLOO, GLOO, "X=1")
    assert cure_of(Finding(Status.FAIL, "x", cure=own), baseline(Run(NCCL, State.FINISHED)), PathRun(())) is own
