"""What the sources claim, each measured: a small table, and a sentence that says whether the claim held.

    python benchmarks/claims.py                        all of them
    python benchmarks/claims.py forgets gradients      some, by name
    python benchmarks/claims.py --list                 what there is
    python benchmarks/claims.py memory --json          the numbers and the verdicts, one JSON object a line
    python benchmarks/claims.py scores --seeds 7 8 9   with other seeds, where a claim takes them

Every claim is sized for two cores and less than two minutes; only `parallel` and `memory` use a GPU where there is one,
and `parallel` needs a machine that does nothing else. Whether it held is computed from the numbers that were
measured, and may be no. A small size can be too small for a claim: the verdict is about these sizes.
"""

import argparse
import json
import os
import sys
import time

import torch
from claimed import attending, costs, depth, placing, remembering, translating
from claimed.claim import Claim
from timing import hardware, table

CLAIMS: dict[str, Claim] = {**remembering.CLAIMS, **translating.CLAIMS, **placing.CLAIMS, **costs.CLAIMS,
                            **attending.CLAIMS, **depth.CLAIMS}
SEEDED = ("normalisers", "scores", "heads")
"""Those whose seeds can be chosen."""


def tell(name: str, as_json: bool, seeds: list[int] | None = None) -> bool:
    """Measure a claim, print it, and say whether it held."""
    claim, began = CLAIMS[name], time.perf_counter()
    found = claim.measure() if seeds is None else claim.measure(seeds=seeds)
    held, why = claim.judge(found)
    seconds = time.perf_counter() - began
    if as_json:
        print(json.dumps({"claim": name, "sentence": claim.sentence, "held": held, "why": why, "seconds": seconds,
                          "numbers": found}), flush=True)
    else:
        word = "held" if held else "did not hold"
        print(f"\n{name}: {claim.sentence}\n{table(*claim.shown(found))}\nIt {word}: {why}. ({seconds:.0f} s)",
              flush=True)
    return held


def main() -> None:
    """Measure the claims that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("claims", nargs="*", metavar="claim", help=f"of {', '.join(CLAIMS)}; all where none is named")
    parser.add_argument("--json", action="store_true", dest="as_json")
    parser.add_argument("--seeds", type=int, nargs="+", help=f"other ones, of {', '.join(SEEDED)}")
    parser.add_argument("--list", action="store_true", help="say what there is, and end")
    asked = parser.parse_args()
    unknown = [name for name in asked.claims if name not in CLAIMS]
    if unknown:
        parser.error(f"unknown claim {unknown[0]!r}: choose from {', '.join(CLAIMS)}")
    fixed = [name for name in asked.claims or CLAIMS if name not in SEEDED]
    if asked.seeds and fixed:
        parser.error(f"--seeds: {fixed[0]} has its own; those of {', '.join(SEEDED)} can be chosen")
    if asked.list:
        print("\n".join(f"{name:12}  {claim.sentence}" for name, claim in CLAIMS.items()))
        return
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler, which counts memory, would tell of every start
    torch.manual_seed(0)
    if not asked.as_json:
        command = " ".join(["python", "benchmarks/claims.py", *sys.argv[1:]])
        print(f"{hardware('cuda' if torch.cuda.is_available() else 'cpu')}\n`{command}`")
    for name in asked.claims or CLAIMS:
        tell(name, asked.as_json, asked.seeds)


if __name__ == "__main__":
    main()
