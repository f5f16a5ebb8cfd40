"""The page of many networks compared layer by layer."""

from ..._words import counted
from ...similarity import ComparisonSet
from ...similarity.registry import measure_title
from ..blocks import Facts, Grid, Heading, Paragraph, Table, Tabs
from ..figures import Figure, heatmap, scatter
from ..page import Page


def comparison_set_page(found: ComparisonSet) -> Page:
    """Lay out a matrix for each layer, a map, and the tree of the networks."""
    order = found.order() if len(found.names) > 2 else list(range(len(found.names)))
    names = [found.names[k] for k in order]

    def matrix(measure: str, layer: str | None) -> list[list[float]]:
        return found.matrix(measure, layer)[order][:, order].tolist()

    def heat(measure: str, layer: str | None) -> Figure:
        title = f"{measure_title(measure)}: {layer or 'mean over layers'}"
        return heatmap(matrix(measure, layer), names, names, title=title, name="score", hover={})

    points = found.embedding()
    caption = f"Stress {points.stress:.3f}: 0 where the map tells every distance; above 0.2 it misleads."
    chart = scatter(list(found.names), points.points.tolist(), title="A map of the networks", caption=caption)
    layers = {layer: [Grid([heat(m, layer) for m in found.measures], width=420)] for layer in found.layers}
    joined = [[k + 1, members, distance] for k, (members, distance) in enumerate(_merges(found))]
    return Page(
        f"Comparison of {counted(len(names), 'network')}",
        [
            Paragraph(found.summary().partition("\n")[0], "verdict"),
            *(Paragraph(f"Note: {note}", "note") for note in found.notes),
            Grid([heat(found.measures[0], None), chart]),
            Heading("Layer by layer"),
            Tabs(layers, "Which layer"),
            Heading("The tree of the networks"),
            Paragraph("Average linkage: which networks join, and at which distance, the nearest first."),
            Table(["Step", "Joined", "Distance"], joined),
            Facts(found.versions, "Versions"),
        ],
        f"{counted(len(found.layers), 'layer')} on {counted(found.examples, 'example')}",
    )


def _merges(found: ComparisonSet) -> list[tuple[str, float]]:
    """The steps of the dendrogram in words."""
    clusters = list(found.names)
    steps = []
    for left, right, distance, _ in found.dendrogram().tolist():
        members = f"{clusters[int(left)]}, {clusters[int(right)]}"
        clusters.append(members)
        steps.append((members, distance))
    return steps
