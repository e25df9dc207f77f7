"""``python -m dashboard.export``: a run as files; see `dashboard.export.command`."""

import logging
import sys


def main() -> int:
    """Command line; returns the exit code."""
    # Streamlit warns of everything that runs without a browser, from its import on. Errors are still said.
    logging.disable(logging.WARNING)
    from dashboard.export.command import command

    return command()


if __name__ == "__main__":
    sys.exit(main())
