"""`fewbit`, and `python -m fewbit`."""


def run() -> None:
    """Run the command."""
    from .cli import main

    main(prog_name="fewbit")


if __name__ == "__main__":
    run()
