"""A probe a source, and the frozen dataclass that it fills.  A probe never judges and never raises."""
