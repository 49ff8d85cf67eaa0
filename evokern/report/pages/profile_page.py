"""HTML page of a candidate's profile: source lines with time, stalls and bank conflicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evokern.analysis.profile.counters import CountedCandidate
from evokern.analysis.profile.simulated import CandidateProfile, LineProfile
from evokern.escaping import visible
from evokern.templating import environment
from evokern.wording import count_noun, microseconds

HOT = 0.05
"""Minimum share of the launches' total time for a line to count as hot."""
MOST_HOT = 12
"""Maximum number of hot lines listed at the top."""


@dataclass(frozen=True)
class SourceLine:
    """A source line with its totals over all launches."""

    number: int
    """Line number."""
    anchor: str
    """HTML id of the row."""
    text: str
    """Text of the line."""
    time_us: str = ""
    """Time in µs that the line's instructions alone would take."""
    share: float = 0.0
    """Time of the line relative to the largest time of all lines, from 0 to 1."""
    hot: bool = False
    """Whether the line is listed at the top."""
    resource: str = ""
    """Resource with the highest load."""
    issued: str = ""
    """Number of warp instructions."""
    stalls: str = ""
    """Mean number of clocks that a warp waits at the line."""
    stalled: float = 0.0
    """Waiting clocks of the line relative to the largest number of all lines, from 0 to 1."""
    conflicts: str = ""
    """Number of shared-memory wavefronts, with its ratio to the minimum if there are bank conflicts."""
    conflicted: bool = False
    """Whether there are bank conflicts."""
    sectors: str = ""
    """Number of global-memory sectors, with its ratio to the minimum."""
    divergent: str = ""
    """Share of warp instructions issued while other active lanes were at another instruction."""


def profile_page(found: CandidateProfile | CountedCandidate, sources: Mapping[str, str], file: str) -> str:
    """Return a self-contained HTML page without scripts.

    Args:
        found: Profile to show.
        sources: Header texts by name; the kernel's own source has the empty name.
        file: File name of the kernel's own source.
    """
    simulated = isinstance(found, CandidateProfile)
    view: dict[str, Any] = {
        "title": found.title,
        "about": f"{found.kernel} at {found.in_words} on {found.device}",
        "verdict": found.verdict,
        "genes": [f"{name}={value}" for name, value in found.config.items()],
        "fault": None,
        "predicted": simulated,
        "hot": [],
        "unnamed": "",
    }
    if isinstance(found, CandidateProfile):
        lines = merged(found)
        files = [_file(name, text, file, lines) for name, text in sources.items() if _counted(name, lines)]
        view |= {
            "tiles": _tiles(found),
            "launches": [_launch(one) for one in found.launches],
            "files": files or [_file("", sources.get("", ""), file, {})],
            "hot": sorted((line for one in files for line in one["lines"] if line.hot), key=lambda line: -line.share),
            "fault": found.fault,
        }
        outside = [line for (_, number), line in lines.items() if not number]
        if outside:
            view["unnamed"] = microseconds(sum(line["time_us"] for line in outside))
    else:
        view |= {"tiles": _counted_tiles(found), "counters": _counters(found), "launches": [],
                 "files": [_file(name, text, file, {}) for name, text in sources.items()]}  # fmt: skip
    return environment("evokern.report").get_template("profile.html.j2").render(view)


