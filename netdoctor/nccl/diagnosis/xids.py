"""The driver's own errors (Xid, SXid), as the kernel's log or a device plugin prints them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from netdoctor.facts.kernel_log import Action, Meaning, catalogue
from netdoctor.nccl.diagnosis.hypothesis import Confidence, Fault, Hypothesis, caught
from netdoctor.nccl.diagnosis.went_on import worked_on
from netdoctor.nccl.log.facts import LogFacts

# By NVIDIA's Xid catalogue.
_XIDS: Final = {
    **dict.fromkeys(
        ("13", "31"),
        Hypothesis(
            "rank_died", Confidence.LIKELY, "a kernel of the program accessed memory that is not its own", fault=Fault.KERNEL
        ),
    ),
    "79": Hypothesis("inventory", Confidence.STRONG, "a GPU has fallen off the bus (Xid 79)"),
    "74": Hypothesis("link_degraded", Confidence.STRONG, "NVLink error (Xid 74)"),
    **{
        xid: Hypothesis("inventory", Confidence.LIKELY_PLUS, f"memory error of a GPU (Xid {xid})", fault=Fault.ECC)
        for xid in ("48", "63", "64", "92", "94", "95")
    },
}


# Errors after which nothing but the program is over that made them, by the same catalogue.
_OF_A_PROGRAM: Final = frozenset({"13", "31", "43", "45"})


def xid(log: LogFacts) -> Iterator[Hypothesis]:
    """The driver's errors in the kernel's log."""
    for e in log.of("xid"):
        if "sxid" in e.data:  # NVIDIA Fabric Manager user guide, appendix on SXid errors: the fatal ones
            text = f"an NVSwitch reports a fatal error (SXid {e.data['sxid']}): GPUs behind it must be reset"
            yield Hypothesis("gpu_error", Confidence.LIKELY_PLUS, text, (e,))
            continue
        number = e.data.get("xid", "?")
        if number in _OF_A_PROGRAM and worked_on(log, e):
            continue  # it ended a program, and this one worked on
        yield replace(_XIDS.get(number) or _by_catalogue(number), events=(e,))


def _by_catalogue(number: str) -> Hypothesis:
    """What NVIDIA's catalogue says of an Xid: an error that a reset or more ends is the GPU's own."""
    meaning = catalogue().get(("xid", number))
    if meaning is None or not meaning.ends_job:
        return Hypothesis("rank_died", Confidence.OPEN_MINUS, f"the driver reports Xid {number}{_told(meaning)}")
    text = f"the driver reports Xid {number}{_told(meaning)}"
    if meaning.action in {Action.NONE, Action.RESTART}:
        return Hypothesis("rank_died", Confidence.OPEN if meaning.action is Action.NONE else Confidence.LIKELY, text)
    advised = f"NVIDIA advises: {_ADVICE[meaning.action]}"
    return Hypothesis(
        "gpu_error", Confidence.LIKELY_PLUS, f"{text}; {advised}", how="nvidia-smi -q; dmesg | grep -i -e xid -e nvrm"
    )


def _told(meaning: Meaning | None) -> str:
    return f" ({meaning.text})" if meaning is not None else ""


_ADVICE: Final = {
    Action.RESET: "reset the GPU (nvidia-smi --gpu-reset), or reboot the node",
    Action.REBOOT: "reboot the node",
    Action.SUPPORT: "drain the node and ask the vendor",
    Action.REPLACE: "have the GPU replaced",
}


def lost(log: LogFacts) -> Iterator[Hypothesis]:
    """A GPU that no longer answers on PCIe, in the driver's or NVML's words."""
    events = log.of("gpu_lost")
    if events:
        gpu = next(iter(caught(events, "gpu")), "").rstrip(":.")
        text = f"{f'GPU {gpu}' if gpu else 'a GPU'} is lost to its driver"
        how = "dmesg | grep -i xid; nvidia-smi; nvidia-smi -q -i <gpu>"
        yield Hypothesis("inventory", Confidence.STRONG, text, events, how=how)


def dcgm(log: LogFacts) -> Iterator[Hypothesis]:
    """What DCGM's health watches and its diagnostics found of a GPU."""
    events = log.of("dcgm")
    if events:
        text = f"DCGM reports a fault of a GPU: {caught(events, 'said')[0]}"
        yield Hypothesis(
            "gpu_error", Confidence.LIKELY_PLUS, text, events, how="dcgmi diag -r 3; nvidia-smi -q; dmesg | grep -i xid"
        )


RULES = (xid, lost, dcgm)
