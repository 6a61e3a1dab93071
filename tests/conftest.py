"""Property tests draw the same examples on every run, so that a red test is about the change; `HYPOTHESIS_PROFILE=random` looks
further.  Root's live tests run where nothing of this machine is in their way (tests/support/namespaces/checkout.py).
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.namespaces import checkout, workers

# Many containers set it: each of some hundred processes would compile all modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Thousands of tests and the trees of all sources live to the end: looking through them again and again for garbage took a tenth
# of the unit tests' time.
gc.set_threshold(100_000, 20, 100)

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("random", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    if os.geteuid() != 0 or checkout.PLACED in os.environ or config.option.help or config.option.collectonly:
        return None
    unit = Path(__file__).parent / "unit"
    here = config.invocation_params.dir
    live = any(not (here / one.partition("::")[0]).is_relative_to(unit) for one in config.args)
    # Tests of the GPU mount nothing, and gpu-proof listens to their process.
    if not live or config.option.markexpr == "gpu" or not (reason := checkout.unfit(checkout.ROOT)):
        return None
    print(f"root's live tests run in a copy of {checkout.ROOT}: {reason}", file=sys.stderr, flush=True)
    return checkout.run(config.invocation_params.args, here)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """Of the processes of `pytest -n` on live tests each is by itself."""
    live = Path(__file__).parent / "live"
    if "PYTEST_XDIST_WORKER" in os.environ and any(
        (config.invocation_params.dir / one).is_relative_to(live) for one in config.args
    ):
        workers.apart()
