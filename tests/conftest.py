"""Property tests draw the same examples on every run, so that a red test is about the change; `HYPOTHESIS_PROFILE=random` looks
further.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("random", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
