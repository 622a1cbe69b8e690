# PyTorch for pyright, as Any: so `make lint` needs none, and says the same with and without it.
from typing import Any

def __getattr__(name: str) -> Any: ...
