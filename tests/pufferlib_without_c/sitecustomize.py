"""On the path of PufferLib 3.0's setup.py: its Python alone is installed, by pip and nothing else.

With C it fetches raylib and Box2D from GitHub. NO_OCEAN=1 leaves C out, and leaves a name undefined
that setup.py uses nevertheless.
"""

import builtins

builtins.c_extension_paths = []  # type: ignore[attr-defined]
