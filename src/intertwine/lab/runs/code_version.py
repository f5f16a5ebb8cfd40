"""A hash of the source code that a module uses, so that results of other code are not taken for its own."""

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec, resolve_name
from pathlib import Path


@cache
def code_version(module: str, within: str = "", without: tuple[str, ...] = (), judging: str = "") -> str:
    """Hash the syntax of a module and of all it imports, directly or not, inside the same top-level package.

    Comments, docstrings, lists of names and formatting do not count; neither do other packages, whose versions a
    result's provenance states. Imports inside functions count, since a function may run. Names that are imported as
    text (lazy registries) are not seen.

    Args:
        module: Its full name.
        within: Package that imports are followed in; the top-level one if empty.
        without: Modules that do not count.
        judging: Name of a type; functions that return it, or lists of it, do not count.

    Returns:
        32 hexadecimal digits.

    Examples:
        >>> code_version("intertwine.groups.activations.gelu") == code_version("intertwine.groups.capacity")
        False
    """
    package = within or module.partition(".")[0]
    seen: dict[str, str] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        file = None if name in seen or name in without else _source(name)
        if file is None:
            continue
        tree = ast.parse(file.read_bytes())
        seen[name] = _digest(tree, judging)
        is_package = file.name == "__init__.py"
        waiting += [n for n in _imports(tree, name, is_package) if f"{n}.".startswith(f"{package}.") and n not in seen]
    text = "\n".join(f"{name} {digest}" for name, digest in sorted(seen.items()))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _source(module: str) -> Path | None:
    """The file of a module, found without importing it; ``None`` where the name is of something inside a module."""
    package, *rest = module.split(".")
    place = _place(package)
    if place is None or not place.is_dir():
        return None if rest else place
    file = place.joinpath(*rest)
    return next((f for f in (file / "__init__.py", file.with_suffix(".py")) if f.is_file()), None)


@cache
def _place(package: str) -> Path | None:
    """The folder of a top-level package, or the file of a top-level module."""
    if package == "__main__":  # a script, or a prompt: it has no version
        return None
    spec = find_spec(package)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    return Path(spec.origin).parent if spec.submodule_search_locations else Path(spec.origin)


def _imports(tree: ast.AST, module: str, is_package: bool) -> Iterator[str]:
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package) if node.level else node.module or ""
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)  # a submodule, perhaps


def _digest(tree: ast.Module, judging: str) -> str:
    tree.body = [node for node in tree.body if not _changes_nothing(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if judging:
                node.body = [part for part in node.body if not _returns(part, judging)]
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body = node.body[1:]
    return hashlib.blake2b(ast.dump(tree).encode(), digest_size=16).hexdigest()


def _returns(node: ast.stmt, name: str) -> bool:
    if not isinstance(node, ast.FunctionDef) or node.returns is None:
        return False
    return any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(node.returns))


def _changes_nothing(node: ast.stmt) -> bool:
    """``from __future__ import ...`` and ``__all__ = ...``."""
    if isinstance(node, ast.Assign):
        return [ast.unparse(target) for target in node.targets] == ["__all__"]
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"
