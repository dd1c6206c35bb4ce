"""`fewbit`, and `python -m fewbit`."""

import sys

from .errors import FewbitError


def run() -> None:
    """Run the command; a FewbitError while it loads (FEWBIT_ISA is checked then) ends it with one line too."""
    try:
        from .cli import main
    except FewbitError as error:
        sys.exit(f"fewbit: {error}")
    main(prog_name="fewbit")


if __name__ == "__main__":
    run()
