"""The RPC reinforcement learning benchmark's own command: the same as `podium bench rpc`."""

from __future__ import annotations

import sys

from podium.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", "rpc", *sys.argv[1:]]))
