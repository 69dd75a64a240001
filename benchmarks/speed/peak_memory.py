"""Peak memory of one pass over the logits, in a process of its own: `python peak_memory.py calibrant|torch n k`.

Prints (logits + growth) / logits, where growth is the highest resident size during the pass minus the resident size
before it, both read from Linux's /proc/self/status.
"""

import re
import sys
from pathlib import Path

import torch

from calibrant.predictions.facts import from_logits


def status(field):
    return 1024 * int(re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text()).group(1))


def main(contender, n, k):
    torch.set_num_threads(2)
    logits, labels = torch.randn(n, k), torch.randint(k, (n,))
    before = status("VmRSS")
    if contender == "calibrant":
        from_logits(logits, labels)
    else:
        torch.logsumexp(logits, 1)
    print((logits.nbytes + status("VmHWM") - before) / logits.nbytes)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
