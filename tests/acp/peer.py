"""The scripted agent as a program; what it can do is told in `playing.py`.

Apart from that, because Python compiles a program at every start, and what it loads only once.
"""

import os
import sys

if __name__ == "__main__":
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    from scripted_agent import play

    play(sys.argv[1])
