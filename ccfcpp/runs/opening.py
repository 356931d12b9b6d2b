"""Opening runs: new ones in a new folder, and those that go on."""

from typing import TYPE_CHECKING, TypeVar

from ccfcpp.core.config import MethodConfig

if TYPE_CHECKING:
    pass

C = TypeVar("C", bound=MethodConfig)
