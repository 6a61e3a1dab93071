"""A fake without devices."""


def is_available():
    return False
