"""Whatever a machine answers, a probe makes a fact or says why not; it never raises, and losing an answer never invents one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from netdoctor.facts import cpu, gpu, kernel, pci, rdma, vantage
from netdoctor.host.base import Answer, RecordingHost, ReplayHost
from netdoctor.host.live import LiveHost
from netdoctor.model import KINDS, Unavailable
from tests.support.machines.sysfs import Extra, dgx_h100, scratch
from tests.unit.test_hardware_probes import DEV, VERBS
from tests.unit.test_probe_gpu_cpu import CUDA, CUDA_GPU, NVML, NVML_GPU
from tests.unit.test_probe_vantage import place

pytestmark = pytest.mark.slow

PROBES: dict[str, Callable[[Any], object]] = {
    module.__name__.rpartition(".")[2]: module.probe for module in (cpu, gpu, kernel, pci, rdma, vantage)
}

leaves: st.SearchStrategy[Any] = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)
json_values: st.SearchStrategy[Any] = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4), max_leaves=8
)
unavailables = st.sampled_from(sorted(KINDS)).map(Unavailable)
odd_texts = st.sampled_from(
    [
        "",
        "\n",
        "0",
        "-1",
        "99999999999999999999",
        "٣",
        "4: ",
        ": ACTIVE",
        "0-",
        "1 2 3",
        "\0",
        "PCI_ID=:\n",
        "x" * 5000,
        "[1]:[2]",
    ]
)


@pytest.fixture(scope="module")
def machine() -> dict[str, Answer]:
    """Every question that the probes ask on a small machine, answered well."""
    everything = place() | DEV | {"ask:nvml": NVML, "ask:cuda": CUDA, "ask:ibverbs": VERBS, "ask:udev": {"pci": {}}}
    with scratch() as root:
        dgx_h100(root / "sys", gpus=2, hcas=2, roce=True, gids=2, extra=[Extra(0x21, 0x1D0F, 0xEFA1, 0x020000, "efa")])
        live = RecordingHost(LiveHost(str(root)))
        for probe in PROBES.values():
            probe(live)
    answers = live.answers | everything
    asked = RecordingHost(ReplayHost(answers))
    for probe in PROBES.values():
        assert not isinstance(probe(asked), Unavailable)
    return asked.answers


@st.composite
def truncated(draw: st.DrawFn, answer: Answer) -> Answer:
    if isinstance(answer, str | list):
        return answer[: draw(st.integers(0, len(answer)))]
    if isinstance(answer, dict):
        return {k: draw(json_values) if draw(st.booleans()) else v for k, v in answer.items() if draw(st.booleans())}
    return answer


@pytest.mark.parametrize("name", PROBES)
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_a_probe_never_raises(machine: dict[str, Answer], name: str, data: st.DataObject) -> None:
    questions = sorted(machine)
    changed = dict(machine)
    for question in data.draw(st.lists(st.sampled_from(questions), min_size=1, max_size=8)):
        how = data.draw(st.sampled_from(["other", "unavailable", "text", "cut", "gone"]))
        if how == "gone":
            changed.pop(question, None)
        elif how == "other":
            changed[question] = data.draw(json_values)
        elif how == "unavailable":
            changed[question] = data.draw(unavailables)
        elif how == "text":
            changed[question] = data.draw(odd_texts)
        else:
            changed[question] = data.draw(truncated(machine[question]))
    PROBES[name](ReplayHost(changed))


@pytest.mark.parametrize("name", PROBES)
def test_each_question_alone(machine: dict[str, Answer], name: str) -> None:
    """Every single answer in turn wrong in every simple way."""
    wrong: list[Answer] = [None, True, 3, 1.5, "", "x", "\0\n", [], [None], [[]], {}, {"unavailable": 3}, Unavailable("denied")]
    asked = RecordingHost(ReplayHost(machine))
    PROBES[name](asked)
    for question in asked.answers:
        for answer in wrong:
            PROBES[name](ReplayHost(machine | {question: answer}))


@settings(max_examples=150, deadline=None)
@given(nvml=json_values, cuda=json_values, one=st.dictionaries(st.sampled_from(sorted(NVML_GPU)), json_values), n=json_values)
def test_helpers_that_talk_rubbish(nvml: Any, cuda: Any, one: dict[str, Any], n: Any) -> None:
    gpu.probe(ReplayHost({"ask:nvml": nvml, "ask:cuda": cuda}))
    devices = [NVML_GPU | one, n]
    seen = [CUDA_GPU | {"attributes": n}, CUDA_GPU | {"uuid": n}, n]
    gpu.probe(ReplayHost({"ask:nvml": NVML | {"devices": devices}, "ask:cuda": CUDA | {"devices": seen}}))
    verbs = VERBS | {"devices": {"mlx5_0": n}, "warnings": n, "library": n}
    rdma.probe(ReplayHost({"ask:ibverbs": verbs, "dir:/sys/class/infiniband": ["mlx5_0"]}))


@pytest.mark.parametrize("name", PROBES)
def test_nothing_at_all(name: str) -> None:
    PROBES[name](ReplayHost({}))


def test_losing_an_answer_never_makes_a_machine_look_bare(machine: dict[str, Answer]) -> None:
    """Whichever single answer is lost: RDMA hardware never becomes "there is none"."""
    kinds = [Unavailable(kind) for kind in ("denied", "timed out", "failed", "not recorded", "empty", "malformed")]
    for question in machine:
        if question.startswith(("file:/sys/", "dir:/sys/", "link:/sys/")):
            for why in kinds:
                host = ReplayHost(machine | {question: why})
                tree, devices = pci.probe(host), rdma.probe(host).devices
                assert isinstance(tree, Unavailable) or tree.rdma or tree.unclassified, question
                assert devices != (), question
