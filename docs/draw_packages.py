"""Draw the subpackages of evokern and their imports as `docs/packages.svg`.

    python docs/draw_packages.py [--check]

A package is a module or a folder directly below `evokern/`. It is drawn above every package that it imports. Imports
inside functions count; imports for a type checker do not. An arrow is omitted if other arrows imply it (transitive
reduction). The picture contains no line counts, so it changes only with the imports.
"""

from __future__ import annotations

import ast
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
PACKAGE = FOLDER.parent / "evokern"
PICTURE = FOLDER / "packages.svg"

Edges = dict[str, set[str]]
"""Package → packages that it imports."""

LINE = 15
"""Height of a line of text, pixels."""
LETTER = 6.7
"""Width of a letter of a description, pixels."""
WRAP = 30
"""Number of letters in a line of a description."""
GAP, RISE, EDGE = 26, 56, 24
"""Pixels between boxes, between layers, and around the picture."""
PASSAGE = 14.0
"""Width in pixels of an arrow's passage through a layer."""
SWEEPS = 12
"""Number of passes that move connected boxes closer to each other."""


@dataclass(frozen=True)
class Package:
    """A box of the picture."""

    name: str
    """Name of the folder or module."""
    parts: tuple[str, ...]
    """Folders inside the package."""
    lines: tuple[str, ...]
    """Lines of the description."""

    @property
    def width(self) -> float:
        """Pixels."""
        longest = max(len(self.name) * 1.35, *(len(line) for line in (*self.lines, " · ".join(self.parts))))
        return longest * LETTER + 20

    @property
    def height(self) -> float:
        """Pixels."""
        return LINE * (1 + len(self.lines) + bool(self.parts)) + 14


def packages_of(root: Path) -> dict[str, Package]:
    """Return the subpackages and modules directly below a folder, sorted by name."""
    found = {}
    for path in sorted(root.iterdir()):
        if path.name.startswith(("__", "_data")) or not (path.suffix == ".py" or (path / "__init__.py").is_file()):
            continue
        about = (
            ast.get_docstring(ast.parse((path if path.is_file() else path / "__init__.py").read_text("utf-8"))) or ""
        )
        first = about.replace("\n", " ").split(". ")[0].rstrip(".").replace("`", "")
        first = first.split(": ", 1)[1] if first.lower().startswith(path.stem.replace("_", " ") + ": ") else first
        parts = [] if path.is_file() else [p.name for p in sorted(path.iterdir()) if (p / "__init__.py").is_file()]
        found[path.stem] = Package(path.stem, tuple(parts), tuple(textwrap.wrap(first, WRAP)))
    return found


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield the modules that a module imports, without imports for a type checker."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        if isinstance(node, ast.ImportFrom) and node.module == "evokern":
            yield from (f"evokern.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        yield from imports(node)


def edges_of(root: Path, packages: Mapping[str, Package]) -> Edges:
    """Return the packages that each package imports."""
    edges: Edges = {name: set() for name in packages}
    for path in sorted(root.rglob("*.py")):
        package = path.relative_to(root).parts[0].removesuffix(".py")
        if package in packages:
            for name in imports(ast.parse(path.read_text("utf-8"))):
                parts = name.split(".")
                if parts[0] == root.name and len(parts) > 1 and parts[1] in packages and parts[1] != package:
                    edges[package].add(parts[1])
    return edges


def layers_of(edges: Edges) -> dict[str, int]:
    """Return the layer of each package: one above the highest package that it imports.

    Raises:
        ValueError: packages import each other.
    """
    layers: dict[str, int] = {}
    while len(layers) < len(edges):
        ready = [name for name in edges if name not in layers and edges[name] <= layers.keys()]
        if not ready:
            raise ValueError(f"packages import each other: {', '.join(sorted(edges.keys() - layers.keys()))}")
        layers |= {name: 1 + max((layers[other] for other in edges[name]), default=-1) for name in ready}
    return layers


def reduced(edges: Edges) -> Edges:
    """Return the edges, without those for which a longer path exists."""

    def reach(name: str) -> set[str]:
        return set().union(edges[name], *(reach(other) for other in edges[name]))

    return {name: others - set().union(*(reach(other) for other in others)) for name, others in edges.items()}


def with_passages(edges: Edges, layers: Mapping[str, int]) -> tuple[Edges, dict[str, int]]:
    """Return edges between adjacent layers; a longer edge gets a passage in each layer that it crosses."""
    short: Edges = {name: set() for name in edges}
    where = dict(layers)
    for name, others in edges.items():
        for other in sorted(others):
            at = name
            for layer in range(layers[name] - 1, layers[other], -1):
                passage = f"{name}>{other}>{layer}"
                where[passage] = layer
                short[at].add(passage)
                short[passage] = set()
                at = passage
            short[at].add(other)
    return short, where


def arranged(edges: Edges, layers: Mapping[str, int]) -> list[list[str]]:
    """Return the content of each layer from left to right, lowest layer first, with connected boxes close together."""
    rows = [[name for name in edges if layers[name] == layer] for layer in range(max(layers.values()) + 1)]
    near: Edges = {name: set(others) for name, others in edges.items()}
    for name, others in edges.items():
        for other in others:
            near[other].add(name)
    for _ in range(SWEEPS):
        at = {name: (index + 0.5) / len(row) for row in rows for index, name in enumerate(row)}
        for row in rows:
            row.sort(key=lambda name: (sum(at[o] for o in sorted(near[name])) / max(len(near[name]), 1), name))
            at |= {name: (index + 0.5) / len(row) for index, name in enumerate(row)}
    return rows


def draw(root: Path = PACKAGE) -> str:
    """Return the picture of the packages below a folder as SVG."""
    packages = packages_of(root)
    edges = edges_of(root, packages)
    shown, layers = with_passages(reduced(edges), layers_of(edges))
    rows = arranged(shown, layers)
    size = {
        name: (packages[name].width, packages[name].height) if name in packages else (PASSAGE, 0.0) for name in shown
    }
    width = max(sum(size[name][0] + GAP for name in row) for row in rows) + 2 * EDGE
    place: dict[str, tuple[float, float, float]] = {}
    y = float(EDGE)
    for row in reversed(rows):
        tallest = max(size[name][1] for name in row)
        spare = (width - 2 * EDGE - sum(size[name][0] for name in row)) / len(row)
        x = EDGE + spare / 2
        for name in row:
            own = size[name][1] if name in packages else tallest
            place[name] = x + size[name][0] / 2, y, y + own
            x += size[name][0] + spare
        y += tallest + RISE
    height = y - RISE + EDGE
    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="12">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#7a8699"/></marker></defs>',
        f'<rect width="{width:.0f}" height="{height:.0f}" rx="8" fill="#f7f8fa" stroke="#c9d0da"/>',
    ]
    svg += [_arrow(shown, place, name, other) for name in packages for other in sorted(shown[name])]
    svg += [_box(package, place[name][0] - package.width / 2, place[name][1]) for name, package in packages.items()]
    return "\n".join([*svg, "</svg>", ""])


