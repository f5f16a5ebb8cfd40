"use strict";
// Draws a network as blocks from top to bottom, laid out by dagre; flows are colours along its wires.
function drawNetwork(place, spec, make, button, roving) {
  const colours = ["#3b7dd8", "#e07b39", "#2f9e75", "#a05fc0", "#c9a227", "#d1495b", "#4b9aa8", "#7d6b5d"];
  const colour = (flow) => colours[flow % colours.length];
  const svg = (name, attributes, ...inner) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...inner);
    return element;
  };

  // ---------------------------------------------------------------------------------------------------------- layout
  const graph = new dagre.graphlib.Graph({ compound: true });
  graph.setGraph({ rankdir: "TB", nodesep: 16, edgesep: 10, ranksep: 20, marginx: 14, marginy: 14 });
  graph.setDefaultEdgeLabel(() => ({}));
  spec.nodes.forEach((node, k) => graph.setNode(`n${k}`, { width: Math.max(44, 6.9 * node.text.length + 18), height: 24 }));
  spec.frames.forEach((title, k) => graph.setNode(`f${k}`, { title }));
  spec.nodes.forEach((node, k) => { if (node.frame >= 0) graph.setParent(`n${k}`, `f${node.frame}`); });
  spec.edges.forEach((edge) => graph.setEdge(`n${edge.from}`, `n${edge.to}`));
  dagre.layout(graph);

  // --------------------------------------------------------------------------------------------------------- drawing
  const { width, height } = graph.graph();
  const right = Math.max(width, ...spec.frames.map((title, k) => graph.node(`f${k}`).x - graph.node(`f${k}`).width / 2 + 7.4 * title.length)) + 8;
  const picture = svg("svg", { viewBox: `0 0 ${right} ${height}`, width: right, height, role: "group", "aria-label": place.getAttribute("aria-label") });
  const names = [];
  const parts = []; // element, flows that it belongs to, and what is said of it
  spec.frames.forEach((title, k) => {
    const { x, y, width, height } = graph.node(`f${k}`);
    picture.append(svg("rect", { class: "frame", x: x - width / 2, y: y - height / 2, width, height, rx: 8 }));
    names.push(svg("text", { class: "name", x: x - width / 2 + 4, y: y - height / 2 - 5 }, title));
  });
  const smooth = (points, shift) => {
    const at = (p) => `${(p.x + shift).toFixed(1)} ${p.y.toFixed(1)}`;
    const middle = (p, q) => ({ x: (p.x + q.x) / 2, y: (p.y + q.y) / 2 });
    let d = `M${at(points[0])}`;
    for (let k = 1; k < points.length - 1; k++) d += `Q${at(points[k])} ${at(middle(points[k], points[k + 1]))}`;
    return `${d}L${at(points[points.length - 1])}`;
  };
  for (const edge of spec.edges) {
    const { points } = graph.edge(`n${edge.from}`, `n${edge.to}`);
    const strands = edge.flows.length ? edge.flows : [null];
    strands.forEach((flow, k) => {
      const said = flow === null ? "no colour is known to run here" : `${spec.flows[flow].title}\n${spec.flows[flow].detail}`;
      const line = svg("path", { class: flow === null ? "wire still" : "wire", d: smooth(points, 4.5 * (k - (strands.length - 1) / 2)) }, svg("title", {}, said));
      if (flow !== null) line.style.stroke = colour(flow);
      picture.append(line);
      parts.push([line, flow === null ? [] : [flow], said]);
    });
  }
  picture.append(...names);
  const boxes = spec.nodes.map((node, k) => {
    const { x, y, width, height } = graph.node(`n${k}`);
    const box = svg("rect", { x: x - width / 2, y: y - height / 2, width, height, rx: node.kind === "weights" ? 5 : 12 });
    const group = svg("g", { class: `node ${node.kind}`, role: "img", "aria-label": node.title }, svg("title", {}, node.title), box,
      svg("text", { x, y: y + 4, "text-anchor": "middle" }, node.text));
    if (node.passes !== null) box.style.stroke = colour(node.passes);
    picture.append(group);
    parts.push([group, spec.edges.filter((e) => e.from === k || e.to === k).flatMap((e) => e.flows), node.title]);
    return group;
  });

  // ---------------------------------------------------------------------------------------- what is said of each part
  const about = make("p", { class: "about", "aria-live": "polite" }, "Point at a block, a wire or a name.");
  const show = (flows, said) => {
    for (const [element, own] of parts) element.classList.toggle("dim", flows !== null && !own.some((flow) => flows.includes(flow)));
    if (said) about.textContent = said;
  };
  for (const [element, flows, said] of parts) {
    const isBox = boxes.includes(element);
    element.addEventListener("pointerenter", () => show(isBox ? null : flows, said));
    element.addEventListener("pointerleave", () => show(null));
    element.addEventListener("focus", () => show(null, said));
  }
  roving(boxes);
  const key = make("ul", { class: "flows" }, ...spec.flows.map(({ title, detail }, flow) => {
    const one = button("", () => {}, { class: "flow" });
    const swatch = make("i", {});
    swatch.style.background = colour(flow);
    one.append(swatch, make("b", {}, title), ` ${detail}`);
    for (const event of ["pointerenter", "focus"]) one.addEventListener(event, () => show([flow], `${title}\n${detail}`));
    for (const event of ["pointerleave", "blur"]) one.addEventListener(event, () => show(null));
    return make("li", {}, one);
  }));

  // ------------------------------------------------------------------------------------------------------------ size
  const box = make("div", { class: "canvas", role: "region", "aria-label": place.getAttribute("aria-label"), tabindex: "0" });
  box.append(picture);
  let scale = 1;
  const zoom = (to) => {
    scale = Math.min(3, Math.max(0.15, to));
    picture.setAttribute("width", right * scale);
    picture.setAttribute("height", height * scale);
  };
  const tools = make("div", { class: "tools", role: "group", "aria-label": "Size of the drawing" },
    button("Smaller", () => zoom(scale / 1.3)), button("Larger", () => zoom(scale * 1.3)),
    button("Whole", () => zoom(Math.min(box.clientWidth / right, box.clientHeight / height))));
  place.append(tools, make("div", { class: "beside" }, box, make("div", { class: "key" }, about, key)));
  zoom(Math.min(1, Math.max(0.7, Math.min(box.clientWidth / right, box.clientHeight / height))));
}
