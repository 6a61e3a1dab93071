"""The fault lab: faults as data, missing evidence, mutants.  `python -m tests.lab` runs what `make test` has no time for."""
