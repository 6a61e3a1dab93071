"""What the rank program makes of torch's answers about data."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.support.machines import rank_program


class IdleTensor:
    """A fake of a tensor on a GPU whose kernels do nothing: whatever is asked of it is 0."""

    def __getitem__(self, at: slice) -> IdleTensor:
        return self

    def view(self, *shape: int) -> IdleTensor:
        return self

    def numel(self) -> int:
        return 1024

    def __eq__(self, other: object) -> IdleTensor:  # type: ignore[override]
        return self

    __ne__ = __eq__  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]

    def all(self) -> bool:
        return False

    def sum(self) -> int:
        return 0


def test_data_that_are_not_equal_are_never_called_right() -> None:
    """The count of wrong elements comes from another kernel than the comparison."""
    engine: Any = SimpleNamespace(
        views={4096: IdleTensor()}, exact=IdleTensor(), torch=SimpleNamespace(equal=lambda one, other: True)
    )
    assert rank_program.parts().TorchEngine.wrong(engine, 4096) == 1
