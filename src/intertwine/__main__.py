"""``python -m intertwine``: the command line, where the script is not on the path."""

import os
import sys

if __name__ == "__main__":
    # Python puts the current folder first, where its files would shadow packages; commands look there last.
    if not sys.flags.safe_path and sys.path[:1] in ([""], [os.getcwd()]):
        del sys.path[0]

    from .cli import main

    main()
