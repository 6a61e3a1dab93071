"""Whatever others wrote: mutated inputs for every reader of it (`targets.TARGETS`), `python -m tests.fuzz`."""
