"""A fake that makes no group."""


def is_available():
    return True


def is_nccl_available():
    return False


def FileStore(path, ranks):  # noqa: N802
    return path


def init_process_group(backend, store=None, rank=0, world_size=1, timeout=None):
    raise RuntimeError("a stub makes no group")
