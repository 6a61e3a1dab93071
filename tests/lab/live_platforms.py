"""Live faults that only the table of platforms tells, or tells too, as data (tests/lab/row.py): what maker and cloud built."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from tests.lab.live_hardware import FASTER, ROCE
from tests.lab.row import CPU, FABRIC, GDR, GPUS, HARDWARE, HEALTH, LINKS, MAPPING, PORTS, RAILS, RDMA, Row
from tests.support.namespaces.dgx import Scene

DGX, AZURE = ("NVIDIA", "DGXH100", ""), ("Microsoft Corporation", "Virtual Machine", "7783-7084-3265-9085-8269-3286-77")
GOOGLE = ("Google", "Google Compute Engine", "")
FEWER: Final = {
    **dict.fromkeys((GDR, CPU, RDMA, PORTS, LINKS, HARDWARE, "hardware.hca", "hardware.site"), "one less"),
    **dict.fromkeys((GPUS, RAILS, HEALTH, FABRIC, MAPPING), "one less"),
}


def _made_by(names: tuple[str, str, str], instance: str = "", base: Scene | None = None, **more: Any) -> Scene:
    """A machine that its firmware calls so; `instance` is what the site calls the type where nothing on it does."""
    files = zip(("sys_vendor", "product_name", "chassis_asset_tag"), names, strict=True)
    lines = ["mkdir -p class/dmi/id", *(f"echo '{text}' > class/dmi/id/{file}" for file, text in files)]
    told = f", expected: {{instance_type: {instance}}}" if instance else ""
    return replace(base or Scene(), sys="; ".join(lines), config=f"{{job: {{nodes: 2}}{told}}}", **more)


def _row(fault: str, base: Scene, expected: dict[str, str], **changes: Any) -> Row:
    changes = {name: {**getattr(base, name), **value} if name == "tree" else value for name, value in changes.items()}
    also = {name: why for name, why in {**FEWER, **FASTER}.items() if name not in expected}
    return Row(fault, replace(base, **changes), expected, also, base, source="platform")


def _gpus(number: int, model: str = "") -> dict[str, Any]:
    """So many GPUs, for every layer."""
    name = f"\nname={model}" if model else ""
    return {"tree": {"gpus": number}, "nvml": f"count={number}{name}", "cuda": f"count={number}"}


H200: Final = "NVIDIA H200"
ON_DGX, ON_AZURE = _made_by(DGX), _made_by(AZURE, "Standard_ND96isr_H100_v5")
ON_GCP = _made_by(GOOGLE, "a3-ultragpu-8g", ROCE, nvml=f"name={H200}")
SLOW: Final = {"rates": dict.fromkeys(range(8), 200)}
PLATFORM_ROWS: Final = (
    _row("a DGX H100 with seven GPUs", ON_DGX, {GPUS: "fail inventory"}, **_gpus(7)),
    _row("a DGX H100 with four GPUs", ON_DGX, {GPUS: "fail inventory"}, **_gpus(4)),
    _row("a DGX H100 with seven rails", ON_DGX, {RAILS: "fail inventory"}, tree={"hcas": 7}),
    _row("a DGX H100 with six rails", ON_DGX, {RAILS: "fail inventory"}, tree={"hcas": 6}),
    _row("an Azure node with seven GPUs", ON_AZURE, {GPUS: "fail inventory"}, **_gpus(7)),
    _row("an Azure node with six GPUs", ON_AZURE, {GPUS: "fail inventory"}, **_gpus(6)),
    _row("an Azure node with seven rails", ON_AZURE, {RAILS: "fail inventory"}, tree={"hcas": 7}),
    _row("an Azure node whose rails are all at half of their rate", ON_AZURE, {RAILS: "fail link_degraded"}, tree=SLOW),
    _row("an Azure node with a rail at half of its rate", ON_AZURE, {RAILS: "fail link_degraded"}, tree={"rates": {2: 200}}),
    _row("a GCP node with seven GPUs", ON_GCP, {GPUS: "fail inventory"}, **_gpus(7, H200)),
    _row("a GCP node with seven rails", ON_GCP, {RAILS: "fail inventory"}, tree={"hcas": 7}),
    _row("a GCP node with six rails", ON_GCP, {RAILS: "fail inventory"}, tree={"hcas": 6}),
)
