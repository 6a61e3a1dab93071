"""What carries a group's tensors is told by torch's class of the backend, whatever its name is."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.machines import rank_program

C10D = "torch.distributed.distributed_c10d"


def fake_backend(classes: str, name: str, module: str = C10D) -> Any:
    """A fake of a backend of a CUDA torch: its class, after those that it is derived from, and what `name()` says."""
    kind: type = object
    for one in classes.split():
        kind = type(one, (kind,), {"__module__": module, "name": lambda self: name})
    return kind()


def fake_dist(backend: Any) -> Any:
    """A fake of torch.distributed with a group whose CUDA tensors go by `backend`."""
    group = SimpleNamespace(_device_types=[SimpleNamespace(type="cuda")], _get_backend=lambda device: backend)
    return SimpleNamespace(distributed_c10d=SimpleNamespace(_get_default_group=lambda: group))


@pytest.mark.parametrize(
    ("backend", "carrier"),
    [
        # torch 2.0 to 2.14, and "nccl-legacy" from 2.15
        (fake_backend("Backend ProcessGroupNCCL", "nccl"), "nccl"),
        (fake_backend("Backend ProcessGroupNCCL", "nccl-legacy"), "nccl"),
        # torch 2.15
        (fake_backend("Backend ProcessGroupNCCL2", "nccl2"), "nccl"),
        (fake_backend("Backend ProcessGroupNCCLLazy", "nccl-lazy"), "nccl"),
        (fake_backend("Backend ProcessGroupGloo", "gloo"), "gloo"),
        (fake_backend("Backend ProcessGroupMPI", "mpi"), "mpi"),
        (fake_backend("Backend ProcessGroupUCC", "ucc"), "ucc"),
        # TORCH_DISTRIBUTED_DEBUG=DETAIL wraps it
        (SimpleNamespace(wrapped_pg=fake_backend("Backend ProcessGroupNCCL2", "nccl2")), "nccl"),
        # classes that are not torch's
        (fake_backend("Backend ProcessGroupFoo", "nccl", "foo"), "ProcessGroupFoo (nccl)"),
        (fake_backend("Backend ProcessGroupNCCL", "nccl", "foo.torch"), "ProcessGroupNCCL (nccl)"),
        (fake_backend("Backend", "nccl"), "Backend (nccl)"),
    ],
)
def test_the_class_tells(backend: Any, carrier: str) -> None:
    assert rank_program.parts().effective_backends(fake_dist(backend)) == {"cuda": carrier}
