"""A fake: just enough of a torch to be imported and asked, for Pythons that have none.  Ranks come to init and fail there."""

from . import cuda, distributed

__version__ = "0.0+stub"


class version:  # noqa: N801
    cuda = None


def device(*args):
    return args


__all__ = ["cuda", "device", "distributed", "version"]
