"""What netdoctor claims about GPUs, shown on a machine that has some: `make gpu-proof`.  See docs/gpu-proof.md.

A claim is one sentence that a test, a measurement or a recording shows.  Each ends as ``seen``, ``not seen`` or ``failed``,
with the reason; what did not run is never said to have run.
"""
