"""Enough faults of each source of expectation: replayed ones, by what golden.json says of them, and live ones."""

from __future__ import annotations

from collections import Counter

from netdoctor.expectation.model import Source
from tests.fakegpu import rows
from tests.lab import faults, live
from tests.lab.live_fleet import FLEET_ROWS
from tests.unit.test_fleet_shapes import SHARED

LEAST = 12
BY_CHECK = {"hardware.site": Source.SITE, "hardware.past": Source.PAST}  # their unknowns name no source


def replayed() -> Counter[str]:
    """Faults by the sources that tell of them; those of the fleet are what all its nodes share."""
    told = faults.golden()
    found = Counter({str(Source.FLEET): len(SHARED)})
    for fault in faults.every():
        named = {str(one) for row in told[fault.name] for one in row["evidence"].get("sources", ()) if row["status"] == "fail"}
        found.update(named | {str(BY_CHECK[fault.expect["check"]])} if fault.expect["check"] in BY_CHECK else named)
    return found


def test_each_source_has_a_dozen_replayed_faults() -> None:
    have = replayed()
    assert {str(source): have[str(source)] for source in Source if have[str(source)] < LEAST} == {}


def test_each_check_of_the_hardware_has_a_dozen_live_faults() -> None:
    """What model, siblings, platform, site and past say, one layer against the other, and GPUs' links."""
    have = Counter(row.check for row in rows.ROWS) + Counter(check for row in live.every() for check in row.expected)
    checks = ("hardware.gpus", "hardware.rails", "hardware.links", "hardware.hca", "hardware.accelerator", *BY_CHECK)
    assert {check: have[check] for check in checks if have[check] < LEAST} == {}


def test_each_source_has_a_dozen_live_faults() -> None:
    """Of the device and of siblings by what their checks always name; a row of a platform names its source itself."""
    said = [(check, told, row.source) for row in live.every() for check, told in row.expected.items()]
    said += [(row.check, f"fail {row.cause}", "") for row in rows.ROWS]
    have = Counter({Source.FLEET: len(FLEET_ROWS)})
    have.update(BY_CHECK[check] for check, _, _ in said if check in BY_CHECK)
    have[Source.DEVICE] += sum(check == "hardware.links" for check, _, _ in said)
    have[Source.SIBLINGS] += sum(check == "hardware.gpus" and "odd_one_out" in told for check, told, _ in said)
    have[Source.SIBLINGS] += sum(check == "hardware.rails" and told.startswith("fail") and not by for check, told, by in said)
    have[Source.PLATFORM] += sum(source == str(Source.PLATFORM) for _, _, source in said)
    assert {str(source): have[source] for source in Source if have[source] < LEAST} == {}
