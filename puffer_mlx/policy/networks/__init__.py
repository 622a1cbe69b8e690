"""Networks: what is between encoder and decoder, and remembers. A folder each, with all its forms.

A folder's files, of which only the first two must be there:

| file | what |
| --- | --- |
| ``__init__.py`` | ``NAME``, which is the class's |
| ``network.py`` | the class: equations in MLX |
| ``forms.py`` | ``FORMS``: what the rest of puffer_mlx asks it for (``networks/forms.py``) |
| ``torch_module.py`` | upstream's torch class, written anew |
| ``cell.h`` | a step's equations and gradient, in C for CPUs and GPUs: see ``ops/words.h`` |
| ``scan.h`` | C++ for training: all steps, forward and backward; see ``ops/cpu/binding.h`` |
| ``step.h`` | a layer of the compiled step, likewise |
| ``layers.metal.h`` | the layers in a rollout's step, for Metal and CUDA: see ``ops/gpu/acting`` |
| ``kernels.metal.h``, ``gpu.py`` | the kernels' text, for Metal and CUDA, and what launches them |
"""

from typing import Any

from puffer_mlx.policy.networks.catalog import NETWORKS, Network

__all__ = ["NETWORKS", "Network"]  # and each network's class by its name


def __getattr__(name: str) -> Any:
    if name in NETWORKS:
        return NETWORKS[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
