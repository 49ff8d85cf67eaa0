"""Parse trees of CUDA source, made by tree-sitter, which is imported at the first use."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tree_sitter import Node
else:
    Node = Any

__all__ = ["Node", "above", "children", "conjuncts", "expressions", "field", "line", "parse", "text", "walk"]


@cache
def _parser() -> Any:
    import tree_sitter
    import tree_sitter_cuda

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_cuda.language()))


def parse(text: str) -> Node:
    """Return the root of a text's parse tree; errors in the text become `ERROR` nodes."""
    root: Node = _parser().parse(text.encode()).root_node
    return root


@cache
def expressions(text: str) -> tuple[Node, ...]:
    """Return the nodes of expressions that are separated by commas, such as the arguments of a call."""
    root = parse(f"void f() {{ f({text}); }}")
    call = next((node for node in walk(root) if node.type == "argument_list"), None)
    return tuple(children(call)) if call is not None else ()


def text(node: Node | None) -> str:
    """Return the source text of a node, with white space reduced; empty for None."""
    return " ".join(node.text.decode().split()) if node is not None and node.text is not None else ""


def children(node: Node) -> Iterator[Node]:
    """Yield the named children of a node, without comments."""
    yield from (child for child in node.named_children if child.type != "comment")


def walk(node: Node) -> Iterator[Node]:
    """Yield a node and everything below it, in order."""
    waiting = [node]
    while waiting:
        one = waiting.pop()
        yield one
        waiting.extend(reversed(one.children))


def above(node: Node) -> Iterator[Node]:
    """Yield the nodes around a node, innermost first."""
    outer = node.parent
    while outer is not None:
        yield outer
        outer = outer.parent


def conjuncts(node: Node) -> Iterator[Node]:
    """Yield the conditions that `&&` joins."""
    if node.type == "parenthesized_expression":
        for child in children(node):
            yield from conjuncts(child)
    elif node.type == "binary_expression" and text(field(node, "operator")) in ("&&", "and"):
        sides = (field(node, "left"), field(node, "right"))
        for side in filter(None, sides):
            yield from conjuncts(side)
    else:
        yield node


def field(node: Node, name: str) -> Node | None:
    """Return the child in a field of the grammar, or None."""
    return node.child_by_field_name(name)


def line(node: Node) -> int:
    """Return the line of a node, counted from 1."""
    return node.start_point[0] + 1
