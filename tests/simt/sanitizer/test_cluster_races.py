"""Random programs of a cluster, told apart from one another by vector clocks over every access of every thread."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from cluster_programs import PRELUDE, ROOM, draw
from race_oracle import judge
from simt_tools import module_of

from evokern import simt

BATCH = 50
"""Programs of one compile."""


def disagreements(first: int, count: int, space: str) -> tuple[list[str], Counter[str]]:
    """Return the programs on which the sanitizer and the oracle differ, and how many there were of each level."""
    wrong, levels = [], Counter[str]()
    for start in range(first, first + count, BATCH):
        programs = [draw(seed, space) for seed in range(start, min(start + BATCH, first + count))]
        module = module_of(PRELUDE + "".join(program.text() for program in programs), (), "compute_90")
        for program in programs:
            verdict = judge(
                program.judged(), program.threads, program.expected, program.block, ROOM if space == "shared" else 0
            )
            memory, clusters = simt.Memory(), 2 if space == "shared" else 1
            out = memory.allocate("out", np.zeros(program.threads, np.uint32))
            scratch = memory.allocate("scratch", np.zeros(ROOM * program.ranks, np.uint8))
            outs = [[out, scratch]]
            if clusters == 2:  # a launch beside it, so that one cluster stands for both
                outs.append([memory.allocate("more", np.zeros(program.threads, np.uint32)), scratch])
            along = (1, program.ranks, 1) if program.seed % 2 else (program.ranks, 1, 1)
            results = simt.launch_many(
                module,
                simt.LaunchSpec(program.entry, along, (program.block, 1, 1), cluster=along),
                outs,
                memory,
                simt.LaunchOptions(count=False),
            )
            findings = [finding for result in results for finding in result.findings]
            lifetime = {
                "may not have started" in finding.hint for finding in findings if finding.kind == "cluster_lifetime"
            }
            wanted = {early for early, holds in ((True, verdict.early), (False, verdict.late)) if holds}
            levels[verdict.level] += 1
            levels.update(f"lifetime {kind}" for kind in wanted)
            name = f"seed {program.seed} ({', '.join(program.names)})"
            if lifetime != wanted:
                wrong.append(f"{name}: lifetime {lifetime}, is {wanted}")
            against = verdict.fault_evidence(name, space, results, beside="cluster_lifetime")
            wrong += [against] if against else []
    return wrong, levels


@pytest.mark.thorough
@pytest.mark.parametrize(("space", "count"), [("shared", 50), ("global", 25)])
def test_races_between_blocks_are_told_from_what_is_ordered(space: str, count: int) -> None:
    """Programs drawn anew at each run: a race, a race within a warp, or none, as the oracle says."""
    wrong, levels = disagreements(random.SystemRandom().randrange(1 << 30), count, space)
    assert not wrong, "\n".join(wrong)
    assert min(levels["error"], levels["clean"]) > count // 10


def test_a_fence_of_a_block_publishes_nothing_to_another_block() -> None:
    """The first fence covers the cluster, the second, behind the write, the block alone: the reader elsewhere races."""
    wrong, levels = disagreements(840300472, 1, "shared")
    assert not wrong
    assert levels["error"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("space", ["shared", "global"])
def test_a_thousand_programs_of_clusters(space: str) -> None:
    """A thousand programs, drawn anew at each run, are all told apart."""
    wrong, levels = disagreements(random.SystemRandom().randrange(1 << 30), 1000, space)
    assert not wrong, "\n".join(wrong)
    assert min(levels["error"], levels["clean"]) > 100
