"""What ``puffer-mlx check-gpu`` leaves out: ``python tests/hardware``, with the same options."""

import sys
from pathlib import Path

from puffer_mlx.cli.check_gpu import check
from puffer_mlx.cli.exit_codes import reported

# isort: split
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from hardware_items import ITEMS  # noqa: E402  after puffer_mlx, which chooses MLX's BLAS


@reported
def main(argv: list[str]) -> int:
    """As check-gpu's, of other items."""
    return check(argv, ITEMS, str(HERE))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
