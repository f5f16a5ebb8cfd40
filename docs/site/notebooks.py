"""Notebooks of the site: every script of `examples/`, run as a notebook, with what it printed, showed and wrote.

A script that fails fails the build. Pages that a script writes are published beside it and make up the gallery. What
ran is kept in `build/notebooks` until the script or the library changes.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jupytext
import nbclient
import nbformat
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "build" / "notebooks"
_SHOWN: dict[str, str] = {}  # what a cell showed as HTML, by the mark that stands for it until Markdown was rendered


def on_files(files: Files, config: Any) -> Files:
    """Add a page, the notebook itself and its pages for every example, and the gallery."""
    scripts = sorted((ROOT / "examples").glob("*.py"))
    library = _digest(sorted((ROOT / "src").rglob("*.py")))
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # two notebooks at a time, a thread each
    os.environ.setdefault("INTERTWINE_DATA", str(ROOT.parent / "shared" / "data"))  # as tests and benchmarks look
    with ThreadPoolExecutor(2) as pool:
        folders = list(pool.map(lambda script: _run(script, library), scripts))
    gallery = []
    for folder in folders:
        name = folder.name.split("-")[0]
        notebook = nbformat.read(folder / "notebook.ipynb", as_version=4)
        files.append(File.generated(config, f"notebooks/{name}.md", content="\n\n".join(_page(name, notebook))))
        files.append(File.generated(config, f"notebooks/{name}.ipynb", abs_src_path=str(folder / "notebook.ipynb")))
        title = notebook.cells[0].source.splitlines()[0].removeprefix("# ")
        for written in sorted(folder.glob("*.html")):
            files.append(File.generated(config, f"gallery/{written.name}", abs_src_path=str(written)))
            gallery.append((title, name, written.name))
    files.append(File.generated(config, "gallery/index.md", content=_gallery(gallery)))
    return files


def on_page_content(content: str, page: Any, **_: Any) -> str:
    """Put what cells showed in the place of their marks."""
    if not page.file.src_path.startswith("notebooks/"):
        return content
    return re.sub(r"<p>(@@shown-[\w-]+@@)</p>", lambda mark: f'<div class="shown">{_SHOWN[mark[1]]}</div>', content)


def _digest(paths: list[Path]) -> bytes:
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).digest()


def _run(script: Path, library: bytes) -> Path:
    """The folder with the executed notebook and what it wrote, made unless the same script ran on the same library.

    Raises:
        PluginError: If the script fails.
    """
    key = hashlib.sha256(script.read_bytes() + library).hexdigest()[:12]
    folder = KEPT / f"{script.stem}-{key}"
    if (folder / "notebook.ipynb").exists():
        return folder
    for old in KEPT.glob(f"{script.stem}-*"):
        shutil.rmtree(old)
    folder.mkdir(parents=True)
    notebook = jupytext.read(script)
    try:
        nbclient.NotebookClient(
            notebook,
            timeout=300,
            startup_timeout=180,
            coalesce_streams=True,
            resources={"metadata": {"path": str(folder)}},
            extra_arguments=["--log-level=ERROR"],
        ).execute()
    except nbclient.exceptions.CellExecutionError as error:
        if error.ename == "ConnectionError":  # of weights that are downloaded: they are asked for again next time
            folder = folder.rename(KEPT / f"{script.stem}-unreached")
            notebook = jupytext.read(script)
            notebook.cells[
                0
            ].source += "\n\n*Its weights could not be downloaded when this page was made: it did not run.*"
            nbformat.write(notebook, folder / "notebook.ipynb")
            return folder
        raise PluginError(f"examples/{script.name} must run as a notebook. It failed:\n{error}") from error
    nbformat.write(notebook, folder / "notebook.ipynb")
    return folder


def _page(name: str, notebook: nbformat.NotebookNode) -> Iterator[str]:
    """The Markdown of an executed notebook, piece by piece; what Markdown might break is left as a mark."""
    for i, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            yield cell.source
            if i == 0:
                source = f"examples/{name}.py"
                yield f"*This page is `{source}` as it ran when the site was built. [Notebook]({name}.ipynb)*"
            continue
        yield f"```python\n{cell.source}\n```"
        for j, output in enumerate(cell.outputs):
            data = output.get("data", {})
            if "site-packages" in str(data):
                raise PluginError(f"examples/{name}.py must show no warnings with paths. Got {str(data)[:300]}.")
            if "text/html" in data:
                mark = f"@@shown-{name}-{i}-{j}@@"
                _SHOWN[mark] = data["text/html"]
                yield mark
            elif text := output.get("text") if output.get("name") == "stdout" else data.get("text/plain"):
                yield f"```{{.text .output}}\n{text.rstrip()}\n```"


def _gallery(pages: list[tuple[str, str, str]]) -> str:
    """The Markdown of all report pages, each small and live."""
    cards = "\n".join(
        f'<figure><iframe src="{page}" title="{title}" loading="lazy" tabindex="-1" inert></iframe>'
        f'<figcaption><a href="{page}">{title}</a><br><a href="../notebooks/{name}/">how it was made</a></figcaption>'
        "</figure>"
        for title, name, page in pages
    )
    return (
        "# Gallery\n\nEvery result of intertwine is a page of its own: one file, readable offline, that can be sent to "
        "somebody. These were written by the [notebooks](../notebooks/compare.md).\n\n"
        f'<div class="gallery">\n{cards}\n</div>\n'
    )
