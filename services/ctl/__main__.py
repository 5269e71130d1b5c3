"""Starts the command line, or says how to install what it needs."""

import sys


def main() -> None:
    """Runs the command line; never returns."""
    try:
        from services.ctl.main import main as command_line

        command_line()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("click", "rich"):
            raise
        sys.exit(f"flannelette: the command line needs the package {package}: pip install 'flannelette[ctl]'")


if __name__ == "__main__":
    main()
