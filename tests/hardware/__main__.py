"""All checks of a machine: ``python tests/hardware``, with the options of check-gpu."""

import sys
from pathlib import Path

from puffer_mlx.cli.check_gpu import check_machine
from puffer_mlx.cli.exit_codes import with_exit_code

# isort: split
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from hardware_items import ITEMS  # noqa: E402  after puffer_mlx, which chooses MLX's BLAS


@with_exit_code
def main(argv: list[str]) -> int:
    """Run check-gpu with the items of this folder, too. Returns the exit status."""
    return check_machine(argv, ITEMS, str(HERE))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
