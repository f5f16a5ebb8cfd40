"""The page of distances: many networks, every one against every other."""

from ..._words import counted
from ...similarity import Distances
from ...similarity.registry import measure_title
from ..blocks import Facts, Grid, Heading, Paragraph, Table
from ..figures import heatmap, scatter
from ..page import Page


def distances_page(found: Distances) -> Page:
    """Lay out distances as a matrix, a map and a table."""
    title = measure_title(found.measure)
    matrix, names = found.distances.tolist(), list(found.names)
    top = max(max(row) for row in matrix) or 1.0
    heat = heatmap(
        matrix, names, names, title=title, name="distance", limits=(0.0, top), hover={"score": found.scores.tolist()}
    )
    points = found.embedding()
    caption = f"Stress {points.stress:.3f}: 0 where the map tells every distance; above 0.2 it misleads."
    chart = scatter(names, points.points.tolist(), title="A map of the networks", caption=caption)
    kind = "They obey the triangle inequality" if found.metric else "They order pairs; they obey no triangle inequality"
    rows = [list(row) for row in found.nearest().itertuples(index=False)]
    return Page(
        f"Distances of {counted(len(names), 'network')}",
        [
            Paragraph(f"Unchanged under {found.group}. {kind}.", "verdict"),
            *(Paragraph(f"Note: {note}", "note") for note in found.notes),
            Grid([heat, chart]),
            Heading("The nearest of each"),
            Table(["Network", "Nearest", "Distance"], rows),
            Heading("Networks"),
            Table(["Network", "Channels", "Dead"], [list(row) for row in zip(names, found.channels, found.dead)]),
            Facts(found.versions, "Versions"),
        ],
        f"{title} on {counted(found.examples, 'example')}",
    )
