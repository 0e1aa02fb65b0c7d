"""``python -m moxtrace`` is the command ``moxtrace``."""

from moxtrace.cli import main

if __name__ == "__main__":
    main()
