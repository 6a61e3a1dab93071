"""What `netdoctor.preflight` takes for seconds, before anything is started."""

from __future__ import annotations

import math
from typing import Any

import pytest

import netdoctor


@pytest.mark.parametrize("given", [math.nan, math.inf, -1, 0, "a", None, True, 1e300])
def test_no_number_of_seconds_starts_no_look(given: Any) -> None:
    with pytest.raises(ValueError, match="timeout_s: not a number of seconds above 0"):
        netdoctor.preflight(timeout_s=given)
