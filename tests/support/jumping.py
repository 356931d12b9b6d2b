"""A server whose machine's clock jumps: ``python -m tests.support.jumping serve ...``.

The gate, a process of its own, has the same clock (``clock/sitecustomize.py``).
"""

from ccfcpp.cli.app import main
from tests.support.clocks import follow_flower

if __name__ == "__main__":
    follow_flower()
    main()