def merged(found: CandidateProfile) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the totals of all launches by file (empty for the kernel's own source) and line."""
    lines: dict[tuple[str, int], dict[str, Any]] = {}
    for launch in found.launches:
        for line in launch.lines:
            known = lines.setdefault((line.file, line.line), {"resource": line.resource, "most_us": 0.0})
            if line.time_us > known["most_us"]:
                known |= {"resource": line.resource, "most_us": line.time_us}
            for name in _SUMMED:
                known[name] = known.get(name, 0) + getattr(line, name)
    return lines


_SUMMED = (
    *("time_us", "warp_instructions", "divergent", "shared_wavefronts", "ideal_wavefronts"),
    *("global_sectors", "ideal_sectors", "stall_clocks"),
)
assert set(_SUMMED) <= set(LineProfile.__dataclass_fields__)


def _counted(name: str, lines: Mapping[tuple[str, int], object]) -> bool:
    return any(file == name and number for file, number in lines)


def _file(name: str, text: str, own: str, lines: Mapping[tuple[str, int], Mapping[str, Any]]) -> dict[str, Any]:
    """Return a file with its lines; `counted` says whether they have counters."""
    shown, mine = [], {number: line for (file, number), line in lines.items() if file == name and number}
    most_us = max((line["time_us"] for line in lines.values()), default=0.0) or 1.0
    total_us = sum(line["time_us"] for line in lines.values()) or 1.0
    most_stalls = max((line["stall_clocks"] for line in lines.values()), default=0.0) or 1.0
    ranked = sorted(lines.values(), key=lambda line: -line["time_us"])[:MOST_HOT]
    for number, words in enumerate(text.splitlines(), 1):
        anchor, line = f"{name or own}:{number}", mine.get(number)
        words = visible(words.expandtabs(4))
        if line is None:
            shown.append(SourceLine(number, anchor, words))
            continue
        shown.append(
            SourceLine(
                number, anchor, words,
                time_us=microseconds(line["time_us"]),
                share=line["time_us"] / most_us,
                hot=line["time_us"] >= HOT * total_us and line in ranked,
                resource=line["resource"],
                issued=f"{line['warp_instructions']:,}",
                stalls=f"{line['stall_clocks']:,.0f}" if line["stall_clocks"] >= 0.5 else "",
                stalled=line["stall_clocks"] / most_stalls,
                conflicts=_against(line["shared_wavefronts"], line["ideal_wavefronts"]),
                conflicted=line["shared_wavefronts"] > line["ideal_wavefronts"],
                sectors=_against(line["global_sectors"], line["ideal_sectors"]),
                divergent=_percent(line["divergent"], line["warp_instructions"]),
            )
        )  # fmt: skip
    return {"name": name or own, "lines": shown, "counted": bool(mine)}


def _against(number: int, least: int) -> str:
    """Return a count, with its ratio to the minimum if larger."""
    if not number:
        return ""
    return f"{number:,} ({number / least:.1f}×)" if least and number > least else f"{number:,}"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if part and whole else ""


def _tiles(found: CandidateProfile) -> list[tuple[str, str, str]]:
    first = found.launches[0].resources
    waits = {cause: sum(one.waits_clocks[cause] for one in found.launches) for cause in found.launches[0].waits_clocks}
    longest = max(waits, key=waits.__getitem__)
    return [
        (f"{microseconds(found.time_us)} µs", "predicted time of a call", f"launches: {len(found.launches)}"),
        (found.verdict.bound, "bottleneck", found.verdict.advice),
        (f"{waits[longest]:,.0f} clocks", f"longest mean wait of a warp: {longest.replace('_', ' ')}",
         ", ".join(f"{cause.replace('_', ' ')} {clocks:,.0f}" for cause, clocks in waits.items() if cause != longest)),
        (f"{first.registers} registers", "per thread",
         f"{first.spill_bytes} bytes spilled, occupancy {100 * first.occupancy:.0f} %"),
    ]  # fmt: skip


def _launch(launch: Any) -> dict[str, Any]:
    blocks = launch.grid[0] * launch.grid[1] * launch.grid[2]
    most = max(launch.terms_us.values(), default=0.0) or 1.0
    terms = sorted(launch.terms_us.items(), key=lambda pair: -pair[1])
    return {
        "entry": launch.entry,
        "shape": f"{blocks:,} blocks ({_extent(launch.grid)}) of {_extent(launch.block)} threads, "
        f"{count_noun(launch.blocks_per_sm, 'block')} per SM",
        "counted": f"counted on {len(launch.sampled_blocks):,} of {blocks:,} blocks",
        "time": microseconds(launch.time_us),
        "terms": [(name, microseconds(us), us / most) for name, us in terms if us > 0],
        "waits": [(cause.replace("_", " "), f"{clocks:,.0f}") for cause, clocks in launch.waits_clocks.items()],
    }


def _extent(extent: Sequence[int]) -> str:
    return "×".join(map(str, extent))


def _counted_tiles(found: CountedCandidate) -> list[tuple[str, str, str]]:
    searched = f"{microseconds(found.time_us)} µs in the search" if found.time_us else ""
    return [
        (f"{microseconds(found.duration_us)} µs", "a call under Nsight Compute", searched),
        (found.verdict.bound, "bottleneck", found.verdict.advice),
    ]


def _counters(found: CountedCandidate) -> list[tuple[str, str, str]]:
    """Return the label, value and unit of each counter."""
    from evokern.analysis.profile.nsight import METRICS

    rows: list[tuple[str, str, str]] = []
    for metric in METRICS:
        value = found.counters.get(metric.key)
        text = "n/a" if value is None else f"{value:,.0f}" if metric.unit in ("ns", "") else f"{value:.1f}"
        rows.append((metric.label, text, metric.unit))
    return rows