def _arrow(edges: Edges, place: Mapping[str, tuple[float, float, float]], name: str, other: str) -> str:
    """Return an arrow from a package down to another one, through the passages of the layers between them."""
    x, _, y = place[name]
    path = f"M{x:.0f} {y:.0f}"
    while True:
        x2, top, bottom = place[other]
        ends = not edges[other] or ">" not in other
        bend = (top - y) / 2
        path += f" C{x:.0f} {y + bend:.0f} {x2:.0f} {top - bend:.0f} {x2:.0f} {top - 2 * ends:.0f}"
        if ends:
            return f'<path d="{path}" fill="none" stroke="#7a8699" stroke-width="1.2" marker-end="url(#tip)"/>'
        path += f" L{x2:.0f} {bottom:.0f}"
        x, y, other = x2, bottom, next(iter(edges[other]))


def _box(package: Package, x: float, y: float) -> str:
    lines = [f'<tspan x="{x + 10:.0f}" font-size="14" font-weight="bold" fill="#1d3557">{escape(package.name)}</tspan>']
    if package.parts:
        parts = escape(" · ".join(package.parts))
        lines.append(f'<tspan x="{x + 10:.0f}" dy="{LINE}" fill="#9a3412">{parts}</tspan>')
    lines += [f'<tspan x="{x + 10:.0f}" dy="{LINE}" fill="#333a45">{escape(line)}</tspan>' for line in package.lines]
    frame = f'<rect x="{x:.0f}" y="{y:.0f}" width="{package.width:.0f}" height="{package.height:.0f}" rx="5"'
    return f'{frame} fill="#ffffff" stroke="#4a6fa5"/><text y="{y + LINE + 3:.0f}">{"".join(lines)}</text>'


def main() -> None:
    """Write the picture; with `--check`, only return 1 if the existing picture differs."""
    picture = draw()
    if "--check" in sys.argv:
        sys.exit(int(picture != PICTURE.read_text("utf-8")))
    PICTURE.write_text(picture, "utf-8")


if __name__ == "__main__":
    main()
