"""Axes, layouts and spaces as plain JSON data, and back: what a saved ``Symmetry`` is made of."""

from fractions import Fraction
from typing import Any

from .spaces import Axis, Fixed, Layout, Leaf, Part, Product, Space, Sum

__all__ = ["axis_from_dict", "axis_to_dict", "layout_from_dict", "layout_to_dict", "space_from_dict", "space_to_dict"]


def axis_to_dict(axis: Axis) -> dict[str, Any]:
    """Plain data of one axis; exponents are written as fractions in text, so nothing is rounded."""
    match axis:
        case Leaf(space, size, scale, sign, variance):
            exponents = [str(e) for e in scale]
            return {"leaf": space, "size": size, "scale": exponents, "sign": list(sign), "variance": variance}
        case Fixed(size, reason):
            return {"fixed": reason, "size": size}
        case Product(factors):
            return {"product": [axis_to_dict(f) for f in factors]}
        case Sum(parts):
            return {"sum": [{"ranges": [list(r) for r in p.ranges], "axis": axis_to_dict(p.axis)} for p in parts]}


def axis_from_dict(data: dict[str, Any]) -> Axis:
    """Rebuild an axis from ``axis_to_dict``'s data."""
    if "leaf" in data:
        exponents = tuple(Fraction(e) for e in data["scale"])
        return Leaf(data["leaf"], data["size"], exponents, tuple(data["sign"]), data["variance"])
    if "fixed" in data:
        return Fixed(data["size"], data["fixed"])
    if "product" in data:
        return Product(tuple(axis_from_dict(f) for f in data["product"]))
    parts = (Part(tuple((a, b) for a, b in p["ranges"]), axis_from_dict(p["axis"])) for p in data["sum"])
    return Sum(tuple(parts))


def layout_to_dict(layout: Layout) -> list[dict[str, Any]]:
    """Plain data of one tensor's layout."""
    return [axis_to_dict(axis) for axis in layout.axes]


def layout_from_dict(data: list[dict[str, Any]]) -> Layout:
    """Rebuild a layout from ``layout_to_dict``'s data."""
    return Layout(tuple(axis_from_dict(axis) for axis in data))


def space_to_dict(space: Space) -> dict[str, Any]:
    """Plain data of one space."""
    return {**vars(space), "parents": list(space.parents), "reasons": list(space.reasons)}


def space_from_dict(data: dict[str, Any]) -> Space:
    """Rebuild a space from ``space_to_dict``'s data."""
    return Space(**{**data, "parents": tuple(data["parents"]), "reasons": tuple(data["reasons"])})
